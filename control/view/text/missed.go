package text

import (
	"cmp"
	"fmt"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Missed is the message that records are missing; of a history, with their time in the zone.
func Missed(m *observe.Missed, zone *time.Location) string {
	at := ""
	if m.From != nil && m.To != nil {
		at = fmt.Sprintf(" from %s to %s", dayAndTime(*m.From, zone), dayAndTime(*m.To, zone))
	}
	switch {
	case m.Why == observe.MissedNotRecorded:
		return m.Node + ": nothing was recorded" + at
	case m.Why == observe.MissedUnreachable && at != "":
		return "node " + m.Node + " was unreachable at times" + at + ": records are missing"
	case m.Why == observe.MissedUnreachable:
		return "node " + m.Node + " is unreachable: no records from it until it answers"
	case m.Why == observe.MissedNoDaemon:
		return "node " + m.Node + " has no daemon: its flows are not recorded"
	}
	why := map[string]string{
		observe.MissedSlow:       "this client was too slow",
		observe.MissedSampled:    "the rate limit of the stream was reached",
		observe.MissedLost:       "buffer overflow on the node",
		observe.MissedNotWritten: "they could not be written to the history",
	}[m.Why]
	node := ""
	if m.Node != "" {
		node = m.Node + ": "
	}
	are := " are"
	if m.Missed == 1 {
		are = " is"
	}
	return node + quantity.Count(m.Missed, "record") + are + " missing" + cmp.Or(at, " here") + ": " + cmp.Or(why, m.Why)
}

// dayAndTime is a time of a history, which may be days ago.
func dayAndTime(at time.Time, zone *time.Location) string {
	return at.In(cmp.Or(zone, time.Local)).Format("2006-01-02 15:04:05")
}
