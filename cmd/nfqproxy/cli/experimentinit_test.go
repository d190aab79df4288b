package cli

import (
	"strings"
	"testing"
)

// TestAskDraft: a question is asked again until its answer is one, and not if a flag has it.
func TestAskDraft(t *testing.T) {
	flags := newExperimentInitCommand().Flags()
	if err := flags.Set("work", "3ms"); err != nil {
		t.Fatal(err)
	}
	var screen strings.Builder
	if err := askDraft(flags, strings.NewReader("many\n20\n\nrandom, ring\n"), &screen); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"endpoints": "20", "load": "0.7", "work": "3ms", "algorithms": "[random,ring]"} {
		if got := flags.Lookup(name).Value.String(); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if strings.Count(screen.String(), "How many endpoints does the service have? [10] ") != 2 || strings.Contains(screen.String(), "How long") || !strings.Contains(screen.String(), "compared? [random,p2c] ") {
		t.Error(screen.String())
	}
	if err := askDraft(newExperimentInitCommand().Flags(), strings.NewReader(""), &screen); err == nil || !strings.Contains(err.Error(), "--endpoints") {
		t.Errorf("without answers: %v", err)
	}
}
