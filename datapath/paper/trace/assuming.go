package trace

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// addGuesses adds the guesses about the host that concern the packet, and finds those that its
// verdicts depend on: on a host where such a guess is wrong, the packet ends otherwise.
func (t *Trace) addGuesses(m *netfilter.Machine, q *Question, start *netfilter.Start, ways []netfilter.Way) {
	usual := ""
	known := slices.ContainsFunc(ways, func(w netfilter.Way) bool { return w.Verdict != netfilter.Stopped })
	for _, n := range q.Notes {
		if n.About.IsValid() && !occurs(ways, n.About) {
			continue
		}
		decisive := false
		for _, o := range n.Otherwise {
			if !known {
				break
			}
			if usual == "" {
				usual = outcomes(m, q, start, q.Packet)
			}
			p := q.Packet
			p.InInterface = o.In
			if outcomes(m.On(o.Host), q, start, p) != usual {
				decisive = true
				break
			}
		}
		if decisive {
			t.Assuming = append(t.Assuming, n.Claim)
		}
		if decisive || !n.Silent {
			t.Notes = append(t.Notes, n.Text)
		}
	}
}

// outcomes are how the ways of a packet end: verdicts with their rules, and destinations. Devices
// and source addresses make no difference, as their names and numbers may be made up.
func outcomes(m *netfilter.Machine, q *Question, start *netfilter.Start, p iptables.Packet) string {
	ways, _ := m.ExploreFrom(start, p, func() *netfilter.State { return &netfilter.State{Began: q.Time} }, DefaultLimit, netfilter.NewWork())
	var ends []string
	for _, w := range ways {
		end := fmt.Sprintf("%s %s", w.Verdict, w.Packet.DestinationText())
		switch {
		case w.By != nil:
			end += fmt.Sprintf(" %s:%d", w.By.File, w.By.Line)
		case w.Verdict == netfilter.Dropped || w.Verdict == netfilter.Rejected:
			end += " " + w.Why
		}
		ends = append(ends, end)
	}
	slices.Sort(ends)
	return strings.Join(slices.Compact(ends), "\n")
}
