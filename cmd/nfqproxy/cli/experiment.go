package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/view/visible"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
	"github.com/nfqproxy/nfqproxy/deploy/experiment/shipped"
)

func newExperimentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "experiment",
		Short: "Compare balancing algorithms in simulated time, reproducibly",
		Long: `Compare balancing algorithms: a file describes a cluster, a workload, changes, and the
algorithms. Runs are in simulated time, by the code that decides for real, and have the
same results on any machine. See docs/experiments.md.`,
	}
	cmd.AddCommand(newExperimentRunCommand(), newExperimentListCommand(), newExperimentCompareCommand())
	return cmd
}

// experimentFlags are those of nfqproxy experiment run.
type experimentFlags struct {
	dir      string
	seeds    int
	parallel int
}

func newExperimentRunCommand() *cobra.Command {
	var f experimentFlags
	cmd := &cobra.Command{
		Use:   "run FILE|NAME",
		Short: "Run an experiment",
		Long: `Run an experiment: a file, or one that nfqproxy ships. The directory gets a page with tables
and plots (report.html), tables as text and LaTeX, and all values as CSV. Ctrl-C keeps the
runs that are done; the same command continues. Prints the table.`,
		Example: `  nfqproxy experiment run heavy-tail
  nfqproxy experiment run my.yaml -o results --seeds 30`,
		Annotations: ending(),
		Args:        exactly(1, "FILE or NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.dir, "output", "o", "", "directory for the results (default: the experiment's name)")
	flags.IntVar(&f.seeds, "seeds", 0, "number of seeds (default: the file's)")
	flags.IntVar(&f.parallel, "parallel", runtime.NumCPU(), "number of runs at the same time")
	return cmd
}

func (f *experimentFlags) run(ctx context.Context, stdout, stderr io.Writer, nameOrPath string) error {
	if f.seeds < 0 || f.seeds > experiment.MaxSeeds {
		return fmt.Errorf("--seeds %d: want a number from 1 to %d", f.seeds, experiment.MaxSeeds)
	}
	if f.parallel < 1 {
		return fmt.Errorf("--parallel %d: want 1 or more", f.parallel)
	}
	x, err := experiment.Load(nameOrPath)
	if err != nil {
		return err
	}
	if f.seeds > 0 {
		x.Seeds = f.seeds
	}
	if f.dir == "" {
		f.dir = x.Metadata.Name
	}
	began := time.Now()
	bar := &progressBar{began: began}
	if width(stderr) != nil {
		bar.to = stderr
	}
	r := experiment.Runner{
		Experiment: x, Dir: f.dir, Version: version, Progress: bar.update,
		Backend: experiment.Simulate{Cells: f.parallel, Stopwatch: func() int64 { return int64(time.Since(began)) }},
	}
	results, err := r.Run(ctx)
	bar.clear()
	if err != nil && ctx.Err() == nil {
		return err
	}
	if results == nil || len(results.Cells) == 0 {
		return errors.New("interrupted before a run was done")
	}
	fmt.Fprint(stdout, results.Table().Text())
	fmt.Fprintf(stdout, "\n%s/%s\n", f.dir, experiment.FileReport)
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %d runs are missing; the same command continues", results.Missing)
	}
	return nil
}

// progressBar shows on a terminal how much of an experiment is done.
type progressBar struct {
	to       io.Writer // nil: it is not shown
	began    time.Time
	at       time.Time // of the last update
	atBegin  float64   // runs that were there
	notFirst bool
}

// update shows the number of runs that are done.
func (b *progressBar) update(done float64, cells int) {
	const often, width = 100 * time.Millisecond, 30
	now := time.Now()
	if !b.notFirst {
		b.atBegin, b.notFirst = done, true
	}
	if b.to == nil || now.Sub(b.at) < often {
		return
	}
	b.at = now
	left := ""
	if since := done - b.atBegin; since > 0 {
		rest := time.Duration(float64(now.Sub(b.began)) / since * (float64(cells) - done))
		left = fmt.Sprintf("  %s left", rest.Round(time.Second))
	}
	full := min(int(width*done/float64(max(cells, 1))), width)
	fmt.Fprintf(b.to, "%s[%s%s] %d of %d runs%s", b.again(), strings.Repeat("#", full), strings.Repeat(".", width-full), int(done), cells, left)
}

// again begins the line anew.
func (b *progressBar) again() string {
	seal := visible.SealOf(b.to)
	return seal.Sequence("1", 'G') + seal.Sequence("0", 'K')
}

func (b *progressBar) clear() {
	if b.to != nil {
		fmt.Fprint(b.to, b.again())
	}
}

func newExperimentListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the experiments that nfqproxy ships",
		Args:  exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(w, "NAME\tCOMPARES")
			for _, name := range shipped.Names() {
				x, err := experiment.Load(name)
				if err != nil {
					return err
				}
				fmt.Fprintf(w, "%s\t%s\n", name, x.Title)
			}
			return w.Flush()
		},
	}
}

func newExperimentCompareCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "compare DIRECTORY DIRECTORY...",
		Short: "Compare the results of runs",
		Long: `Compare the results of runs: for each metric of their tables, the algorithms of all
directories side by side. Runs of other versions, machines or files may differ; the
differences of the runs themselves are listed first.`,
		Example: "  nfqproxy experiment compare before after",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return fmt.Errorf("%s requires DIRECTORY and another DIRECTORY", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := experiment.Compare(args)
			if err == nil {
				_, err = io.WriteString(cmd.OutOrStdout(), text)
			}
			return err
		},
	}
}
