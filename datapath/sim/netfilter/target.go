package netfilter

import (
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// apply applies a rule that matched. leave is set if the chain's other rules are skipped.
func (w *walk) apply(c *chain, r *rule, depth int) (f exit, leave bool) {
	switch t := r.Target.(type) {
	case iptables.Jump:
		return w.jump(c, r, depth)
	case iptables.Goto:
		if r.jump == nil {
			return w.missing(c, r)
		}
		w.addRule(c, r, flow.StepJumped)
		return w.chain(r.jump, depth+1), true
	case iptables.Verdict:
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
		if t.With == iptables.TCPReset && w.entry != nil && w.packet.Flags&iptables.RST == 0 {
			w.entry.tcp.state = tcpClosed // nf_ct_set_closing
		}
		return ended, true
	case iptables.Tarpit:
		w.addRule(c, r, flow.StepApplied)
		w.end(Dropped, r.Rule, "TARPIT, a module that is not part of the kernel, replies to TCP itself")
		return ended, true
	case iptables.NFQueue:
		return w.queue(c, r, t)
	case iptables.TProxy:
		return w.tproxy(c, r, t)
	case iptables.DNAT, iptables.SNAT, iptables.Masquerade, iptables.Redirect, iptables.Netmap:
		return w.nat(c, r)
	case iptables.UnknownTarget:
		return w.unknown(c, r)
	}
	outcome := w.change(r)
	w.addRule(c, r, outcome)
	return 0, false
}

// change applies targets after which the packet continues with the next rule.
func (w *walk) change(r *rule) flow.StepOutcome {
	p := &w.packet
	mark := p.Mark
	switch t := r.Target.(type) {
	case iptables.SetMark:
		p.Mark = t.Apply(p.Mark)
	case iptables.SetConnmark:
		w.connmark(t)
	case iptables.SetTOS:
		p.TOS = p.TOS&^t.Mask ^ t.Value
	case iptables.SetDSCP:
		p.TOS = p.TOS&3 | t.DSCP<<2
	case iptables.TCPMSS:
		w.offerSegmentSize(t)
	case iptables.SetTTL:
		p.TTL = t.Apply(p.TTL)
	case iptables.SetHopLimit:
		p.TTL = iptables.SetTTL(t).Apply(p.TTL)
	case iptables.Notrack:
		w.untrack()
	case iptables.CT:
		w.ct(r, t)
	}
	// LOG, NFLOG, AUDIT, TRACE and CLASSIFY do not change the packet, and no rule reads what
	// CHECKSUM changes.
	if p.Mark != mark {
		return flow.StepMarked
	}
	return flow.StepApplied
}

// offerSegmentSize is tcpmss_mangle_packet (xt_TCPMSS.c): the segment size in a SYN is lowered,
// never raised; a SYN without one gets the option, with at most the size that every host accepts
// (RFC 879, RFC 8200).
func (w *walk) offerSegmentSize(t iptables.TCPMSS) {
	const length = 4
	p := &w.packet
	if p.Protocol != protoTCP {
		return
	}
	headers, least := uint16(lengthIPv4+lengthTCP), uint16(536) // TCP_MSS_DEFAULT
	if !p.is4() {
		headers, least = lengthIPv6+lengthTCP, 1220
	}
	size := t.MSS
	if t.ClampToPMTU {
		const mtu = 1500 // of Ethernet
		w.grant("that the path's MTU is %d", mtu)
		size = mtu - headers
	}
	if slices.Contains(p.TCPOptions, tcpOptionMSS) {
		p.MSS = min(p.MSS, size)
		p.writeSegmentSize(0)
		return
	}
	p.TCPOptions, p.MSS = append([]uint8{tcpOptionMSS}, p.TCPOptions...), min(size, least)
	p.Length += length
	p.writeSegmentSize(length)
}

// writeSegmentSize writes MSS to Bytes; a new option is inserted before the others.
func (p *Packet) writeSegmentSize(room int) {
	at := lengthIPv6
	if p.is4() && len(p.Bytes) > 0 {
		at = int(p.Bytes[0]&0xf) * 4
	}
	options := at + lengthTCP
	if len(p.Bytes) < options || !p.is4() && p.Bytes[6] != protoTCP {
		p.Bytes = nil
		return
	}
	p.Bytes, p.remade = slices.Insert(slices.Clone(p.Bytes), options, make([]byte, room)...), true
	if room > 0 {
		p.Bytes[at+12] += byte(room/4) << 4
		p.Bytes[options], p.Bytes[options+1] = tcpOptionMSS, byte(room)
	}
	end := min(len(p.Bytes), at+int(p.Bytes[at+12]>>4)*4)
	for i := options; i+4 <= end && p.Bytes[i] != 0; {
		switch {
		case p.Bytes[i] == 1: // no operation
			i++
			continue
		case p.Bytes[i] == tcpOptionMSS:
			p.Bytes[i+2], p.Bytes[i+3] = byte(p.MSS>>8), byte(p.MSS)
			return
		}
		i += max(2, int(p.Bytes[i+1]))
	}
}

// harmless reports whether a match of the rule has no effect: it neither ends the packet's walk
// nor changes what other rules see, nor do its matches store the packet for them.
func harmless(r *rule) bool {
	switch r.Target.(type) {
	case nil, iptables.Log, iptables.NFLog, iptables.Audit, iptables.Trace, iptables.Checksum, iptables.TCPMSS:
	default:
		return false
	}
	return !slices.ContainsFunc(r.matches, func(m iptables.Match) bool {
		switch m.(type) {
		case iptables.Recent, iptables.Hashlimit:
			return true
		}
		return false
	})
}

// connmark is connmark_tg_shift (xt_connmark.c).
func (w *walk) connmark(t iptables.SetConnmark) {
	if w.entry == nil {
		return
	}
	shift := func(m uint32) uint32 {
		if t.Shift < 0 {
			return m >> -t.Shift
		}
		return m << t.Shift
	}
	switch t.Mode {
	case iptables.ConnmarkSet:
		m := w.entry.Mark&^t.Mark.Mask ^ t.Mark.Value
		if t.Shift != 0 {
			m = shift(m)
		}
		w.entry.Mark = m
	case iptables.ConnmarkSave:
		w.entry.Mark = w.entry.Mark&^t.ConnectionMask ^ shift(w.packet.Mark&t.PacketMask)
	case iptables.ConnmarkRestore:
		w.packet.Mark = w.packet.Mark&^t.PacketMask ^ shift(w.entry.Mark&t.ConnectionMask)
	}
}

// untrack is notrack_tg (xt_CT.c): it has no effect on a packet that connection tracking has seen,
// or that has a template.
func (w *walk) untrack() {
	if !w.tracked && w.entry == nil {
		w.tracked, w.tracking = true, TrackingUntracked
	}
}

// ct is xt_ct_target (xt_CT.c): until connection tracking sees the packet, its entry is the rule's
// template.
func (w *walk) ct(r *rule, t iptables.CT) {
	switch {
	case t.NoTrack:
		w.untrack()
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
	w.entry, w.tracking = w.state.template(r.Rule, w.packet.Destination.Addr().Is4()), TrackingNew
}

// markMasq is kube-proxy's chain that marks for masquerading, which listings often leave out; its
// mark is bit 14 unless kube-proxy is configured otherwise.
const (
	markMasq     = "KUBE-MARK-MASQ"
	markMasqMark = 0x4000
)

// jump goes to another chain and, if the packet returns, continues.
func (w *walk) jump(c *chain, r *rule, depth int) (exit, bool) {
	switch {
	case r.jump == nil && r.Target.Name() == markMasq:
		w.grant("that chain %s, which is not in the listing, sets the mark 0x4000", markMasq)
		w.packet.Mark |= markMasqMark
		w.addRule(c, r, flow.StepMarked)
		return 0, false
	case r.jump == nil:
		return w.missing(c, r)
	}
	w.addRule(c, r, flow.StepJumped)
	f := w.chain(r.jump, depth+1)
	return f, f != fellThrough
}

func isJump(r *rule) bool {
	name := target(r.Rule)
	return name != ""
}

// missing is for a jump to a chain that a listing does not show.
func (w *walk) missing(c *chain, r *rule) (exit, bool) {
	if w.machine.options.Assume != AssumeNothing {
		w.grant("that chain %s, which is not in the listing, does nothing", r.Target.Name())
		w.addRule(c, r, flow.StepUnknown)
		return 0, false
	}
	return w.stop(c, r, nil), true
}

// unknown is for a target that is not simulated.
func (w *walk) unknown(c *chain, r *rule) (exit, bool) {
	if w.machine.options.Assume == AssumeNothing {
		return w.stop(c, r, nil), true
	}
	w.grant("line %d: that target %s does nothing that other rules could see", r.Line, r.Target.Name())
	w.addRule(c, r, flow.StepUnknown)
	return 0, false
}

// queue is nf_queue (nf_queue.c): without a program the packet is dropped or, with bypass,
// continues after the table.
func (w *walk) queue(c *chain, r *rule, t iptables.NFQueue) (exit, bool) {
	w.addRule(c, r, flow.StepApplied)
	if w.machine.network.NoQueueListeners {
		if t.Bypass {
			w.bypassed = true
			return accepted, true
		}
		w.end(Dropped, r.Rule, "no program listens at the queue")
		return ended, true
	}
	w.end(Queued, r.Rule, "")
	return ended, true
}

// tproxy is tproxy_tg4 (xt_TPROXY.c): the packet goes to a transparent socket, or is dropped.
func (w *walk) tproxy(c *chain, r *rule, t iptables.TProxy) (exit, bool) {
	to := netip.AddrPortFrom(t.Addr, t.Port)
	if !t.Addr.IsValid() || t.Addr.IsUnspecified() {
		to = netip.AddrPortFrom(w.packet.Destination.Addr(), to.Port())
		if d := w.machine.network.device(w.in); d != nil {
			for _, a := range d.Addresses {
				if a.Prefix.Addr().Is4() == w.packet.is4() {
					to = netip.AddrPortFrom(a.Prefix.Addr(), to.Port())
					break
				}
			}
		}
	}
	if to.Port() == 0 {
		to = netip.AddrPortFrom(to.Addr(), w.packet.Destination.Port())
	}
	listener := w.machine.network.socket(w.packet.Protocol, to)
	if listener == nil || !listener.Transparent {
		w.addRule(c, r, flow.StepApplied)
		w.end(Dropped, r.Rule, "no transparent socket listens at "+to.String())
		return ended, true
	}
	w.packet.Mark, w.assigned = w.packet.Mark&^t.Mark.Mask^t.Mark.Value, listener
	w.addRule(c, r, flow.StepApplied)
	return accepted, true
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
	switch t := r.Target.(type) {
	case iptables.DNAT:
		to, first, last = t.To, t.To.First, t.To.Last
	case iptables.SNAT:
		to, first, last = t.To, t.To.First, t.To.Last
	case iptables.Masquerade: // nf_nat_masquerade.c
		to = t.To
		if w.packet.Source.Addr().IsUnspecified() {
			w.addRule(c, r, flow.StepApplied)
			return accepted, true
		}
		first = w.machine.network.source(w.route, w.packet.Destination.Addr())
		last = first
		if !first.IsValid() {
			w.addRule(c, r, flow.StepApplied)
			w.end(Dropped, r.Rule, "the host has no address to masquerade as")
			return ended, true
		}
	case iptables.Redirect: // nf_nat_redirect.c
		to = t.To
		first = w.redirectAddress()
		last = first
		if !first.IsValid() {
			w.addRule(c, r, flow.StepApplied)
			w.end(Dropped, r.Rule, "device "+w.in+" has no address to redirect to")
			return ended, true
		}
	case iptables.Netmap:
		a := w.packet.Destination.Addr()
		if s == sourceSide {
			a = w.packet.Source.Addr()
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

// redirectAddress returns the destination of REDIRECT: the host itself, by the first address of
// the input device.
func (w *walk) redirectAddress() netip.Addr {
	if w.hook == Output {
		if w.packet.is4() {
			return netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		return netip.IPv6Loopback()
	}
	d := w.machine.network.device(w.in)
	if d == nil {
		return netip.Addr{}
	}
	for _, a := range d.Addresses {
		if addr := a.Prefix.Addr(); addr.Is4() == w.packet.is4() && (addr.Is4() || sameScope(w.packet.Source.Addr(), addr)) {
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
