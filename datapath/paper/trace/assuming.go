package trace

import (
	"fmt"
	"net/netip"
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
				usual = outcomes(explored(m, q, start, q.Packet))
			}
			p := q.Packet
			p.InInterface = o.In
			if other := explored(m.On(o.Host), q, start, p); outcomes(other) != usual {
				decisive = true
				t.Conditions = append(t.Conditions, fmt.Sprintf("unless %s, %s", n.Claim, endText(other)))
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

// explored are the ways of a packet.
func explored(m *netfilter.Machine, q *Question, start *netfilter.Start, p iptables.Packet) []netfilter.Way {
	ways, _ := m.ExploreFrom(start, p, func() *netfilter.State { return &netfilter.State{Began: q.Time} }, DefaultLimit, netfilter.NewWork())
	return ways
}

// endText says how ways end, in other words than the verdict of the trace.
func endText(ways []netfilter.Way) string {
	const few = 2
	var ends []string
	for _, w := range ways {
		end := w.Why
		switch {
		case w.Verdict == netfilter.Stopped:
			end = "the end is open"
		case w.By != nil && w.By.Line > 0:
			end = fmt.Sprintf("line %d decides", w.By.Line)
		case w.Verdict == netfilter.Sent:
			end = "the packet leaves the host for " + w.Packet.DestinationText()
		case w.Verdict == netfilter.Delivered:
			end = "the packet is for a program on the host itself"
		}
		if !slices.Contains(ends, end) {
			ends = append(ends, end)
		}
	}
	if len(ends) > few || slices.Contains(ends, "") {
		return "the packet ends otherwise"
	}
	return strings.Join(ends, ", or ")
}

// outcomes are how ways end: verdicts with their rules, and destinations. Devices
// and source addresses make no difference, as their names and numbers may be made up.
func outcomes(ways []netfilter.Way) string {
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

// addConditions adds what the result depends on besides the rules.
func (t *Trace) addConditions(m *netfilter.Machine, q *Question, start *netfilter.Start, ways []netfilter.Way) {
	if other := m.Reversed(); other != nil && q.Rand == nil {
		if here, there := outcomes(explored(m, q, start, q.Packet)), outcomes(explored(other, q, start, q.Packet)); here != there {
			t.Assuming = append(t.Assuming, "rules of one priority at a hook come in the order of the files")
			t.Conditions = append(t.Conditions, "rules of several files are at the same hooks, and the kernel runs those of one priority in the order in which their tables were made, which files do not show: in the other order, the packet ends otherwise (give the files in the other order; if they are of two hosts, those of one)")
		}
	}
	var known []netip.Addr
	for _, w := range ways {
		to := w.Packet.Destination.Addr()
		if route, other, is := m.OnlyDefault(to); is && w.Verdict == netfilter.Sent && !slices.Contains(known, to) {
			known = append(known, to)
			t.Conditions = append(t.Conditions, fmt.Sprintf("the host has no route of its own to %s, as it has to %s (via %s): whether the packet arrives is up to the default gateway, %s", to, other.Destination, other.Via, route.Via))
		}
	}
	for _, w := range ways {
		if n, is := m.Unanswered(w.Packet.Destination.Addr()); is && w.Verdict == netfilter.Sent && !slices.Contains(known, n.Addr) {
			known = append(known, n.Addr)
			t.Conditions = append(t.Conditions, fmt.Sprintf("%s, to which the host sends the packet by %s, did not answer when the host last asked for its hardware address (state %s of ip neigh)", n.Addr, n.Interface, n.Unanswered))
		}
	}
	for _, w := range ways {
		sysctl := "net.bridge.bridge-nf-call-iptables"
		if q.Packet.Destination.Addr().Is6() {
			sysctl = "net.bridge.bridge-nf-call-ip6tables"
		}
		device := q.Packet.InInterface
		from, to := q.Packet.Source.Addr(), w.Packet.Destination.Addr()
		what := ""
		switch {
		case device == "" || netfilter.OfOnePod(device):
		case w.Verdict == netfilter.Sent && w.Out == device && w.Entry != nil && w.Entry.Translated() && !w.Entry.SNAT:
			what = "the reply stays on it, and is not translated back"
		case (w.Verdict == netfilter.Dropped || w.Verdict == netfilter.Rejected) && to == q.Packet.Destination.Addr() && netfilter.MayBridge(device) && m.DeviceTo(to) == device:
			what = "the packet stays on it, and does not pass the rules"
		}
		passes, known := m.Bridge(device)
		switch {
		case what == "" || passes:
			continue
		case known:
			what = fmt.Sprintf("as it is a bridge and the sysctl %s is not 1, %s", sysctl, what)
		case netfilter.MayBridge(device):
			what = fmt.Sprintf("if it is a bridge, %s unless the sysctl %s is 1", what, sysctl)
		default:
			what = "if they reach each other past this host, as in one network, the reply is not translated back"
		}
		t.Conditions = append(t.Conditions, fmt.Sprintf("%s and %s are both behind %s: %s", from, to, device, what))
		return
	}
}
