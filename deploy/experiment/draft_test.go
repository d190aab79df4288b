package experiment_test

import (
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// TestDraft: new files are valid, and their runs are long enough for no warning.
func TestDraft(t *testing.T) {
	for _, distribution := range []string{"constant", "exponential", "uniform", "lognormal", "pareto"} {
		for _, load := range []float64{0.5, 0.9} {
			d := experiment.Draft{Nodes: 2, Endpoints: 5, Load: load, Work: time.Millisecond, Distribution: distribution, Algorithms: []string{"random", "subset(3:lc)"}}
			text, err := d.Write("dir/new.yaml")
			if err != nil {
				t.Fatal(err)
			}
			x, err := experiment.Parse("new.yaml", ".", text)
			if err != nil {
				t.Fatal(err)
			}
			if x.Metadata.Name != "new" {
				t.Errorf("the name is %q", x.Metadata.Name)
			}
			x.Seeds = 2
			results, err := (&experiment.Runner{Experiment: x, Backend: experiment.Simulate{Cells: 2}, Dir: t.TempDir(), Version: "test"}).Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if warnings := results.Run.Warnings; len(warnings) > 0 {
				t.Errorf("%s at %v: %q", distribution, load, warnings)
			}
		}
	}
}
