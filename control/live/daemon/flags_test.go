package daemon

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestObserveRefusesDecisions: each flag about decisions is an error beside --observe.
func TestObserveRefusesDecisions(t *testing.T) {
	for _, name := range append([]string{""}, decidingFlags...) {
		var f Flags
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.Add(set)
		if name != "" {
			flag := set.Lookup(name)
			if flag == nil {
				t.Errorf("there is no flag --%s", name)
				continue
			}
			flag.Changed = true
		}
		if err := f.checkObserve(); (err == nil) != (name == "") || err != nil && !strings.Contains(err.Error(), "--"+name+" ") {
			t.Errorf("--observe with %q: %v", name, err)
		}
	}
}
