package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/exitcode"
	"github.com/nfqproxy/nfqproxy/control/view/terminal"
	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
	"github.com/nfqproxy/nfqproxy/deploy/experiment/live"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

func newExperimentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "experiment",
		Short: "Compare balancing algorithms, in simulation or in a lab",
		Long: `Compare balancing algorithms: a file describes a cluster, a workload, changes, and the
algorithms. Runs take place in simulated time, with the same code that decides in the
daemon, and have the same results on any machine; or live, in a lab with a real kernel.
docs/reference/experiments.md describes the file and the results.`,
	}
	cmd.AddCommand(newExperimentRunCommand(), newExperimentInitCommand(), newExperimentListCommand(), newExperimentReportCommand(), newExperimentCompareCommand(), newExperimentBundleCommand(), newExperimentVerifyCommand(), newExperimentPartCommand())
	return cmd
}

// experimentFlags are the flags of nfqproxy experiment run.
type experimentFlags struct {
	dir      string
	seeds    int
	parallel int
	simulate bool
	live     bool
	cluster  clusterRun
}

func newExperimentRunCommand() *cobra.Command {
	var f experimentFlags
	cmd := &cobra.Command{
		Use:   "run FILE|NAME",
		Short: "Run an experiment",
		Long: `Run an experiment: a file, or one that comes with nfqproxy. The output directory gets a
page with tables and plots (report.html), tables as text and LaTeX, and all values as CSV.
Ctrl-C keeps the finished runs; the same command continues. The table is also printed.
With --live, each run takes the duration given in the file. With --simulate --live, the
page and the table show both side by side, with the error of the simulation.

With --on kubernetes, the runs take place in pods of an Indexed Job, and the directory
gets the same results as on this machine, bit for bit. Ctrl-C leaves the Job running; the
same command continues.`,
		Example: `  nfqproxy experiment run heavy-tail
  nfqproxy experiment run my.yaml --simulate --live --seeds 3
  nfqproxy experiment run my.yaml --output-directory results --seeds 30
  nfqproxy experiment run my.yaml --on kubernetes --namespace lab --parallel 64`,
		Annotations: ending(),
		Args:        exactly(1, "FILE or NAME"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return labs.Experiments(), cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.cluster.check(cmd.Flags()); err != nil {
				return err
			}
			if cmd.Flags().Changed("seeds") && (f.seeds < 1 || f.seeds > experiment.MaxSeeds) {
				return fmt.Errorf("--seeds %d: want a number from 1 to %d", f.seeds, experiment.MaxSeeds)
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.dir, "output-directory", "", "directory for the results (default: the experiment's name)")
	flags.BoolVar(&f.simulate, "simulate", false, "run in simulated time (default, unless --live is given)")
	flags.BoolVar(&f.live, "live", false, "run in a lab: a real kernel, the real daemon and real connections (Linux)")
	flags.IntVar(&f.seeds, "seeds", 0, "number of seeds (default: the file's)")
	flags.IntVar(&f.parallel, "parallel", runtime.NumCPU(), "number of simulated runs at the same time; with --on kubernetes of pods, 16 if it is not given")
	f.cluster.add(cmd)
	return cmd
}

func (f *experimentFlags) run(ctx context.Context, stdout, stderr io.Writer, nameOrPath string) error {
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
	if f.cluster.on != "" {
		return f.runOnCluster(ctx, stdout, stderr, x)
	}
	if !f.live {
		return f.show(ctx, stdout, stderr, x, f.simulation(), f.dir)
	}
	if err := live.Check(x); err != nil {
		return err
	}
	code, err := netns.Isolation{Main: func([]*os.File) int {
		err := f.runLive(ctx, stdout, stderr, x)
		if err != nil {
			fmt.Fprintln(stderr, "nfqproxy:", err)
		}
		return exitcode.Of(err)
	}}.Run()
	return exitWith(code, err)
}

func (f *experimentFlags) simulation() experiment.Backend {
	began := time.Now()
	return experiment.Simulate{Cells: f.parallel, Stopwatch: func() int64 { return int64(time.Since(began)) }}
}

// runLive runs the experiment in namespaces of its own.
func (f *experimentFlags) runLive(ctx context.Context, stdout, stderr io.Writer, x *experiment.Experiment) error {
	if !f.simulate {
		return f.show(ctx, stdout, stderr, x, live.Backend{}, f.dir)
	}
	var both experiment.Both
	var err error
	one := func(b experiment.Backend, dir string) (*experiment.Results, error) {
		r := experiment.Runner{Experiment: x, Backend: b, Dir: filepath.Join(f.dir, dir)}
		return runExperiment(ctx, &r, newProgressBar(stderr))
	}
	if both.Simulated, err = one(f.simulation(), experiment.DirSimulated); err != nil {
		return err
	}
	results, stopped := one(live.Backend{}, experiment.DirLive)
	if results == nil {
		return stopped
	}
	both.Live = results
	if err := both.Write(f.dir); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s\n%s/%s\n", both.Table().Text(), f.dir, experiment.FileReport)
	if stopped != nil {
		return stopped
	}
	return exitcode.Negative(errors.Join(both.Simulated.Verdict(), both.Live.Verdict()))
}

// show runs an experiment and prints its table.
func (f *experimentFlags) show(ctx context.Context, stdout, stderr io.Writer, x *experiment.Experiment, b experiment.Backend, dir string) error {
	r := experiment.Runner{Experiment: x, Backend: b, Dir: dir}
	return showResults(ctx, stdout, &r, newProgressBar(stderr))
}

func showResults(ctx context.Context, stdout io.Writer, r *experiment.Runner, bar *progressBar) error {
	results, err := runExperiment(ctx, r, bar)
	if results != nil {
		fmt.Fprintf(stdout, "%s\n%s/%s\n", results.Text(), r.Dir, experiment.FileReport)
	}
	if err != nil {
		return err
	}
	return exitcode.Negative(results.Verdict())
}

// runExperiment runs an experiment with a progress bar. If it is interrupted, it returns the results of the runs that
// are done, if there are any, with an error.
func runExperiment(ctx context.Context, r *experiment.Runner, bar *progressBar) (*experiment.Results, error) {
	r.Version, r.Progress = version, bar.update
	results, err := r.Run(ctx)
	bar.clear()
	switch {
	case ctx.Err() == nil && err != nil:
		return nil, err
	case results == nil || len(results.Cells) == 0:
		return nil, errors.New("interrupted before a run was finished")
	case ctx.Err() != nil:
		return results, fmt.Errorf("interrupted: %s; the same command continues", results.Lacks())
	}
	return results, nil
}

// progressBar shows on a terminal how much of an experiment is done.
type progressBar struct {
	to       io.Writer // nil: it is not shown
	began    time.Time
	at       time.Time // of the last update
	atBegin  float64   // runs that were there
	notFirst bool
}

// newProgressBar returns a bar that is shown if the writer is a terminal.
func newProgressBar(to io.Writer) *progressBar {
	bar := &progressBar{began: time.Now()}
	if width(to) != nil {
		bar.to = to
	}
	return bar
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

// again starts the line again.
func (b *progressBar) again() string {
	seal := terminal.SealOf(b.to)
	return seal.Sequence("1", 'G') + seal.Sequence("0", 'K')
}

func (b *progressBar) clear() {
	if b.to != nil {
		fmt.Fprint(b.to, b.again())
	}
}

func newExperimentListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the experiments that nfqproxy ships",
		Args:  exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var all []shipped
			for _, name := range labs.Experiments() {
				title, err := experiment.Title(name)
				if err != nil {
					return err
				}
				all = append(all, shipped{name, title})
			}
			return writeShipped(cmd.OutOrStdout(), output, "NAME\tCOMPARES\n", all)
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

func newExperimentReportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "report DIRECTORY",
		Short: "Write the report of a results directory again",
		Long: `Write the page, the tables and the plots of a results directory again, from the runs in
it, and print the table. Nothing is run.`,
		Example: "  nfqproxy experiment report heavy-tail",
		Args:    exactly(1, "DIRECTORY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := experiment.Report(args[0])
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s/%s\n", text, args[0], experiment.FileReport)
			}
			return err
		},
	}
}

func newExperimentCompareCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "compare DIRECTORY DIRECTORY...",
		Short: "Compare the results of runs",
		Long: `Compare the results of runs: for each metric in their tables, the algorithms of all
directories side by side. The runs may be of different versions, machines or files; how
they differ is listed first.`,
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

func newExperimentInitCommand() *cobra.Command {
	var d experiment.Draft
	cmd := &cobra.Command{
		Use:   "init FILE",
		Short: "Write the file of a new experiment",
		Long: `Write the file of a new experiment: one service, flows to it, and the algorithms to
compare. Comments show what else an experiment can have. On a terminal, the command asks
for values not given by flags; otherwise it uses the defaults. It does not overwrite a
file.`,
		Example: `  nfqproxy experiment init my.yaml
  nfqproxy experiment init my.yaml --endpoints 100 --load 0.9 --algorithms random,p2c,ring`,
		Args: exactly(1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if isTerminal(cmd.InOrStdin()) {
				if err := askDraft(cmd.Flags(), cmd.InOrStdin(), cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			text, err := d.Write(args[0])
			if err != nil {
				return ofFlags(err)
			}
			if err := createFile(args[0], text); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n\nRun it:  nfqproxy experiment run %[1]s\n", args[0])
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&d.Endpoints, "endpoints", 10, "number of endpoints of the service")
	flags.Float64Var(&d.Load, "load", 0.7, "offered load, as a share of the endpoints' capacity")
	flags.DurationVar(&d.Work, "work", 10*time.Millisecond, "mean service time of a flow at an endpoint")
	flags.StringSliceVar(&d.Algorithms, "algorithms", []string{"random", "p2c"}, "balancing algorithms to compare")
	flags.StringVar(&d.Distribution, "distribution", "exponential", "distribution of the service times: constant, exponential, uniform, lognormal or pareto")
	flags.IntVar(&d.Nodes, "nodes", 1, "number of nodes; each decides on its own")
	return cmd
}

// draftFlags are the flags that set the fields of a draft.
var draftFlags = map[string]string{
	"cluster.nodes": "nodes", "cluster.services[0].endpoints": "endpoints", "workload.arrivals.load": "load", "workload.work.mean": "work",
	"workload.work.distribution": "distribution",
}

// ofFlags names the flags of mistakes in a file that is not written: a user knows them, and not its lines.
func ofFlags(err error) error {
	mistakes, ok := errors.AsType[yamlfile.Mistakes](err)
	if !ok {
		return err
	}
	var all []error
	for _, m := range mistakes {
		field, _, _ := strings.Cut(m.Field, "[")
		switch flag := draftFlags[m.Field]; {
		case m.Field == "workload.work.mean" && m.Err.Error() == "missing": // 0s, which a file leaves out
			all = append(all, errors.New("--work: want a time above 0"))
		case m.Field == "metadata.name":
			all = append(all, fmt.Errorf("%s: without its extension it is the experiment's name: %w", m.File, m.Err))
		case flag != "":
			all = append(all, fmt.Errorf("--%s: %w", flag, m.Err))
		case field == "algorithms":
			all = append(all, fmt.Errorf("--algorithms: %w", m.Err))
		default:
			all = append(all, m)
		}
	}
	return errors.Join(all...)
}

// askDraft asks for what no flag says, until each answer is one. No answer is the default.
func askDraft(flags *pflag.FlagSet, from io.Reader, to io.Writer) error {
	lines := bufio.NewScanner(from)
	for _, q := range []struct{ flag, question string }{
		{"endpoints", "How many endpoints does the service have?"},
		{"load", "What is the load, as a share of their capacity?"},
		{"work", "How long does an endpoint take for a flow, on average?"},
		{"algorithms", "Which algorithms should be compared?"},
	} {
		usual := strings.Trim(flags.Lookup(q.flag).DefValue, "[]")
		for !flags.Changed(q.flag) {
			fmt.Fprintf(to, "%s [%s] ", q.question, usual)
			if !lines.Scan() {
				return fmt.Errorf("no answer for --%s", q.flag)
			}
			answer := strings.ReplaceAll(strings.TrimSpace(lines.Text()), ", ", ",")
			if answer == "" {
				break
			}
			if err := flags.Set(q.flag, answer); err != nil {
				fmt.Fprintf(to, "%q cannot be read; an example is %s\n", answer, usual)
			}
		}
	}
	return nil
}
