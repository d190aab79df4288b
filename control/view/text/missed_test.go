package text_test

import (
	"testing"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

func TestMissed(t *testing.T) {
	for _, tt := range []struct {
		missed observe.Missed
		want   string
	}{
		{observe.Missed{Missed: 1, Why: observe.MissedSlow}, "1 record is missing here: this client was too slow"},
		{observe.Missed{Node: "node-a", Missed: 5, Why: observe.MissedSampled}, "node-a: 5 records are missing here: the rate limit of the stream was reached"},
		{observe.Missed{Node: "node-a", Missed: 7, Why: observe.MissedLost}, "node-a: 7 records are missing here: buffer overflow on the node"},
		{observe.Missed{Node: "node-a", Why: observe.MissedNoDaemon}, "node node-a has no daemon: nobody records its flows"},
		{observe.Missed{Node: "node-a", Why: observe.MissedUnreachable}, "node node-a is unreachable: its records are missing from here on"},
		{observe.Missed{Missed: 2, Why: "a later reason"}, "2 records are missing here: a later reason"},
	} {
		if got := text.Missed(&tt.missed); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}
