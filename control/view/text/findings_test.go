package text_test

import (
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

// TestNoFinding: the first line says no more than is known of the connections.
func TestNoFinding(t *testing.T) {
	for _, tt := range []struct {
		judged, partly int
		want           string
	}{
		{12, 0, "nothing is wrong, as far as nfqproxy can see"},
		{12, 1, "no full verdict about 1 connection of 12: some of their ends are not known; otherwise nothing is wrong, as far as nfqproxy can see"},
		{2, 0, "no verdict about 10 connections of 12: their ends are not known; with the others nothing is wrong, as far as nfqproxy can see"},
		{2, 1, "no verdict about 10 connections of 12: their ends are not known; no full verdict about 1 connection of 12: some of their ends are not known; otherwise nothing is wrong, as far as nfqproxy can see"},
		{0, 0, "no connection to a service could be followed to its end: no verdict"},
	} {
		e := &diagnose.Examined{Connections: 12, Judged: tt.judged, Partly: tt.partly}
		got, _, _ := strings.Cut(text.Style{}.Findings(nil, []*diagnose.Examined{e}, text.FindingOptions{}), "\n")
		if got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}
