package netfilter

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// walk is the walk of one packet.
type walk struct {
	machine *Machine
	state   *State
	chooser chooser
	result  *Result
	work    *Work

	// Context is what the rules see; the walk is its Host.
	iptables.Context
	hook   Hook
	route  Route
	routed netip.Addr // the destination of a packet that came in by lo with its route

	connection
	tracking   Tracking
	zone       uint16
	zoneMark   bool    // the zone is the packet's mark, when connection tracking sees it
	assigned   *Socket // by TPROXY
	bypassed   bool    // the last table ended with a queue at which no program listens
	tracked    bool    // connection tracking has seen the packet, or must ignore it
	passedIPVS bool    // IPVS has translated the packet (ipvs_property)
	// behindTracking: the packet has passed the place of connection tracking, also if that ignored it.
	behindTracking bool

	probability float64  // of the rule under evaluation; 0: no random choice
	passed      []passed // rules that did not match, without a step yet
	quiet       bool     // only the outcome is wanted
	at          *chain   // of the rule under evaluation
	// target is that of the rule that is applied; where it depends on the packet, the one for this packet.
	target iptables.Target
	by     fmt.Stringer // the element of a set that has the target; nil: none has
	mark   uint32       // of the packet, before the rule

	sourceOnly bool           // for a SourceNAT: no state, no random choices
	sourceRule *iptables.Rule // the rule that would translate
}

// end stops the walk with a verdict. The first one stays.
func (w *walk) end(v Verdict, by *iptables.Rule, why string) bool {
	w.result.Verdict, w.result.By, w.result.Why = v, by, why
	if by != nil && w.at != nil {
		w.result.Table, w.result.Chain = w.at.table, w.at.name
	}
	return false
}

// run follows the packet through the hooks. A local packet to the host itself arrives again on lo,
// with its connection's entry (loopback_xmit).
func (w *walk) run() {
	if w.Packet.Local {
		if !w.outgoing() {
			return
		}
		if w.Out != loopbackName {
			w.end(Sent, nil, "")
			return
		}
		w.In, w.routed, w.behindTracking = loopbackName, w.Packet.Destination.Addr(), false
		if w.tracking == TrackingInvalid { // it has no entry, and is tracked again
			w.tracked, w.zone, w.zoneMark = false, 0, false
		}
	}
	w.incoming()
}

// single follows the packet through one chain.
func (w *walk) single(start *Start) {
	w.hook = start.hook
	n := w.machine.network
	if w.Packet.Source.Addr().IsUnspecified() {
		w.Packet.Source = netip.AddrPortFrom(n.localSource(w.Packet.Destination.Addr()), w.Packet.Source.Port())
	}
	w.route = w.routeOf()
	if start.hook != Prerouting && start.hook != Input {
		w.Out = w.route.Interface
	}
	w.track()
	switch w.chain(start.chain, 0) {
	case fellThrough:
		w.end(Returned, nil, fmt.Sprintf("end of chain %s: it continues after the rule that jumped there", start.chain.name))
	case accepted:
		w.end(Returned, nil, fmt.Sprintf("the walk after table %s is left out", start.chain.table))
	}
	if w.entry != nil {
		w.translate(sideOf(start.hook))
	}
}

// incoming is ip_rcv and what follows.
func (w *walk) incoming() {
	w.Out = ""
	if !w.acceptable() {
		return
	}
	if !w.visit(Prerouting, priorityFirst, priorityTracking) {
		return
	}
	w.track()
	if !w.visit(Prerouting, priorityTracking, priorityNAT) || !w.visitNAT(Prerouting) || !w.visit(Prerouting, priorityNAT, priorityLast) || !w.beforeServers() {
		return
	}
	if !w.routeInput() {
		return
	}
	if w.route.Type == Local || w.route.Type == Broadcast {
		if w.visitInput() && w.confirm() {
			w.end(Delivered, nil, w.noReceiver())
		}
		return
	}
	w.Out = w.route.Interface
	// ip_forward, ip6_forward: both before the hook.
	if w.Packet.TTL <= 1 {
		w.end(Dropped, nil, "its time to live ends here: the sender gets an ICMP error, time exceeded")
		return
	}
	w.Packet.TTL--
	if w.Packet.Is4() {
		w.Packet.Priority = [4]uint32{0, 2, 6, 4}[w.Packet.TOS>>3&3] // rt_tos2priority
	}
	if w.visitForward() && w.postrouting() {
		w.end(Sent, nil, "")
	}
}

// noReceiver returns the result for a packet to the host itself if no program waits for it, which
// rules do not show.
func (w *walk) noReceiver() string {
	if w.reply || w.assigned != nil || w.route.Type == Broadcast || w.Packet.Destination.Addr().IsMulticast() || w.machine.network.socket(w.Packet.Protocol, w.Packet.Destination) != nil {
		return ""
	}
	switch {
	case w.Packet.Protocol == protoTCP && w.Packet.Flags&iptables.RST == 0:
		return "refused with a reset, unless a program listens there"
	case w.Packet.Protocol == protoUDP:
		return "refused with port unreachable, unless a program listens there"
	}
	return ""
}

// acceptable is the check of ip6_rcv_core before any rule (net/ipv6/ip6_input.c).
func (w *walk) acceptable() bool {
	from, to := w.Packet.Source.Addr(), w.Packet.Destination.Addr()
	switch {
	case to.Is4() || w.In == loopbackName:
		return true
	case from.IsMulticast():
		return w.end(Dropped, nil, fmt.Sprintf("%s cannot be a source", from))
	case from.IsLoopback() || to.IsLoopback():
		return w.end(Dropped, nil, "packets from outside cannot have ::1 as source or destination")
	}
	return true
}

// outgoing is ip_local_out and what follows. false: the walk has ended.
func (w *walk) outgoing() bool {
	n := w.machine.network
	w.hook = Output
	if w.Packet.Source.Addr().IsUnspecified() {
		source := n.localSource(w.Packet.Destination.Addr())
		if !source.IsValid() {
			return w.end(Dropped, nil, fmt.Sprintf("the host has no source address for %s", w.Packet.Destination.Addr()))
		}
		w.Packet.Source = netip.AddrPortFrom(source, w.Packet.Source.Port())
	}
	if !w.routeOutput() {
		return false
	}
	// The device that rules of OUTPUT see is that of this first look-up, whatever the
	// nat table does to the destination: nf_hook_state is made once for the hook.
	w.Out = w.route.Interface
	if !w.visit(Output, priorityFirst, priorityTracking) {
		return false
	}
	w.track()
	if !w.visit(Output, priorityTracking, priorityNAT) {
		return false
	}
	if !w.visitNAT(Output) {
		return false
	}
	if w.leadsElsewhere() && !w.routeOutput() {
		return false
	}
	if !w.beforeServers() {
		return false
	}
	if !w.visit(Output, priorityNAT, priorityLast) {
		return false
	}
	w.Out = w.route.Interface
	return w.postrouting()
}

// leadsElsewhere reports whether the packet's connection has another destination than it says, so that a local packet gets
// another route. The kernel compares the addresses of the entry, not those of the packet (nf_nat_ipv4_local_fn,
// nf_nat_ipv6_local_fn).
func (w *walk) leadsElsewhere() bool {
	switch e := w.entry; {
	case e == nil:
		return false
	case w.reply:
		return e.Reply.Destination.Addr() != e.Original.Source.Addr()
	default:
		return e.Original.Destination.Addr() != e.Reply.Source.Addr()
	}
}

// postrouting is for all packets that leave the host, also by lo.
func (w *walk) postrouting() bool {
	return w.visitSource(Postrouting) && w.confirm()
}

// visitSource is for the hooks at which the source is translated.
func (w *walk) visitSource(h Hook) bool {
	return w.visit(h, priorityFirst, prioritySource) && w.visitNAT(h) && w.visit(h, prioritySource, priorityLast)
}

// confirm is nf_confirm: the first packet of a connection adds its entry to the table, unless
// another entry has one of its tuples.
func (w *walk) confirm() bool {
	if w.tracking == TrackingNew && !w.state.confirm(w.connection) {
		return w.end(Dropped, nil, fmt.Sprintf("connection tracking: another connection has %s too", w.entry.Reply))
	}
	return true
}

// track is connection tracking at PREROUTING and OUTPUT.
func (w *walk) track() {
	w.behindTracking = true
	if w.tracked { // arrived on lo with its entry, or is exempted
		return
	}
	if w.zoneMark {
		w.zone = uint16(w.Packet.Mark)
	}
	w.tracked = true // a template is forgotten here
	w.connection, w.tracking = w.state.track(&w.Packet, w.zone)
	w.addTracked()
}

// visit follows the packet through the base chains of a hook with a priority from the first on and below
// the last, but those of nat. false: the walk has ended.
func (w *walk) visit(h Hook, first, last int) bool {
	for _, b := range w.machine.hooks.at[h] {
		if b.priority < first || b.priority >= last {
			continue
		}
		before := w.Packet
		if !w.visitChain(h, b) {
			return false
		}
		if h == Output && b.reroutes && w.reroutes(&before) && !w.routeOutput() {
			return false
		}
	}
	return true
}

// reroutes reports whether the mangle table, or a chain of type route, has changed a local packet in a way that needs another
// look at the routes (ipt_mangle_out, ip6t_mangle_out, nf_route_table_hook4).
func (w *walk) reroutes(before *iptables.Packet) bool {
	return w.Packet.Source.Addr() != before.Source.Addr() || w.Packet.Destination.Addr() != before.Destination.Addr() ||
		w.Packet.Mark != before.Mark || w.Packet.TOS != before.TOS || !w.Packet.Is4() && w.Packet.TTL != before.TTL
}

// visitChain follows the packet through one base chain. false: the walk has ended.
func (w *walk) visitChain(h Hook, b base) bool {
	w.hook = h
	if !w.listed(b.backend, h, b.table) {
		return false
	}
	c := b.chain
	if c == nil || len(c.rules) == 0 && c.policy != iptables.PolicyDrop {
		return true
	}
	return w.chain(c, 0) != ended
}

// listed is for chains that a partial listing, or a dump of one table, does not have. A table without any is taken for empty, which is the rule;
// one of which there are other chains has this one, too, and the walk ends there. false: it has ended.
func (w *walk) listed(b *backend, h Hook, t string) bool {
	c := b.chains[t][h.String()]
	switch {
	case b.lacks[t] && !w.machine.options.Doubts, b.lacks[lackingHook(t, h)]:
		what := "table " + t
		if b.native() {
			what = fmt.Sprintf("kube-proxy's chain of nat at %s", strings.ToLower(h.String()))
		}
		if t == filter.String() || w.machine.options.Assume != AssumeNothing {
			w.grant("that %s, which is not in the rules though kube-proxy has rules in it, does nothing", what)
			return true
		}
		w.result.Table, w.result.Chain = t, h.String() // without translation, all that follows would be wrong
		return w.end(Stopped, nil, what+" is not in the rules, though kube-proxy has rules in it")
	case t == nat.String() && b.lacksNAT() && !w.machine.options.Doubts:
		w.grant("that table nat, which is not in the rules, does nothing")
		return true
	case b.dump.Listing == nil || t == security.String() || b.dump.Lists(t, h.String()):
		return true
	case c != nil && c.open && b.hasPart(t, h): // see chain
		return true
	case b.dump.Table(t) == nil && !b.dump.Hides(t), w.machine.options.Assume != AssumeNothing, w.machine.options.Doubts:
		w.grant("that chain %s of table %s, which is not in the listing, does nothing", h, t)
		return true
	}
	why := fmt.Sprintf("chain %s of table %s is not in the listing", h, t)
	switch {
	case c != nil && c.open:
		why = fmt.Sprintf("chain %s of table %s may have more rules than the text", h, t)
	case b.dump.Hides(t):
		why = fmt.Sprintf("table %s is incompatible with iptables, and not in the listing", t)
	}
	w.result.Table, w.result.Chain = t, h.String()
	return w.end(Stopped, nil, why)
}

// hasPart reports whether the part of a base chain that the text has may be enough: it has rules, and in table nat kube-proxy's jump,
// if the table has chains of kube-proxy.
func (b *backend) hasPart(t string, h Hook) bool {
	c := b.chains[t][h.String()]
	if c == nil || len(c.rules) == 0 {
		return false
	}
	isProxys := func(name string) bool { return strings.HasPrefix(name, "KUBE-") }
	jumps := slices.ContainsFunc(c.rules, func(r rule) bool {
		to, ok := r.Target.(iptables.Jump)
		return ok && isProxys(to.Chain)
	})
	return jumps || !c.nat || h == Input || !slices.ContainsFunc(slices.Collect(maps.Keys(c.in)), isProxys)
}

// visitNAT is nf_nat_inet_fn: the rules are evaluated once for each side of a connection, and
// their result applies to all its packets.
func (w *walk) visitNAT(h Hook) bool {
	w.hook = h
	if w.entry == nil {
		return true
	}
	s := sideOf(h)
	if w.tracking == TrackingNew && !w.entry.done(s) {
		w.bypassed = false
		for _, b := range w.machine.hooks.nat[h] { // until one translates (nf_nat_inet_fn)
			if !w.visitChain(h, b) {
				return false
			}
			if w.bypassed { // the hook has ended with NF_QUEUE, not NF_ACCEPT
				return true
			}
			if w.entry.done(s) {
				break
			}
		}
		if !w.entry.done(s) {
			w.bind(s, iptables.NATRange{}, netip.Addr{}, netip.Addr{})
		}
		w.translate(s)
		return true
	}
	if e := w.entry; h == Postrouting && !w.reply && e.masqueraded != "" && e.masqueraded != w.Out { // nf_nat_oif_changed
		w.state.forget(e)
		return w.end(Dropped, nil, fmt.Sprintf("its connection was masqueraded on %s, and %s is another device: the kernel ends the connection", e.masqueraded, w.Out))
	}
	if w.translate(s) {
		w.addTranslated(s)
	}
	return true
}

// exit is how the walk through a chain ended.
type exit uint8

const (
	fellThrough exit = iota // it continues after the rule that jumped here
	accepted                // no more rules of the table
	ended                   // the verdict is in the result
)

// chain goes through the rules of a chain.
func (w *walk) chain(c *chain, depth int) exit {
	candidates := w.candidates(c)
	for {
		i, more := candidates.step()
		if !more {
			break
		}
		r := &c.rules[i]
		if limit := w.work.spent(); limit != "" {
			return w.cutOff(c, r, limit)
		}
		w.work.Visits--
		w.at, w.probability, w.mark = c, 0, w.Packet.Mark
		t, failed := w.agrees(c, r)
		if t == iptables.False && w.probability == 0 {
			w.pass(i, failed)
			continue
		}
		w.addPassed(c)
		if w.probability != 0 {
			w.fork()
		}
		switch t {
		case iptables.Unknown:
			if r.Harmless() {
				w.addUnknown(c, r, ", which makes no difference")
				continue
			}
			return w.stop(c, r, failed)
		case iptables.False:
			w.addRule(c, r, flow.StepPassed)
			continue
		}
		f, leave := w.apply(c, r, depth)
		if !leave {
			continue
		}
		if f == fellThrough && c.builtin {
			return w.policy(c)
		}
		return f
	}
	w.addPassed(c)
	if c.open && !w.hasAllOf(c) {
		return ended
	}
	if !c.builtin {
		return fellThrough
	}
	return w.policy(c)
}

// hasAllOf is for the end of a chain of which the text may lack rules. false: the walk has ended there.
func (w *walk) hasAllOf(c *chain) bool {
	if !c.builtin && w.machine.options.Assume == AssumeNothing && !w.machine.options.Doubts {
		w.result.Table, w.result.Chain = c.table, c.name
		return w.end(Stopped, nil, fmt.Sprintf("chain %s of table %s may have more rules than the text", c.name, c.table))
	}
	w.grant("that chain %s of table %s has no other rules that match than those in the text", c.name, c.table)
	return true
}

// policy ends a built-in chain.
func (w *walk) policy(c *chain) exit {
	w.addPolicy(c)
	if c.policy == iptables.PolicyDrop {
		w.result.Table, w.result.Chain = c.table, c.name
		in := c.table
		if c.file != "" {
			in += " (" + c.file + ")"
		}
		policy := "DROP"
		if strings.Contains(c.table, " ") { // of nftables
			policy = "drop"
		}
		w.end(Dropped, nil, fmt.Sprintf("the policy of chain %s in table %s is %s", c.name, in, policy))
		return ended
	}
	return accepted
}

// agrees evaluates the matches of a rule, up to the first that fails, which it returns.
func (w *walk) agrees(c *chain, r *rule) (iptables.Truth, iptables.Match) {
	switch {
	case w.sourceOnly:
		return w.agreesForSource(r)
	case w.machine.options.Doubts:
		return w.doubtful(c, r)
	}
	for i, m := range r.matches() {
		w.Rule, w.Match = r.Rule, i
		t := w.Evaluate(m)
		if t == iptables.Unknown {
			t = w.assume(r, m)
		}
		if t != iptables.True {
			return t, m
		}
	}
	return iptables.True, nil
}

// agreesForSource is agrees for a SourceNAT, whose matches change nothing: after one with an
// unknown result, another may decide that the rule does not match.
func (w *walk) agreesForSource(r *rule) (t iptables.Truth, failed iptables.Match) {
	t = iptables.True
	for _, m := range r.matches() {
		result := iptables.Unknown
		if !w.needsMore(m) {
			result = w.Evaluate(m)
		}
		switch {
		case result == iptables.False:
			return iptables.False, m
		case result == iptables.Unknown && t == iptables.True:
			t, failed = iptables.Unknown, m
		}
	}
	return t, failed
}

// assume returns the assumed result of an unknown match.
func (w *walk) assume(r *rule, m iptables.Match) iptables.Truth {
	switch w.machine.options.Assume {
	case AssumeMatch:
		w.grant("%s: that %s matches", lineOf(r.Rule), iptables.Describe(m))
		return iptables.True
	case AssumeNoMatch:
		w.grant("%s: that %s does not match", lineOf(r.Rule), iptables.Describe(m))
		return iptables.False
	}
	return iptables.Unknown
}

// grant records an assumption.
func (w *walk) grant(format string, args ...any) {
	w.Assume(fmt.Sprintf(format, args...))
}

// stop ends the walk at a rule that may match or not, or whose effect is unknown; failed is nil
// for the latter.
func (w *walk) stop(c *chain, r *rule, failed iptables.Match) exit {
	if w.quiet {
		w.end(Stopped, r.Rule, "")
		w.result.Unknown = failed
		return ended
	}
	if failed != nil {
		w.addUnknown(c, r, "")
	} else {
		w.addRule(c, r, flow.StepUnknown)
	}
	why := ""
	switch {
	case failed != nil:
		why = fmt.Sprintf("%s: %s", lineOf(r.Rule), w.WhyUnknown(failed))
	case r.jump == nil && isJump(r):
		why = fmt.Sprintf("%s: chain %s is not in the listing", lineOf(r.Rule), iptables.NameOf(r.Target))
	case isNative(r):
		why = fmt.Sprintf("%s: %s", lineOf(r.Rule), r.Target.(iptables.NativeTarget).WhyNot(&w.Context))
	default:
		why = fmt.Sprintf("%s: target %s is not simulated", lineOf(r.Rule), iptables.NameOf(r.Target))
	}
	w.end(Stopped, r.Rule, why)
	w.result.Unknown = failed
	return ended
}

// lineOf is the line of a rule, with its file if there are several.
func lineOf(r *iptables.Rule) string {
	if r.Line == 0 && r.Handle > 0 {
		return fmt.Sprintf("the rule with handle %d", r.Handle)
	}
	if r.File == "" {
		return fmt.Sprintf("line %d", r.Line)
	}
	return fmt.Sprintf("%s line %d", r.File, r.Line)
}
