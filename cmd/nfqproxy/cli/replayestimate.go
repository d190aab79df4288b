package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/datapath/paper/offpolicy"
)

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
