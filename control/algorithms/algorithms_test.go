package algorithms_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/algorithms"
)

// TestScripts: a flag that names an algorithm takes a script by its path, and loads it.
func TestScripts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.star")
	if err := os.WriteFile(file, []byte("def pick(candidates, flow, state):\n    return 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args    []string
		chosen  string
		shadows []string
	}{
		{[]string{"--balance", "script:" + file}, "script:mine.star", nil},
		{[]string{"--balance", "eject(script:" + file + ")"}, "eject(script:mine.star)", nil},
		{[]string{"--balance", "lc", "--shadow", "p2c,script:" + file}, "lc", []string{"p2c", "script:mine.star"}},
		{[]string{"--balance", "script:" + file, "--shadow", "eject(script:" + file + ")"}, "script:mine.star", []string{"eject(script:mine.star)"}},
		{[]string{"--balance-script", file}, "", nil},
		{[]string{"--balance-script", file, "--balance", "script:mine.star"}, "script:mine.star", nil},
	} {
		var f algorithms.Flags
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		f.Add(flags, "")
		f.AddShadow(flags)
		if err := flags.Parse(tt.args); err != nil {
			t.Fatal(err)
		}
		a, err := f.Load(nil)
		if err != nil {
			t.Errorf("%v: %v", tt.args, err)
			continue
		}
		var shadows []string
		for _, s := range a.Shadows {
			shadows = append(shadows, s.Name)
		}
		if a.Chosen != tt.chosen || !slices.Equal(shadows, tt.shadows) || len(a.Scripts) != 1 {
			t.Errorf("%v: %q, shadows %q, %d scripts", tt.args, a.Chosen, shadows, len(a.Scripts))
		}
		if got, err := a.Canonical("script:mine.star"); got != "script:mine.star" || err != nil { // as an annotation names it
			t.Errorf("%v: %q, %v", tt.args, got, err)
		}
	}
	var f algorithms.Flags
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.Add(flags, "")
	f.AddShadow(flags)
	_ = flags.Parse([]string{"--shadow", "script:" + file + ".none"})
	if _, err := f.Load(nil); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no such file: %v", err)
	}
}
