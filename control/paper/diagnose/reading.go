package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// reading is one of the ways in which the packet may go, as far as the objects show. The zero reading is that of the
// proxies as they are configured, in a network that changes no addresses.
type reading struct {
	masked   bool // the first node masquerades the packet, which it lets pass
	detected bool // the proxies detect Pods
}

// otherReading is a reading that the objects do not exclude.
type otherReading struct {
	reading
	condition
}

// condition is what makes a reading the right one.
type condition struct{ holds, fails, check string }

// otherReadings are the readings that may lead to another result than the zero reading, which was followed. In a lab that
// is the only one: its network masquerades nothing, and its proxies are known.
func (w *inquiry) otherReadings() (list []otherReading) {
	last := &w.hops[len(w.hops)-1]
	if first := &w.hops[0]; len(w.hops) > 1 && first.Node != "" && w.isPod() && w.objects.Lab == nil {
		list = append(list, otherReading{reading{masked: true}, condition{
			holds: fmt.Sprintf("%s masquerades what its Pods send to other nodes", first.Node),
			fails: fmt.Sprintf("%s keeps the source of what its Pods send to other nodes", first.Node),
			check: fmt.Sprintf("look at the rules of the network plugin in nat POSTROUTING of %s: nfqproxy trace follows the packet", first.Node),
		}})
	}
	if w.objects.Lab == nil && !w.table(last.Node).Node().Detector.Implemented(decision.FamilyOf(last.packet.Source.Addr())) && w.proxy == nil {
		list = append(list, otherReading{reading{detected: true}, condition{
			holds: "the proxy detects Pods (--cluster-cidr, which is not given)",
			fails: "the proxy does not detect Pods",
			check: "give --cluster-cidr if kube-proxy has it",
		}})
	}
	return list
}

// isPod reports whether the source has an address of the network of Pods.
func (w *inquiry) isPod() bool { return !w.from.outside && w.from.node == "" }

// tableOf is the service table of a node, in the reading.
func (w *inquiry) tableOf(node string) *decision.Table {
	t := w.table(node)
	if !w.reading.detected {
		return t
	}
	detecting := *t.Node()
	detecting.Detector = decision.Detector{}
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if source, ok := decision.AddressOf(w.from.addrs, decision.FamilyOf(a)); ok && w.isPod() {
			a = source
		}
		detecting.Detector.CIDRs = append(detecting.Detector.CIDRs, netip.PrefixFrom(a, a.BitLen()))
	}
	return t.Next(t.Built(), detecting)
}

// compareReading compares the result with that of another reading, and tells what differs.
func (w *inquiry) compareReading(other *inquiry, c condition) {
	a, b := w.answer, other.answer
	f := Finding{Code: Depends, Do: c.check}
	same := func(a, b Endpoint) bool { return a.Address == b.Address && (a.Problem == nil) == (b.Problem == nil) }
	switch {
	case a.Works != b.Works:
		a.Unless = cmp.Or(a.Unless, c.holds)
		f.Text = fmt.Sprintf("if %s, %s", c.holds, other.outcome())
	case !a.Works && (a.Cause.Code == b.Cause.Code || a.Cause.Code == NotShown), a.Works && slices.EqualFunc(a.Endpoints, b.Endpoints, same):
		return
	case !a.Works && b.Cause.Code == NoLocalEndpoints:
		// Both causes stand; this one is in an object, and so the one to begin with.
		f.Text = fmt.Sprintf("if %s, %s", c.fails, w.outcome())
		b.Unless = a.Unless
		w.answer = b
	default:
		f.Text = fmt.Sprintf("if %s, %s", c.holds, other.outcome())
	}
	w.note(f)
}

// outcome is the result as a clause.
func (w *inquiry) outcome() string {
	if f := w.answer.Cause; f != nil {
		return fmt.Sprintf("it does not work: %s (%s)", f.Text, f.Code)
	}
	var answering []string
	for i := range w.answer.Endpoints {
		if e := &w.answer.Endpoints[i]; e.Problem == nil {
			answering = append(answering, e.Address)
		}
	}
	if len(answering) == 0 {
		return "it works"
	}
	return "it reaches " + nearest.Few(answering)
}
