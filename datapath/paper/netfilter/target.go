package netfilter

import (
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// apply applies a rule that matched. leave is set if the chain's other rules are skipped.
func (w *walk) apply(c *chain, r *rule, depth int) (f exit, leave bool) {
	w.target, w.by = r.Target, nil
	if t, ok := r.Target.(iptables.NativeTarget); ok {
		before := w.probability
		found, by, truth := t.Find(&w.Context)
		if before == 0 && w.probability != 0 {
			w.fork()
		}
		switch truth {
		case iptables.False:
			w.addNotFound(c, r, t)
			return 0, false
		case iptables.Unknown:
			return w.unknown(c, r)
		}
		w.target, w.by = found, by
	}
	switch t := w.target.(type) {
	case iptables.Jump:
		return w.jump(c, r, depth)
	case iptables.Goto:
		to := r.destination(c, t.Chain)
		if to == nil {
			return w.missing(c, r)
		}
		w.addRule(c, r, flow.StepJumped)
		return w.chain(to, depth+1), true
	case iptables.Verdict:
		if t == iptables.Drop && proxymode.LeftToCalico(r.Rule) && w.machine.options.Assume == AssumeNothing {
			w.addRule(c, r, flow.StepUnknown)
			w.end(Stopped, r.Rule, LeftToCalico)
			return ended, true
		}
		w.addRule(c, r, flow.StepApplied)
		switch t {
		case iptables.Accept:
			return accepted, true
		case iptables.Return:
			return fellThrough, true
		}
		w.end(Dropped, r.Rule, "")
		return ended, true
	case iptables.Reject:
		w.addRule(c, r, flow.StepApplied)
		w.end(Rejected, r.Rule, "")
		w.result.With = t.With
		if w.result.resets = t.With == iptables.TCPReset && w.resets(); w.result.resets && w.entry != nil {
			w.entry.tcp.state = tcpClosed // nf_ct_set_closing
		}
		return ended, true
	case iptables.Tarpit:
		return w.drop(c, r, "TARPIT, a module that is not part of the kernel, replies to TCP itself")
	case iptables.Synproxy:
		return w.drop(c, r, "synproxy replies to it itself, and connects to the server when the client has acknowledged that")
	case iptables.NFQueue:
		return w.queue(c, r, t)
	case iptables.TProxy:
		return w.tproxy(c, r, t)
	case iptables.DNAT, iptables.SNAT, iptables.Masquerade, iptables.Redirect, iptables.Netmap:
		return w.nat(c, r)
	case iptables.UnknownTarget:
		if !t.Continues() {
			return w.unknown(c, r)
		}
	}
	w.addRule(c, r, w.change(r))
	return 0, false
}

// change applies targets after which the packet continues with the next rule.
func (w *walk) change(r *rule) flow.StepOutcome {
	mark := w.Packet.Mark
	switch t := w.target.(type) {
	case iptables.Notrack:
		w.Untrack()
	case iptables.CT:
		w.ct(r, t)
	default:
		w.Change(t)
	}
	if w.Packet.Mark != mark {
		return flow.StepMarked
	}
	return flow.StepApplied
}

// Untrack is notrack_tg (xt_CT.c) and nft_notrack_eval (nft_ct.c): it has no effect on a packet that has an entry or a
// template. One that connection tracking found invalid has none.
func (w *walk) Untrack() {
	if w.entry == nil {
		w.tracked, w.tracking = true, TrackingUntracked
	}
}

// SetZone is nft_ct_set_zone_eval (nft_ct.c). In front of connection tracking, it undoes a notrack.
func (w *walk) SetZone(zone uint16) {
	if w.behindTracking || w.entry != nil {
		return
	}
	w.zone, w.tracked = zone, false
	w.entry, w.tracking = newTemplate(w.Packet.Is4()), TrackingNew
	w.entry.Zone = zone
}

// ct is xt_ct_target (xt_CT.c): until connection tracking sees the packet, its entry is the rule's
// template.
func (w *walk) ct(r *rule, t iptables.CT) {
	switch {
	case t.NoTrack:
		w.Untrack()
		return
	case w.tracked || w.entry != nil:
		return
	case t.Zone.Given && t.Zone.FromMark:
		w.zoneMark = true
	case t.Zone.Given:
		if t.Zone.Original != t.Zone.Reply {
			w.grant("that the zone %d counts in both directions", t.Zone.Zone)
		}
		w.zone = t.Zone.Zone
	}
	w.entry, w.tracking = w.state.template(r.Rule, w.Packet.Destination.Addr().Is4()), TrackingNew
}

// jump goes to another chain and, if the packet returns, continues.
func (w *walk) jump(c *chain, r *rule, depth int) (exit, bool) {
	to := r.destination(c, iptables.NameOf(w.target))
	if to == nil {
		return w.missing(c, r)
	}
	w.addRule(c, r, flow.StepJumped)
	f := w.chain(to, depth+1)
	return f, f != fellThrough
}

// destination is the chain of the name that a rule of a chain leads to; nil: the rules do not have it.
func (r *rule) destination(in *chain, name string) *chain {
	if _, ok := r.Target.(iptables.NativeTarget); ok {
		return in.in[name]
	}
	return r.jump
}

func isJump(r *rule) bool { return r.Rule.JumpsTo() != "" }

func isNative(r *rule) bool {
	_, ok := r.Target.(iptables.NativeTarget)
	return ok
}

// masqueradeMark is kube-proxy's mark of packets to masquerade, by default (--iptables-masquerade-bit 14).
const masqueradeMark = 0x4000

// missing is for a jump to a chain that a listing does not show.
func (w *walk) missing(c *chain, r *rule) (exit, bool) {
	switch name := iptables.NameOf(w.target); {
	case c.table != nat.String():
	case name == kubechains.MarkMasq:
		w.grant("that chain %s, which is not in the listing, sets the mark %s", name, iptables.HexMark(masqueradeMark))
		w.Packet.Mark |= masqueradeMark
		w.addRule(c, r, flow.StepMarked)
		return 0, false
	case name == "KUBE-MARK-DROP" && !w.Packet.Local && !w.machine.network.isLocal(w.Packet.Destination.Addr()):
		w.grant("that chain %s, which is not in the listing, sets the mark 0x8000: KUBE-FIREWALL drops such packets at INPUT and OUTPUT, and this one is not for the host", name)
		w.Packet.Mark |= 0x8000
		w.addRule(c, r, flow.StepMarked)
		return 0, false
	case name == "KUBE-MARK-DROP": // the kubelet's, until 1.27
		return w.drop(c, r, fmt.Sprintf("chain %s, which is not in the listing, sets the mark 0x8000 in every version of kube-proxy, and KUBE-FIREWALL drops packets that have it", name))
	}
	if w.machine.options.Doubts && !w.doubt(c, r, nil) {
		return 0, false
	}
	if w.machine.options.Assume != AssumeNothing {
		w.grant("that chain %s, which is not in the listing, does nothing", iptables.NameOf(w.target))
		w.addRule(c, r, flow.StepUnknown)
		return 0, false
	}
	return w.stop(c, r, nil), true
}

// unknown is for a target that is not simulated.
func (w *walk) unknown(c *chain, r *rule) (exit, bool) {
	if w.machine.options.Doubts && !w.doubt(c, r, nil) {
		return 0, false
	}
	if w.machine.options.Assume == AssumeNothing {
		return w.stop(c, r, nil), true
	}
	w.grant("%s: that target %s does nothing that other rules could see", lineOf(r.Rule), iptables.NameOf(r.Target))
	w.addRule(c, r, flow.StepUnknown)
	return 0, false
}

// queue is nf_queue (nf_queue.c): without a program the packet is dropped or, with bypass,
// continues after the table.
func (w *walk) queue(c *chain, r *rule, t iptables.NFQueue) (exit, bool) {
	if w.machine.network.NoQueueListeners && !t.Bypass {
		return w.drop(c, r, "no program listens at the queue")
	}
	w.addRule(c, r, flow.StepApplied)
	if w.machine.network.NoQueueListeners {
		w.bypassed = true
		return accepted, true
	}
	w.end(Queued, r.Rule, "")
	return ended, true
}

// drop is for a rule that drops the packet.
func (w *walk) drop(c *chain, r *rule, why string) (exit, bool) {
	w.addRule(c, r, flow.StepApplied)
	w.end(Dropped, r.Rule, why)
	return ended, true
}

// tproxy is tproxy_tg4 (xt_TPROXY.c): the packet goes to a transparent socket, or is dropped.
func (w *walk) tproxy(c *chain, r *rule, t iptables.TProxy) (exit, bool) {
	if to, ok := w.assign(t.Addr, t.Port); !ok {
		return w.drop(c, r, "no transparent socket listens at "+to.String())
	}
	w.Packet.Mark = w.Packet.Mark&^t.Mark.Mask ^ t.Mark.Value
	w.addRule(c, r, flow.StepApplied)
	return accepted, true
}

// Assign is nft_tproxy_eval_v4 (nft_tproxy.c).
func (w *walk) Assign(addr netip.Addr, port uint16) bool {
	_, ok := w.assign(addr, port)
	return ok
}

// assign gives the packet to a transparent socket; false: there is none at the address that is returned.
func (w *walk) assign(addr netip.Addr, port uint16) (to netip.AddrPort, ok bool) {
	to = netip.AddrPortFrom(addr, port)
	if !addr.IsValid() || addr.IsUnspecified() {
		to = netip.AddrPortFrom(w.Packet.Destination.Addr(), to.Port())
		if d := w.machine.network.device(w.In); d != nil {
			for _, a := range d.Addresses {
				if a.Prefix.Addr().Is4() == w.Packet.Is4() {
					to = netip.AddrPortFrom(a.Prefix.Addr(), to.Port())
					break
				}
			}
		}
	}
	if to.Port() == 0 {
		to = netip.AddrPortFrom(to.Addr(), w.Packet.Destination.Port())
	}
	listener := w.machine.network.socket(w.Packet.Protocol, to)
	if listener == nil || !listener.Transparent {
		return to, false
	}
	w.assigned = listener
	return to, true
}

// nat sets the connection's translation on the side of the hook.
func (w *walk) nat(c *chain, r *rule) (exit, bool) {
	if w.sourceOnly {
		w.sourceRule = r.Rule
		return accepted, true
	}
	s := sideOf(w.hook)
	var to iptables.NATRange
	var first, last netip.Addr
	switch t := w.target.(type) {
	case iptables.DNAT:
		to, first, last = t.To, t.To.First, t.To.Last
	case iptables.SNAT:
		to, first, last = t.To, t.To.First, t.To.Last
	case iptables.Masquerade: // nf_nat_masquerade.c
		to = t.To
		if w.Packet.Source.Addr().IsUnspecified() {
			w.addRule(c, r, flow.StepApplied)
			return accepted, true
		}
		first = w.machine.network.source(w.route, w.Packet.Destination.Addr())
		last = first
		if !first.IsValid() {
			return w.lacksAddress(c, r, "the host has no address to masquerade as")
		}
		if n := w.machine.network; !n.allAddresses && !n.hasAddress(w.Out, first.Is4()) {
			w.grant("that %s has no address of its own, which would be the source", w.Out)
		}
		w.entry.masqueraded = w.Out
	case iptables.Redirect: // nf_nat_redirect.c
		to = t.To
		first = w.redirectAddress()
		last = first
		if !first.IsValid() {
			return w.lacksAddress(c, r, "device "+w.In+" has no address to redirect to")
		}
	case iptables.Netmap:
		a := w.Packet.Destination.Addr()
		if s == sourceSide {
			a = w.Packet.Source.Addr()
		}
		first = netmap(t.To, a)
		last = first
	}
	if !last.IsValid() {
		last = first
	}
	w.bind(s, to, first, last)
	w.addNAT(c, r, s)
	return accepted, true
}

// lacksAddress ends the walk at a rule that needs an address of the host, which has none or, where only its routes are known, perhaps one.
func (w *walk) lacksAddress(c *chain, r *rule, why string) (exit, bool) {
	if n := w.machine.network; n.allRoutes && !n.allAddresses {
		w.addRule(c, r, flow.StepUnknown)
		w.end(Stopped, nil, lineOf(r.Rule)+": "+why+" that is known")
		return ended, true
	}
	return w.drop(c, r, why)
}

// redirectAddress returns the destination of REDIRECT: the host itself, by the first address of
// the input device.
func (w *walk) redirectAddress() netip.Addr {
	if w.hook == Output {
		if w.Packet.Is4() {
			return netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		return netip.IPv6Loopback()
	}
	d := w.machine.network.device(w.In)
	if d == nil {
		return netip.Addr{}
	}
	for _, a := range d.Addresses {
		if addr := a.Prefix.Addr(); addr.Is4() == w.Packet.Is4() && (addr.Is4() || sameScope(w.Packet.Source.Addr(), addr)) {
			return addr
		}
	}
	return netip.Addr{}
}

// sameScope is nf_nat_redirect_ipv6_usable: a global source is sent to any address, others to one
// that they can reach.
func sameScope(from, to netip.Addr) bool {
	switch {
	case from.IsLoopback():
		return to.IsLoopback()
	case from.IsLinkLocalUnicast():
		return to.IsLinkLocalUnicast()
	}
	return true
}
