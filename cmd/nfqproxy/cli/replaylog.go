package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/datapath/paper/offpolicy"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay"
)

// replayLog decides a flow log again. Differences are a negative answer.
func (f *replayFlags) replayLog(name string, in, stdin io.Reader, out *bufio.Writer, stderr io.Writer) error {
	if f.given("balance") {
		return f.whatIf(name, in, stdin, out, stderr)
	}
	switch {
	case f.byRules():
		return fmt.Errorf("%s: %s is a flow log: give --objects, because the random draws of a dump are not the daemon's", f.rulesFlag(), name)
	case f.given("seed"):
		return fmt.Errorf("--seed: %s is a flow log: its records have the random draws", name)
	case f.given("output") && f.output != "text":
		return fmt.Errorf("--output %s: %s is a flow log: its differences are text", f.output, name)
	case f.given("walk"):
		return fmt.Errorf("--walk: %s is a flow log: only its differences are printed", name)
	}
	input, err := f.table.load(stdin, stderr)
	if err != nil {
		return err
	}
	log, err := replay.NewLog(input.table)
	if err != nil {
		return err
	}
	log.Generation = f.generation
	err = log.Run(in, func(d *replay.Difference) error {
		_, err := fmt.Fprintln(out, d)
		return err
	})
	if err == nil {
		err = log.Check()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	summary := log.Summary()
	if _, err := summary.WriteTo(stderr); err != nil {
		return err
	}
	if summary.Different > 0 {
		return answerNo
	}
	return nil
}

// whatIf decides a flow log again with another algorithm.
func (f *replayFlags) whatIf(name string, in, stdin io.Reader, out *bufio.Writer, stderr io.Writer) error {
	switch {
	case f.byRules():
		return errors.New("--balance requires --objects")
	case f.output == "pcap":
		return fmt.Errorf("--output pcap: %s is a flow log: want text or json", name)
	case f.given("walk"):
		return fmt.Errorf("--walk: %s is a flow log: only its differences are printed", name)
	case f.given("generation"):
		return errors.New("--generation and --balance cannot be used together")
	}
	input, err := f.table.load(stdin, stderr)
	if err != nil {
		return err
	}
	if f.estimate.on {
		return f.writeEstimate(name, in, &input, out)
	}
	w, err := replay.NewWhatIf(input.table, input.config.Algorithms, f.draws())
	if err != nil {
		return err
	}
	report, err := w.Run(in, func(d *replay.Difference) error {
		if f.output == "json" {
			return nil
		}
		_, err := fmt.Fprintln(out, d)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if f.output != "json" && report.Elsewhere+report.Failed+report.Served > 0 {
		fmt.Fprintln(out)
	}
	return f.writeReport(out, report)
}

// estimateFlags are those of nfqproxy replay --estimate.
type estimateFlags struct {
	on           bool
	confidence   float64
	replications int
}

func (f *estimateFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.on, "estimate", false, "with --balance: estimate connect latency, refused and unanswered flows, and imbalance under the algorithm")
	flags.Float64Var(&f.confidence, "confidence", offpolicy.DefaultConfidence, "with --estimate: confidence level of the intervals, in percent")
	flags.IntVar(&f.replications, "replications", offpolicy.DefaultReplications, "with --estimate: how many times to decide the log, each time with different random numbers")
}

func (f *estimateFlags) check(given func(flag string) bool) error {
	for _, flag := range []string{"confidence", "replications"} {
		if given(flag) && !f.on {
			return fmt.Errorf("--%s requires --estimate", flag)
		}
	}
	switch {
	case !f.on:
		return nil
	case !given("balance"):
		return errors.New("--estimate requires --balance, the algorithm to estimate")
	case !(f.confidence > 0 && f.confidence < 100):
		return fmt.Errorf("--confidence %v: want percent above 0 and below 100, as 95", f.confidence)
	case f.replications < 1 || f.replications > offpolicy.MaxReplications:
		return fmt.Errorf("--replications %d: want 1 to %d", f.replications, offpolicy.MaxReplications)
	}
	return nil
}

// writeEstimate estimates from a flow log what would happen under another algorithm.
func (f *replayFlags) writeEstimate(name string, in io.Reader, of *input, out io.Writer) error {
	report, err := offpolicy.Estimate(in, offpolicy.Config{
		Table: of.table, Algorithms: of.config.Algorithms, Replications: f.estimate.replications, Confidence: f.estimate.confidence, Seed: f.chosenSeed(),
	})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return f.writeReport(out, report)
}
