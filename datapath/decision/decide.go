// Package decision decides what happens to the first packet of a flow, as
// kube-proxy's iptables chains would.
//
// [Decide] is a pure function of a [Table], a [Packet], randomness and the clients' affinity. The
// live datapath, the lab, the simulator, tests and benchmarks all call it; it does no I/O, reads
// no clock, keeps no state and allocates nothing; a [Balancer] may. Package kubechains shows the same decision rule
// by rule.
//
// It is a ground package.
package decision

import (
	"net/netip"
	"slices"
)

// Decide returns the decision for the flow that starts with the packet. It reads r at most once, and only if there is
// more than one endpoint. The endpoint is the one at position floor(draw * n): the same distribution as kube-proxy's
// n-1 rules with probabilities 1/n, 1/(n-1), ... 1/2, for one draw instead of up to n-1. a may be nil: no client is
// bound. b selects the endpoints of service ports with their own algorithm ([ServicePort.Balance]); it may read r more
// often. If b is nil, these endpoints are drawn like all others.
func Decide(t *Table, p *Packet, r Rand, a Affinity, b Balancer) Decision {
	w := walk{t: t, p: p, r: r, a: a, b: b, d: Decision{Generation: t.generation}}
	w.nat()
	if w.d.Verdict != DNAT {
		w.filter()
	}
	return w.d
}

// ToEndpoint returns the decision for a flow of which only the endpoint is known, because the kernel's copy of the
// table (by is ByKernel) or another service proxy (ByProxy) selected it. It reports false if the table does not lead to
// the endpoint; then ServicePort is that of the packet's destination, if there is one.
func ToEndpoint(t *Table, p *Packet, endpoint netip.AddrPort, by Reason) (Decision, bool) {
	w := walk{t: t, p: p, to: endpoint, d: Decision{Generation: t.generation}}
	w.nat()
	w.d.Reason = by
	return w.d, w.d.Verdict == DNAT
}

// walk is the state of one decision.
type walk struct {
	t *Table
	p *Packet
	r Rand
	a Affinity
	b Balancer
	// to is the endpoint that was selected; invalid: select one.
	to netip.AddrPort
	d  Decision
}

// nat goes through KUBE-SERVICES. If a service's chains end without selecting an endpoint, the
// packet returns and continues with the next rule for its address, and with KUBE-NODEPORTS at the
// end.
func (w *walk) nat() {
	for c := w.t.byAddress(w.p); c != nil; c = c.next {
		if w.enter(c); w.d.Verdict == DNAT {
			return
		}
	}
	if c := w.t.byNodePort(w.p); c != nil && w.t.OpensNodePorts(w.p.Destination.Addr()) {
		for ; c != nil && w.d.Verdict != DNAT; c = c.next {
			w.enter(c)
		}
	}
}

// enter goes through the chains of one service port.
func (w *walk) enter(c *frontend) {
	s, e := c.service, c.entry
	w.d.ServicePort, w.d.Entry, w.d.Branch, w.d.Policy = s, e, BranchNone, Cluster
	switch {
	case !s.HasEndpoints: // no chains
	case e == EntryClusterIP:
		w.d.Branch, w.d.Policy = BranchInternal, s.InternalPolicy
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
	// The node's own packets to a local load balancer IP have that IP as their source.
	src := w.p.Source.Addr()
	return s.Allows(src) || s.Allows(w.t.node.IP(s.Family)) && slices.Contains(s.LoadBalancerIPs, src)
}

// Allows reports whether the source ranges contain the address.
func (s *ServicePort) Allows(a netip.Addr) bool {
	for _, r := range s.SourceRanges {
		if r.Contains(a) {
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
	if w.to.IsValid() {
		for _, i := range usable {
			if s.Endpoints[i].AddrPort == w.to {
				w.choose(i, ByKernel)
				return
			}
		}
		return
	}
	if s.AffinitySeconds > 0 && w.a != nil {
		for k, i := range usable {
			if w.a.Bound(s, s.Endpoints[i].AddrPort, w.p.Source.Addr()) {
				if s.Balance != "" && w.b != nil {
					w.d.Pick = w.b.Take(s, policy, uint32(k))
				}
				w.choose(i, Bound)
				return
			}
		}
	}
	k := 0
	switch n := len(usable); {
	case s.Balance != "" && w.b != nil:
		w.d.Pick = w.b.Pick(s, policy, w.p, w.r)
		w.d.Draw, w.d.Drawn = w.d.Pick.Draw, w.d.Pick.Drawn
		k = min(int(w.d.Pick.Position), n-1)
	case n > 1:
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
	// A packet from elsewhere to an endpoint on the node itself is delivered through INPUT: it
	// never reaches the MASQUERADE rule.
	w.d.Masquerade = w.d.Mark != NotMarked && (w.p.Local || !w.t.IsLocal(ep))
}

func (w *walk) mark(m Mark) {
	if w.d.Mark == NotMarked {
		w.d.Mark = m
	}
}

// filter goes through the filter table with a packet that was not translated.
func (w *walk) filter() {
	t, p, dst := w.t, w.p, w.p.Destination.Addr()
	// KUBE-FIREWALL: open node ports on loopback addresses must not expose local listeners to
	// other hosts.
	if p.Local && t.node.LocalhostNodePorts && dst.Is4() && dst.IsLoopback() && !p.Source.Addr().IsLoopback() {
		w.d.Verdict, w.d.Reason = Drop, ForeignLocalnet
		return
	}
	byAddress, local := t.byAddress(p), t.IsLocal(dst)
	switch {
	case w.refuse(byAddress, proxyFirewall, true):
	// INPUT does not jump to KUBE-SERVICES.
	case (p.Local || !local) && w.refuse(byAddress, services, true):
	// INPUT and FORWARD jump to KUBE-EXTERNAL-SERVICES, OUTPUT does not.
	case (!p.Local || local) && w.refuse(byAddress, externalServices, true):
	// The rules for node ports without endpoints match every address of the node, whether node
	// ports are open on it or not.
	case local && w.refuse(t.byNodePort(p), externalServices, t.OpensNodePorts(dst)):
	case byAddress != nil:
		w.enter(byAddress)
		w.d.Reason = NotFiltered
	default:
		w.d = Decision{Generation: w.d.Generation}
	}
}

// refuse ends the walk if one of the frontends has a rule in the chain that refuses the packet.
// entered: the packet reached the frontends in nat.
func (w *walk) refuse(c *frontend, in chain, entered bool) bool {
	for ; c != nil; c = c.next {
		why := w.refusal(c, in)
		if why == 0 {
			continue
		}
		if entered {
			w.enter(c) // as before: no endpoint is selected
		} else {
			w.d = Decision{ServicePort: c.service, Entry: c.entry, Mark: w.d.Mark, Generation: w.d.Generation}
		}
		w.d.Verdict, w.d.Reason = Drop, why
		if why == NoEndpoints {
			w.d.Verdict = Reject
		}
		return true
	}
	return false
}

// chain is a chain of the filter table that refuses packets.
type chain uint8

const (
	proxyFirewall    chain = iota // KUBE-PROXY-FIREWALL
	services                      // KUBE-SERVICES
	externalServices              // KUBE-EXTERNAL-SERVICES
)

// refusal is the reason for which the frontend's rule in the chain refuses the untranslated packet;
// 0: there is no such rule.
func (w *walk) refusal(c *frontend, in chain) Reason {
	s := c.service
	switch {
	case in == proxyFirewall:
		switch {
		case c.entry != EntryLoadBalancer || !s.Restricted():
			return 0
		case w.allowed(s):
			return NoLocalEndpoints // KUBE-EXT under policy Local skipped it
		}
		return SourceNotAllowed
	case (in == services) != (c.entry == EntryClusterIP):
		return 0
	case in == externalServices:
		return s.ExternalRefusal()
	case !s.HasEndpoints:
		return NoEndpoints
	case len(s.Usable[s.InternalPolicy]) == 0:
		return NoLocalEndpoints
	}
	return 0
}

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
	k := slices.Index(usable, i)
	if k < 0 {
		return Decision{}, false
	}
	return Decide(t, p, loaded((float64(k)+0.5)/float64(len(usable))), nil, nil), true
}

// loaded is a Rand that always returns the same number.
type loaded float64

func (l loaded) Float64() float64 { return float64(l) }
