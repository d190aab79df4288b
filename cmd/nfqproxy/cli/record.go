package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nfqproxy/nfqproxy/control/view/history"
)

// recordFlags are the flags of nfqproxy record.
type recordFlags struct {
	server  serverFlags
	dir     string
	maxSize string
	maxAge  time.Duration
	every   time.Duration
	all     bool
}

// severalNodes is the name of the files of a recorder of more than one node.
const severalNodes = "cluster"

func newRecordCommand(connect connector) *cobra.Command {
	var f recordFlags
	cmd := &cobra.Command{
		Use:   "record --dir DIR",
		Short: "Keep a history of flows in Parquet files",
		Long: `Follow the flows of the nodes that the flags select, and save them in Parquet files, until
interrupted. This needs no privileges except access to the flow API. If a daemon is
unreachable, it waits for it. The directory gets a file for each hour (UTC) and node; for
several nodes together, the node's name is "cluster". The files of the current hour are
parts of at most a minute (--write-every), merged when the hour ends: a recorder that is
killed loses no more than that.

nfqproxy flows, why and web read the directory with --history. DuckDB, pandas and other
programs can read the files: docs/reference/history.md describes the columns, with
examples.

Flows to no service that pass unchanged are left out, unless --all is given. The rate
limit of the flow API applies: the files count what it leaves out.`,
		Example: `  nfqproxy record --dir /var/lib/nfqproxy/history
  nfqproxy record --dir history --cluster --max-size 20Gi --max-age 720h
  nfqproxy flows --history history --since 3h --state unanswered`,
		Args:        noArgs,
		Annotations: ending(),
		RunE:        func(cmd *cobra.Command, _ []string) error { return blameFlag(cmd.Flags(), f.run(cmd, connect)) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.dir, "dir", "", "directory for the files, created if it does not exist")
	_ = cmd.MarkFlagDirname("dir")
	flags.StringVar(&f.maxSize, "max-size", "4Gi", "maximum size of all files, for example 500Mi: the oldest are removed; 0: no limit")
	flags.DurationVar(&f.maxAge, "max-age", 7*24*time.Hour, "remove files older than this; 0: no limit")
	flags.DurationVar(&f.every, "write-every", time.Minute, "write new flows and changes at least this often, 1s to 1m: a recorder that is killed loses no more than that")
	flags.BoolVar(&f.all, "all", false, "include flows to no service")
	f.server.add(cmd)
	return cmd
}

// config validates the flags.
func (f *recordFlags) config() (c history.Config, err error) {
	c = history.Config{Dir: f.dir, MaxAge: f.maxAge, Interval: f.every, ServicesOnly: !f.all}
	size, err := resource.ParseQuantity(f.maxSize)
	switch {
	case f.dir == "":
		return c, errors.New("--dir is missing: give a directory for the files")
	case err != nil || size.Value() < 0:
		return c, fmt.Errorf("--max-size %q: want a number of bytes, for example 500Mi or 4Gi", f.maxSize)
	case size.Value() != 0 && size.Value() < history.LeastSize:
		return c, fmt.Errorf("--max-size %s: want at least 16Mi", f.maxSize)
	case f.maxAge != 0 && f.maxAge < time.Hour:
		return c, fmt.Errorf("--max-age %s: want at least 1h, because each file covers an hour", f.maxAge)
	case f.every < time.Second || f.every > time.Minute:
		return c, fmt.Errorf("--write-every %s: want 1s to 1m", f.every)
	}
	c.MaxSize = size.Value()
	return c, nil
}

func (f *recordFlags) run(cmd *cobra.Command, connect connector) error {
	ctx := cmd.Context()
	c, err := f.config()
	if err != nil {
		return err
	}
	c.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	cluster, err := f.server.ofCluster()
	if err != nil {
		return err
	}
	observer, err := f.server.observer(ctx, connect, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	c.Name = severalNodes
	if !cluster {
		nodes, err := awaitNodes(ctx, observer, c.Log)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if len(nodes) == 1 {
			c.Name = fileName(nodes[0])
		}
	}
	r, err := history.Open(c)
	if err != nil {
		return err
	}
	return errors.Join(r.Run(ctx, observer), r.Close())
}
