package netns

import (
	"strings"
	"testing"
)

func TestStage(t *testing.T) {
	want := stage{programStage, 4026531840, 2}
	got, err := parseStage(want.String())
	if err != nil || got != want {
		t.Errorf("parseStage(%q) = %v, %v; want %v", want.String(), got, err, want)
	}
	if got, err := parseStage(""); err != nil || got.name != outerStage {
		t.Errorf("parseStage of nothing = %v, %v; want the outer stage", got, err)
	}
	for _, text := range []string{"x", "init", "init,1", "init,x,0", "init,1,x", "init,1,-1", "init,1,1000", "inner,1,0", "init,1,0,0"} {
		if got, err := parseStage(text); err == nil || !strings.Contains(err.Error(), stageVariable) {
			t.Errorf("parseStage(%q) = %v, %v; want an error that names the variable", text, got, err)
		}
	}
}
