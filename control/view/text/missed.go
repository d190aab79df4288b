package text

import (
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Missed is the message that records are missing.
func Missed(m *observe.Missed) string {
	switch m.Why {
	case observe.MissedUnreachable:
		return "node " + m.Node + " is unreachable: its records are missing from here on"
	case observe.MissedNoDaemon:
		return "node " + m.Node + " has no daemon: nobody records its flows"
	}
	why := map[string]string{
		observe.MissedSlow:    "this client was too slow",
		observe.MissedSampled: "the rate limit of the stream was reached",
		observe.MissedLost:    "buffer overflow on the node",
	}[m.Why]
	if why == "" {
		why = m.Why
	}
	node := ""
	if m.Node != "" {
		node = m.Node + ": "
	}
	are := " are"
	if m.Missed == 1 {
		are = " is"
	}
	return node + quantity.Count(m.Missed, "record") + are + " missing here: " + why
}
