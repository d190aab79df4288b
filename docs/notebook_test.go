package docs

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// TestNotebook: the cells of the notebook print what they have, from results of this program.
func TestNotebook(t *testing.T) {
	pythons := []string{"python3", "/usr/bin/python3"} // the second one is that of packages of the distribution
	i := slices.IndexFunc(pythons, func(python string) bool { return exec.Command(python, "-c", "import pandas, scipy").Run() == nil })
	if i < 0 {
		netnstest.Missing(t, "pandas and SciPy for python3 (Debian: python3-pandas python3-scipy)")
	}
	var notebook struct {
		Cells []struct {
			Type    string   `json:"cell_type"`
			Source  []string `json:"source"`
			Outputs []struct {
				Text []string `json:"text"`
			} `json:"outputs"`
		} `json:"cells"`
	}
	if err := json.Unmarshal([]byte(e2etest.ReadFile(t, "how-to/analyse-results.ipynb")), &notebook); err != nil {
		t.Fatal(err)
	}
	var code, want strings.Builder
	for _, c := range notebook.Cells {
		if c.Type != "code" {
			continue
		}
		code.WriteString(strings.Join(c.Source, "") + "\n")
		for _, o := range c.Outputs {
			want.WriteString(strings.Join(o.Text, ""))
		}
	}
	x, err := experiment.Load("heavy-tail")
	if err != nil {
		t.Fatal(err)
	}
	x.Seeds = 5
	dir := t.TempDir()
	r := experiment.Runner{Experiment: x, Backend: experiment.Simulate{Cells: 2}, Dir: filepath.Join(dir, "results"), Version: "test"}
	if _, err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(pythons[i], "-c", code.String())
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if out, err := cmd.Output(); err != nil || string(out) != want.String() || strings.Count(code.String(), "print(") < 4 {
		t.Errorf("%v\n%s\nthe cells print\n%s\nand in the notebook\n%s", err, &stderr, out, &want)
	}
}
