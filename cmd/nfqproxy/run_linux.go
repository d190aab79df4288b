package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"runtime"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/datapath"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/hostnet"
)

// runFlags are the flags of nfqproxy run.
type runFlags struct {
	objects      []string
	name         string
	node         nodeFlags
	firstQueue   uint16
	queues       uint16
	seed         uint64
	flowLog      string
	flowLogSteps bool
	keepRules    bool
	readyFD      int
	verbose      bool
}

func newRunCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run --objects PATH...",
		Short: "Serve as the service proxy of this node",
		Long: `Serve as the service proxy of this node until SIGTERM or SIGINT. The Services and
EndpointSlices come from manifests, which are watched: changes apply at once, and
a faulty change leaves the last good state in force. CAP_NET_ADMIN is needed.`,
		Example: `  nfqproxy run --objects ./manifests --cluster-cidr 10.244.0.0/16 --flow-log -`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), cmd.Flags().Changed("seed"))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&f.objects, "objects", nil, "file or directory with Services, EndpointSlices and Nodes (YAML or JSON); may be repeated")
	flags.StringVar(&f.name, "hostname-override", "", "name of this node (default: the host name)")
	f.node.add(flags)
	flags.Uint16Var(&f.firstQueue, "queue-num", 100, "number of the first netfilter queue")
	flags.Uint16Var(&f.queues, "queues", uint16(min(runtime.NumCPU(), 8)), "how many netfilter queues; packets spread over them by CPU")
	flags.Uint64Var(&f.seed, "seed", 0, "makes the choices reproducible: the same flows in the same order get the same endpoints (default: random)")
	flags.StringVar(&f.flowLog, "flow-log", "", "write one line of JSON for each decided flow to this file; - for standard output")
	flags.BoolVar(&f.flowLogSteps, "flow-log-steps", false, "with the walk through kube-proxy's chains in each line")
	flags.BoolVar(&f.keepRules, "keep-rules-on-exit", false, "leave the kernel rules in place: established flows are translated on, new ones to services wait for the next start")
	flags.IntVar(&f.readyFD, "ready-fd", -1, `write "ready" to this file descriptor when new flows are served`)
	_ = flags.MarkHidden("ready-fd")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "log each new service table")
	_ = cmd.MarkFlagRequired("objects")
	return cmd
}

// run checks the flags and serves.
func (f *runFlags) run(ctx context.Context, stdout, stderr io.Writer, seeded bool) (err error) {
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	node, err := f.nodeConfig()
	if err != nil {
		return err
	}
	if f.queues == 0 || int(f.firstQueue)+int(f.queues) > 1<<16 {
		return fmt.Errorf("--queues %d from --queue-num %d: there must be at least one queue, and none above 65535", f.queues, f.firstQueue)
	}
	cfg := datapath.Config{FirstQueue: f.firstQueue, Queues: f.queues, Steps: f.flowLogSteps, KeepRules: f.keepRules}
	if seeded {
		cfg.Seed = &f.seed
	}
	if f.flowLog != "" {
		w := stdout
		if f.flowLog != "-" {
			file, err := os.OpenFile(f.flowLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
			if err != nil {
				return fmt.Errorf("--flow-log: %w", err)
			}
			defer file.Close()
			w = file
		}
		flowLog := flow.NewLog(w, func(err error) {
			log.Warn("the flow log cannot be written; no more records from here on", "error", err)
		})
		defer func() { err = errors.Join(err, wrap("--flow-log", flowLog.Close())) }()
		cfg.Sink = flowLog
	}
	return f.serve(ctx, node, cfg, log)
}

func (f *runFlags) nodeConfig() (control.NodeConfig, error) {
	name := f.name
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return control.NodeConfig{}, fmt.Errorf("the host has no name (%w): give --hostname-override", err)
		}
	}
	return f.node.config(name)
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// serve wires the parts together: objects and addresses -> controller -> tables ->
// datapath. If any of them ends, all do.
func (f *runFlags) serve(ctx context.Context, node control.NodeConfig, cfg datapath.Config, log *slog.Logger) error {
	// Before anything else: the most likely thing to be missing.
	if _, err := datapath.Preflight(); err != nil {
		return err
	}
	host, err := hostnet.Open()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	tables := make(chan *decision.Table)
	controller, err := control.New(control.Config{
		Node:    node,
		Objects: control.Manifests(f.objects...),
		Addresses: func(ctx context.Context, publish func([]netip.Addr)) error {
			stop := context.AfterFunc(ctx, func() { _ = host.Close() })
			defer stop()
			if err := host.Watch(publish); ctx.Err() == nil {
				return err
			}
			return nil
		},
		Publish: func(t *decision.Table) {
			select {
			case tables <- t:
			case <-ctx.Done():
			}
		},
		Logger: log,
	})
	if err != nil {
		return errors.Join(err, host.Close())
	}
	group.Go(func() error { return controller.Run(ctx) })
	group.Go(func() error {
		var first *decision.Table
		select {
		case first = <-tables:
		case <-ctx.Done():
			return nil
		}
		cfg.Log = log
		engine, err := datapath.Open(cfg, host, first)
		if err != nil {
			return err
		}
		group.Go(func() error {
			for {
				select {
				case t := <-tables:
					engine.Apply(t)
					log.Debug("new service table", "generation", t.Generation(), "services", t.ServiceCount())
				case <-ctx.Done():
					return nil
				}
			}
		})
		log.Info("serving", "node", node.Name, "services", first.ServiceCount(), "queue", cfg.FirstQueue, "queues", cfg.Queues)
		if err := f.ready(); err != nil {
			log.Warn("cannot tell that the proxy is ready", "error", err)
		}
		err = engine.Run(ctx)
		log.Info("stopped", "flows", engine.Stats())
		return err
	})
	return group.Wait()
}

// ready tells whoever started the process.
func (f *runFlags) ready() error {
	if f.readyFD < 0 {
		return nil
	}
	file := os.NewFile(uintptr(f.readyFD), "ready-fd")
	if file == nil {
		return fmt.Errorf("--ready-fd %d is no file descriptor", f.readyFD)
	}
	_, err := io.WriteString(file, "ready\n")
	return errors.Join(err, file.Close())
}
