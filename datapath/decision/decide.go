// Package decision decides what happens to the first packet of a flow, as
// kube-proxy's iptables chains would.
//
// [Decide] is a pure function of a [Table], a [Packet], randomness and the clients'
// affinity. The live datapath, the lab, the simulator, tests and benchmarks all
// call it; it does no I/O, reads no clock, keeps no state and allocates nothing.
// Package chains tells the same story rule by rule.
package decision

import "net/netip"

// Decide says what becomes of the flow that starts with the packet. It draws
// from r at most once, and only where there is more than one endpoint. The
// endpoint is the one at position floor(draw * n): the same distribution as
// kube-proxy's n-1 rules with probabilities 1/n, 1/(n-1), ... 1/2, for one draw
// instead of up to n-1. a may be nil: nobody is bound.
func Decide(t *Table, p *Packet, r Rand, a Affinity) Decision {
	w := walk{t, p, r, a, Decision{Generation: t.generation}}
	w.nat()
	if w.d.Verdict != DNAT {
		w.filter()
	}
	return w.d
}

// walk is the state of one decision.
type walk struct {
	t *Table
	p *Packet
	r Rand
	a Affinity
	d Decision
}

// nat goes through KUBE-SERVICES. Where a service's chains end without choosing an
// endpoint, the packet comes back and goes on to KUBE-NODEPORTS, the last rule.
func (w *walk) nat() {
	if tg := w.t.byAddress(w.p); tg != nil {
		w.enter(tg.service, tg.entry)
		if w.d.Verdict == DNAT {
			return
		}
	}
	if s := w.t.byNodePort(w.p); s != nil && w.t.OpensNodePorts(w.p.Destination.Addr()) {
		before := w.d
		w.enter(s, EntryNodePort)
		if w.d.Verdict != DNAT && before.ServicePort != nil {
			// The filter rules of the address come first; the mark stays.
			before.Mark = w.d.Mark
			w.d = before
		}
	}
}

// enter goes through the chains of one service port.
func (w *walk) enter(s *ServicePort, e Entry) {
	w.d.ServicePort, w.d.Entry = s, e
	switch {
	case !s.HasEndpoints: // no chains
	case e == EntryClusterIP:
		if len(s.Usable[s.InternalPolicy]) > 0 {
			w.markInternal()
			w.balance(BranchInternal, s.InternalPolicy)
		}
	case e == EntryLoadBalancer && s.Restricted() && !w.allowed(s):
		// KUBE-FW ends without a jump.
	default:
		w.external(s)
	}
}

// markInternal is the first rule of the chain of a ClusterIP.
func (w *walk) markInternal() {
	switch f := w.d.ServicePort.Family; {
	case w.t.node.MasqueradeAll:
		w.mark(MarkAll)
	case w.t.node.Detector.Implemented(f) && !w.t.node.Detector.IsLocal(w.p):
		w.mark(MarkOutside)
	}
}

// allowed goes through KUBE-FW.
func (w *walk) allowed(s *ServicePort) bool {
	src := w.p.Source.Addr()
	for _, r := range s.SourceRanges {
		if r.Contains(src) {
			return true
		}
	}
	if !s.AllowsNode(w.t.node.IP(s.Family)) {
		return false
	}
	// The node's own packets to a load balancer IP that is local to it have that
	// IP as their source.
	for _, ip := range s.LoadBalancerIPs {
		if ip == src {
			return true
		}
	}
	return false
}

// AllowsNode says whether the source ranges contain the node's own address.
func (s *ServicePort) AllowsNode(ip netip.Addr) bool {
	for _, r := range s.SourceRanges {
		if ip.IsValid() && r.Contains(ip) {
			return true
		}
	}
	return false
}

// external goes through KUBE-EXT.
func (w *walk) external(s *ServicePort) {
	if s.ExternalPolicy == Cluster {
		w.mark(MarkExternal)
		w.balance(BranchExternal, Cluster)
		return
	}
	if d := &w.t.node.Detector; d.Implemented(s.Family) && d.IsLocal(w.p) {
		w.balance(BranchPodShortcut, Cluster)
		return
	}
	if w.t.IsLocal(w.p.Source.Addr()) {
		w.mark(MarkLocal)
		w.balance(BranchNodeShortcut, Cluster)
		return
	}
	w.balance(BranchExternal, Local)
}

// balance goes through KUBE-SVC or KUBE-SVL: affinity first, then the draw.
func (w *walk) balance(b Branch, policy Policy) {
	s := w.d.ServicePort
	w.d.Branch, w.d.Policy = b, policy
	usable := s.Usable[policy]
	if len(usable) == 0 {
		return
	}
	if s.AffinitySeconds > 0 && w.a != nil {
		for _, i := range usable {
			if w.a.Bound(s, s.Endpoints[i].AddrPort, w.p.Source.Addr()) {
				w.choose(i, Bound)
				return
			}
		}
	}
	k := 0
	if n := len(usable); n > 1 {
		w.d.Draw, w.d.Drawn = w.r.Float64(), true
		k = min(int(w.d.Draw*float64(n)), n-1)
	}
	w.choose(usable[k], Balanced)
}

// choose goes through KUBE-SEP and, marked, through KUBE-POSTROUTING.
func (w *walk) choose(i uint32, why Reason) {
	w.d.Verdict, w.d.Reason, w.d.Index = DNAT, why, i
	ep := w.d.Endpoint().Addr()
	if ep == w.p.Source.Addr() && !w.t.node.NoHairpinMasquerade {
		w.mark(MarkHairpin)
	}
	// A packet from elsewhere for an endpoint on the node itself is delivered by
	// way of INPUT: it never comes to the MASQUERADE rule.
	w.d.Masquerade = w.d.Mark != NotMarked && (w.p.Local || !w.t.IsLocal(ep))
}

func (w *walk) mark(m Mark) {
	if w.d.Mark == NotMarked {
		w.d.Mark = m
	}
}

// filter goes through the filter table with a packet that was not translated.
func (w *walk) filter() {
	d, t, p := &w.d, w.t, w.p
	s := d.ServicePort
	// KUBE-FIREWALL: open node ports on loopback addresses must not open what listens there to others.
	if dst := p.Destination.Addr(); p.Local && t.node.LocalhostNodePorts && dst.Is4() && dst.IsLoopback() && !p.Source.Addr().IsLoopback() {
		d.Verdict, d.Reason = Drop, ForeignLocalnet
		return
	}
	if s == nil {
		// The rules about node ports without endpoints hold on every address of the node,
		// whether node ports are open on it or not.
		if s = t.byNodePort(p); s == nil || !t.IsLocal(p.Destination.Addr()) || s.ExternalRefusal() == 0 {
			return
		}
		d.ServicePort, d.Entry = s, EntryNodePort
	}
	switch {
	case d.Entry == EntryClusterIP:
		if !s.HasEndpoints {
			d.Verdict, d.Reason = Reject, NoEndpoints
		} else {
			d.Branch, d.Policy = BranchInternal, s.InternalPolicy
			d.Verdict, d.Reason = Drop, NoLocalEndpoints
		}
		// KUBE-SERVICES is not looked at in INPUT.
		if !p.Local && t.IsLocal(p.Destination.Addr()) {
			d.Verdict, d.Reason = Accept, NotFiltered
			w.refuseNodePort()
		}
	case d.Entry == EntryLoadBalancer && s.Restricted():
		// All that came through the firewall chain was translated, or came to
		// KUBE-EXT under policy Local without local endpoints: dropped by
		// KUBE-PROXY-FIREWALL in any case.
		d.Verdict, d.Reason = Drop, SourceNotAllowed
		if d.Branch != BranchNone {
			d.Reason = NoLocalEndpoints
		}
	default:
		d.Reason = s.ExternalRefusal()
		d.Verdict = Drop
		if d.Reason == NoEndpoints {
			d.Verdict = Reject
		}
		// KUBE-EXTERNAL-SERVICES is looked at in INPUT and FORWARD, not in OUTPUT.
		if p.Local && !t.IsLocal(p.Destination.Addr()) {
			d.Verdict, d.Reason = Accept, NotFiltered
		}
	}
}

// refuseNodePort refuses a packet to an address of the node whose port is a node port
// without usable endpoints: INPUT looks at KUBE-EXTERNAL-SERVICES.
func (w *walk) refuseNodePort() {
	s := w.t.byNodePort(w.p)
	if s == nil {
		return
	}
	if why := s.ExternalRefusal(); why != 0 {
		w.d.ServicePort, w.d.Entry, w.d.Branch, w.d.Reason = s, EntryNodePort, BranchNone, why
		w.d.Verdict = Drop
		if why == NoEndpoints {
			w.d.Verdict = Reject
		}
	}
}
