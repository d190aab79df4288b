package balance

import (
	"fmt"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Text returns what the algorithm looked at when it picked the decision's endpoint; empty: no
// algorithm did, as with one endpoint, affinity or the random draw of kube-proxy.
func Text(d *decision.Decision) string {
	s := d.ServicePort
	if s == nil || d.Pick.Evidence.Kind <= decision.Only {
		return ""
	}
	text := evidence(d.Pick.Evidence)
	if d.Pick.SatOut > 0 {
		usable, out := s.Usable[d.Policy], d.Pick.FirstOut
		if int(out.Position) < len(usable) {
			text += fmt.Sprintf("; %s ejected for %d s: %s", s.Endpoints[usable[out.Position]].AddrPort, out.Seconds, quantity.Count(int(out.Failures), "failure"))
		}
		if n := int(d.Pick.SatOut) - 1; n > 0 {
			text += fmt.Sprintf(", and %d more", n)
		}
	}
	return strings.TrimPrefix(text, "; ")
}

func evidence(e decision.Evidence) string {
	v := e.Values
	switch e.Kind {
	case decision.DrawnOf:
		return fmt.Sprintf("drawn among %d", v[0])
	case decision.Turn:
		return fmt.Sprintf("turn %d of %d", v[0], v[1])
	case decision.Slot:
		return fmt.Sprintf("slot %d of %d", v[0], v[1])
	case decision.FewestOpen:
		text := fmt.Sprintf("fewest open connections: %d", v[0])
		if v[1] > 0 {
			text += fmt.Sprintf(", %d inactive", v[1])
		}
		return text + weightText(v[2])
	case decision.FewerOpen:
		switch v[2] {
		case 1:
			return fmt.Sprintf("the only one of the sample, %d open", v[0])
		case 2:
			return fmt.Sprintf("%d open against %d", v[0], v[1])
		}
		return fmt.Sprintf("%d open against at least %d, in a sample of %d", v[0], v[1], v[2])
	case decision.Idle:
		return "no open connection"
	case decision.ShortestDelay:
		return fmt.Sprintf("shortest expected delay: %d open", v[0]) + weightText(v[2])
	case decision.LowerCost:
		return fmt.Sprintf("cost %s against %s", micros(v[0]), micros(v[1]))
	case decision.Noted:
		return e.Note
	}
	return ""
}

func weightText(w uint32) string {
	if w <= 1 {
		return ""
	}
	return fmt.Sprintf(", weight %d", w)
}

func micros(v uint32) string { return (time.Duration(v) * time.Microsecond).String() }
