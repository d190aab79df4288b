package decision

// Choose decides the packet again by the same table, with a draw in the middle of the share of the endpoint at position
// i in ServicePort.Endpoints. It fails if the flow could not get that endpoint. A flow bound by affinity can only get
// its own endpoint.
func Choose(t *Table, p *Packet, d *Decision, i uint32) (_ Decision, ok bool) {
	switch {
	case d.Verdict != DNAT:
		return Decision{}, false
	case d.Reason == Bound:
		return *d, i == d.Index
	}
	usable := d.ServicePort.Usable[d.Policy]
	for k, u := range usable {
		if u == i {
			return Decide(t, p, loaded((float64(k)+0.5)/float64(len(usable))), nil, nil), true
		}
	}
	return Decision{}, false
}

// loaded is a Rand that always returns the same number.
type loaded float64

func (l loaded) Float64() float64 { return float64(l) }
