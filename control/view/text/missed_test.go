package text_test

import (
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

func TestMissed(t *testing.T) {
	from := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	to := from.Add(10 * time.Minute)
	for _, tt := range []struct {
		missed observe.Missed
		want   string
	}{
		{observe.Missed{Missed: 1, Why: observe.MissedSlow}, "1 record is missing here: this client was too slow"},
		{observe.Missed{Node: "node-a", Missed: 5, Why: observe.MissedSampled}, "node-a: 5 records are missing here: the rate limit of the stream was reached"},
		{observe.Missed{Node: "node-a", Missed: 7, Why: observe.MissedLost}, "node-a: 7 records are missing here: buffer overflow on the node"},
		{observe.Missed{Node: "node-a", Why: observe.MissedNoDaemon}, "node node-a has no daemon: its flows are not recorded"},
		{observe.Missed{Node: "node-a", Why: observe.MissedUnreachable}, "node node-a is unreachable: no records from it until it answers"},
		{observe.Missed{Node: "node-a", Missed: 5, Why: observe.MissedLost, From: &from, To: &to}, "node-a: 5 records are missing from 2026-01-02 03:04:05 to 2026-01-02 03:14:05: buffer overflow on the node"},
		{observe.Missed{Node: "node-a", Why: observe.MissedUnreachable, From: &from, To: &to}, "node node-a was unreachable at times from 2026-01-02 03:04:05 to 2026-01-02 03:14:05: records are missing"},
		{observe.Missed{Node: "node-a", Why: observe.MissedNotRecorded, From: &from, To: &to}, "node-a: nothing was recorded from 2026-01-02 03:04:05 to 2026-01-02 03:14:05"},
		{observe.Missed{Missed: 2, Why: "a later reason"}, "2 records are missing here: a later reason"},
	} {
		if got := text.Missed(&tt.missed, time.UTC); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}
