package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/usage"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
	"github.com/nfqproxy/nfqproxy/deploy/experiment/job"
)

// clusterRun holds the flags of a run on a cluster.
type clusterRun struct {
	on, kubeconfig, context, cpu, memory string
	options                              job.Options
	dryRun                               bool
	own                                  *pflag.FlagSet // the flags that require --on
}

const (
	podsAtATime   = 16 // the default of --parallel on a cluster
	maxRunsPerPod = 100_000
)

func (c *clusterRun) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.on, "on", "", "where to run: kubernetes (default: on this machine)")
	complete(cmd, "on", []string{"kubernetes"})
	c.own = pflag.NewFlagSet("", pflag.ContinueOnError)
	c.own.SortFlags = false
	c.own.StringVarP(&c.options.Namespace, "namespace", "n", "", "namespace of the Job (default: the context's)")
	c.own.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: $KUBECONFIG, or ~/.kube/config)")
	c.own.StringVar(&c.context, "context", "", "context of the kubeconfig (default: the current context)")
	c.own.StringVar(&c.options.Image, "image", "", "image of nfqproxy, in this version (default: nfqproxy:VERSION)")
	c.own.IntVar(&c.options.Each, "runs-per-pod", 1, "number of runs per pod, one after the other")
	c.own.StringVar(&c.cpu, "cpu", "1", "CPUs of a pod; a run uses one")
	c.own.StringVar(&c.memory, "memory", "1Gi", "memory of a pod")
	c.own.StringVar(&c.options.Volume, "volume", "", "PersistentVolumeClaim to save each finished run on (default: none)")
	c.own.BoolVar(&c.dryRun, "dry-run", false, "print the objects as YAML, and create none")
	usage.Group(c.own, "With --on kubernetes")
	cmd.Flags().AddFlagSet(c.own)
}

// check checks the flags together.
func (c *clusterRun) check(flags *pflag.FlagSet) error {
	var given []string
	c.own.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			given = append(given, f.Name)
		}
	})
	switch {
	case c.on == "" && len(given) > 0:
		return fmt.Errorf("--%s requires --on kubernetes", given[0])
	case c.on == "":
		return nil
	case c.on != "kubernetes":
		return fmt.Errorf("--on %q: want kubernetes", c.on)
	case flags.Changed("live"):
		return errors.New("--live cannot be used with --on kubernetes: a live run takes place in a lab on this machine, as root")
	case c.options.Each < 1 || c.options.Each > maxRunsPerPod:
		return fmt.Errorf("--runs-per-pod %d: want 1 to %d", c.options.Each, maxRunsPerPod)
	case c.options.Image == "" && version == unknownVersion:
		return errors.New("this program has no version: give --image")
	}
	if c.options.Image == "" {
		c.options.Image = "nfqproxy:" + version
	}
	c.options.Parallel = podsAtATime
	if f := flags.Lookup("parallel"); f.Changed {
		c.options.Parallel, _ = flags.GetInt("parallel")
	}
	for _, q := range []struct {
		flag, text string
		to         *resource.Quantity
	}{{"cpu", c.cpu, &c.options.CPU}, {"memory", c.memory, &c.options.Memory}} {
		v, err := resource.ParseQuantity(q.text)
		if err != nil || v.Sign() <= 0 {
			return fmt.Errorf("--%s %q: want a quantity, as 500m or 2Gi", q.flag, q.text)
		}
		*q.to = v
	}
	c.options.Version = version
	return nil
}

// runOnCluster runs an experiment in pods, and prints its table.
func (f *experimentFlags) runOnCluster(ctx context.Context, stdout, stderr io.Writer, x *experiment.Experiment) error {
	c := &f.cluster
	connection := connectionTo(c.kubeconfig, c.context)
	if c.options.Namespace == "" {
		c.options.Namespace = cmp.Or(connection.Namespace(), "default")
	}
	bar := newProgressBar(stderr)
	c.options.Note = func(text string) {
		bar.clear()
		fmt.Fprintln(stderr, "nfqproxy: note:", text)
	}
	if c.dryRun {
		return c.print(stdout, x)
	}
	var err error
	if c.options.Config, err = connection.REST(); err != nil {
		return err
	}
	c.options.Config.Timeout, c.options.Config.QPS, c.options.Config.Burst = requestTimeout, requestsPerSecond, requestsPerSecond
	cluster, err := job.New(c.options)
	if err != nil {
		return err
	}
	r := experiment.Runner{Experiment: x, Backend: experiment.Simulate{}, Elsewhere: cluster, Dir: f.dir}
	return showResults(ctx, stdout, &r, bar)
}

// print prints the objects of a run from its beginning.
func (c *clusterRun) print(stdout io.Writer, x *experiment.Experiment) error {
	cluster, err := job.New(c.options)
	if err != nil {
		return err
	}
	m, j, err := cluster.Objects(x, x.Cells())
	if err != nil {
		return err
	}
	for _, object := range []any{m, j} {
		text, err := yaml.Marshal(object)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(stdout, "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}

func newExperimentPartCommand() *cobra.Command {
	var index int
	var keep string
	cmd := &cobra.Command{
		Use:   "part ARCHIVE",
		Short: "Run a part of an experiment, in a pod of --on kubernetes",
		Long: `Run a part of an experiment: the runs of one index of a Job that nfqproxy experiment run --on
kubernetes has made. Prints their results as one block of text, which that command reads in
the pod's log.`,
		Hidden:      true,
		Annotations: ending(),
		Args:        exactly(1, "ARCHIVE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			archive, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			f := experimentFlags{parallel: 1}
			// All to one stream: lines of two can come into a pod's log in another order, and into the block.
			w := experiment.Worker{Backend: f.simulation(), Version: version, Keep: keep, Log: func(text string) { fmt.Fprintln(cmd.OutOrStdout(), text) }}
			part, err := w.Run(cmd.Context(), archive, index)
			if cmd.Context().Err() != nil {
				const terminated = 128 + 15 // the Job tries again
				return exitWith(terminated, err)
			}
			if err != nil {
				return exitWith(job.ExitFailed, err)
			}
			text, err := part.Encode()
			if err != nil {
				return exitWith(job.ExitFailed, err)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&index, "index", 0, "the part, from 0 on")
	flags.StringVar(&keep, "keep", "", "directory to save each finished run in (default: none)")
	return cmd
}
