//go:build linux

package netfilter

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// trial is a set of rules, in the kernel and on paper, and what packets have left behind
// in both.
type trial struct {
	node    *kernelNode
	machine *Machine
	state   *State
	native  bool                       // the rules are those of nftables itself
	rules   map[ruleKey]*iptables.Rule // by what the trace calls them
	byLine  map[int]*iptables.Rule
	tally   tally
	began   time.Time // when the first packet was sent
}

// observation is what the kernel did with a packet.
type observation struct {
	verdict Verdict // Sent, Delivered or, for all others, Dropped
	out     string
	packet  iptables.Packet // with its mark; valid iff Sent or Delivered
	path    []*iptables.Rule
	answers []iptables.Packet // ICMP errors and resets that the kernel made
	queued  int
	sendErr error // the error of the sender on the node
	wire    []captured
	events  []event
}

// observe sends a packet and observes the result.
func (t *trial) observe(p *iptables.Packet) (o observation, err error) {
	b := encode(p, t.isAnswer(p))
	if p.Local {
		if o.sendErr, err = t.node.sendLocal(p, b); err != nil {
			return o, fmt.Errorf("sending %s: %w", p, err)
		}
	} else {
		to := nodeMAC
		switch p.Link {
		case iptables.LinkBroadcast:
			to = broadcastMAC
		case iptables.LinkMulticast:
			to = multicastMAC
		}
		etherType := uint16(unix.ETH_P_IP)
		if !p.Is4() {
			etherType = unix.ETH_P_IPV6
		}
		frame := append(append(slices.Clone([]byte(to)), p.MAC[:]...), byte(etherType>>8), byte(etherType))
		if err := t.node.transmit(p.InInterface, append(frame, b...)); err != nil {
			return o, fmt.Errorf("sending %s: %w", p, err)
		}
	}
	if err := t.node.barrier(); err != nil {
		return o, err
	}
	if o.queued, err = t.node.dropQueued(); err != nil {
		return o, err
	}
	if o.wire, err = t.node.capture(); err != nil {
		return o, err
	}
	if o.events, err = t.node.events(); err != nil {
		return o, err
	}
	lines, err := t.node.prefixes()
	if err != nil {
		return o, err
	}
	if err := t.readLog(&o, lines); err != nil {
		return o, err
	}
	return o, t.read(&o)
}

// isAnswer reports whether the packet is one of the second direction of a connection: its
// sequence numbers have to be right. Its zone is not known yet.
func (t *trial) isAnswer(p *iptables.Packet) bool {
	tuple := p.Tuple()
	for k, c := range t.state.table {
		if k.Tuple == tuple {
			return c.reply
		}
	}
	return false
}

// readLog makes sense of the legacy back end's trace. It calls every verdict without a
// condition the chain's end ("return", "policy"; get_chainname_rulenum, ip_tables.c); the
// real end is one behind the last rule.
func (t *trial) readLog(o *observation, lines []string) error {
	for _, line := range lines {
		text, ok := strings.CutPrefix(line, "TRACE: ")
		fields := strings.Split(strings.TrimSpace(text), ":")
		if !ok || len(fields) != 4 {
			continue
		}
		number, err := strconv.ParseUint(fields[3], 10, 64)
		if err != nil {
			return fmt.Errorf("the trace has %q: %w", line, err)
		}
		r := t.rules[ruleKey{fields[0], fields[1], number}]
		switch {
		case r == nil && fields[2] == "rule":
			return fmt.Errorf("the trace names a rule that is not known: %q", line)
		case r == nil:
			continue
		}
		o.path = append(o.path, r)
	}
	return nil
}

// read makes sense of the trace.
func (t *trial) read(o *observation) error {
	o.verdict = Dropped
	for _, e := range o.events {
		p, ok := decode(e.packet)
		p.Mark = e.mark
		switch {
		case e.table != watchTable:
			// The trace shows the end of a chain as a rule, too.
			if e.kind != traceTypeRule || e.handle == 0 {
				continue
			}
			table := e.table
			if t.native {
				table = familyNames[e.family] + " " + table
			}
			r := t.rules[ruleKey{table, e.chain, e.handle}]
			if r == nil {
				return fmt.Errorf("the trace names a rule that is not known: %s", e)
			}
			o.path = append(o.path, r)
		case e.chain == madeChain && ok && e.verdict == verdictDrop:
			if isRefusal(&p) {
				o.answers = append(o.answers, p)
			}
		case e.chain == sentChain && ok:
			if o.out = t.node.device[e.out]; o.out != loopbackName {
				o.verdict, o.packet = Sent, p
			}
		case e.chain == deliveredChain && ok:
			o.verdict, o.packet = Delivered, p
		}
	}
	return nil
}

const (
	icmpUnreachable  = 3 // ICMP_DEST_UNREACH
	icmpRedirect     = 5 // ICMP_REDIRECT
	icmp6Unreachable = 1 // ICMPV6_DEST_UNREACH
)

func isRefusal(p *iptables.Packet) bool {
	switch p.Protocol {
	case protoICMP:
		return p.ICMPType == icmpUnreachable
	case protoICMPv6:
		return p.ICMPType == icmp6Unreachable
	}
	return p.Protocol == protoTCP && p.Flags&iptables.RST != 0
}

// codes are those of the answers' ICMP messages (ipt_REJECT.c, ip6t_REJECT.c).
var codes = map[iptables.RejectWith]uint8{
	"icmp-net-unreachable": 0, "icmp-host-unreachable": 1, "icmp-proto-unreachable": 2, "icmp-port-unreachable": 3,
	"icmp-net-prohibited": 9, "icmp-host-prohibited": 10, "icmp-admin-prohibited": 13,
	"icmp6-no-route": 0, "icmp6-adm-prohibited": 1, "icmp6-addr-unreachable": 3, "icmp6-port-unreachable": 4,
	"icmp6-policy-fail": 5, "icmp6-reject-route": 6,
}

// errnos are the errors of a sender on the node if there is no way.
var errnos = map[iptables.RejectWith]error{
	"icmp-net-unreachable": unix.ENETUNREACH, "icmp-host-unreachable": unix.EHOSTUNREACH, "icmp-admin-prohibited": unix.EACCES,
	"icmp6-no-route": unix.ENETUNREACH, "icmp6-addr-unreachable": unix.EHOSTUNREACH, "icmp6-adm-prohibited": unix.EACCES,
}

// differs names the difference of a way and an observation; nil: they do not.
func (t *trial) differs(w Way, p *iptables.Packet, o *observation) error {
	if w.Verdict == Stopped {
		return errors.New("the simulator does not know")
	}
	for i := range max(len(w.Path), len(o.path)) {
		if i >= len(w.Path) || i >= len(o.path) || w.Path[i] != o.path[i] {
			return fmt.Errorf("the rules that matched, from number %d on", i+1)
		}
	}
	if (w.Verdict == Queued) != (o.queued == 1) || o.queued > 1 {
		return errors.New("the number of packets in the queue")
	}
	switch w.Verdict {
	case Sent, Delivered:
		switch {
		case o.verdict != w.Verdict:
			return errors.New("the verdict")
		case w.Verdict == Sent && o.out != w.Out:
			return errors.New("the device")
		case len(o.answers) > 0:
			return errors.New("an answer, although the packet went on")
		}
		if err := samePacket(w, &o.packet); err != nil {
			return err
		}
		return t.onWire(w, o)
	}
	switch {
	case o.verdict != Dropped:
		return errors.New("the verdict")
	case len(o.wire) > 0:
		return errors.New("a packet on the wire")
	}
	return t.refused(w, p, o)
}

// refused compares how a packet was refused.
func (t *trial) refused(w Way, p *iptables.Packet, o *observation) error {
	toSender := p.Local && w.Steps[len(w.Steps)-1].Hook == Output.String()
	if w.Verdict != Rejected || w.By == nil && toSender {
		want := errnos[w.With]
		switch {
		case len(o.answers) > 0:
			return errors.New("an answer")
		case w.Verdict == Rejected && !errors.Is(o.sendErr, want):
			return fmt.Errorf("the error %v", want)
		}
		return nil
	}
	reset := w.With == iptables.TCPReset
	if len(o.answers) == 0 && (reset && !w.resets || !reset && t.silent(w)) {
		return nil
	}
	if len(o.answers) != 1 || reset && !w.resets {
		return errors.New("the number of answers")
	}
	a := o.answers[0]
	switch {
	case reset:
		if a.Protocol != protoTCP || a.Source != w.Packet.Destination || a.Destination != w.Packet.Source {
			return errors.New("the reset")
		}
	case !hasICMP(a.Protocol) || a.ICMPCode != codes[w.With] && w.With != iptables.UnknownUnreachable:
		return errors.New("the code")
	}
	return nil
}

// silent reports whether the kernel may refuse a packet without an ICMP error: it answers
// neither such errors nor addresses that are not one host's (icmp_send), and none without a route.
// It reports missing routes to each host of IPv4 but a few times (ip_error).
func (t *trial) silent(w Way) bool {
	p := &w.Packet
	back := t.machine.network.route(p.Source.Addr()).Type
	if p.Is4() && (w.By == nil || p.Destination.Addr().IsLoopback() && back != Local) {
		return true
	}
	// At PREROUTING the route of the answer is looked up first: where that is the host itself, the kernel takes the packet's
	// destination for its own address; likewise if rules have set another destination of a packet that came by lo.
	hook, own := w.Steps[len(w.Steps)-1].Hook, t.machine.network.route(p.Destination.Addr()).Type == Local
	if p.Is4() && !own && (back == Local && hook == Prerouting.String() || p.Local && (hook == Prerouting.String() || hook == Input.String())) {
		return true
	}
	if t.machine.network.isBroadcast(p.Destination.Addr()) || p.Destination.Addr().IsMulticast() {
		return true
	}
	return p.Protocol == protoICMP && p.ICMPType == icmpRedirect || p.Link != iptables.LinkUnicast || back != Unicast && back != Local
}

// onWire compares with what came out of the devices.
func (t *trial) onWire(w Way, o *observation) error {
	if w.Verdict == Delivered {
		if len(o.wire) > 0 {
			return errors.New("a packet on the wire")
		}
		return nil
	}
	if len(o.wire) != 1 || o.wire[0].device != w.Out {
		return errors.New("what is on the wire")
	}
	seen := o.wire[0].Packet
	seen.Mark = w.Packet.Mark
	return samePacket(w, &seen)
}

// samePacket compares a packet as it was in the end.
func samePacket(w Way, seen *iptables.Packet) error {
	want := w.Packet
	switch {
	case want.Source != seen.Source, want.Destination != seen.Destination, want.ICMPID != seen.ICMPID:
		return fmt.Errorf("the addresses: %s id %d", seen, seen.ICMPID)
	case want.TOS != seen.TOS:
		return fmt.Errorf("the type of service: %#x, want %#x", seen.TOS, want.TOS)
	case want.TTL != seen.TTL:
		return fmt.Errorf("the time to live: %d, want %d", seen.TTL, want.TTL)
	case want.Mark != seen.Mark:
		return fmt.Errorf("the mark: %#x, want %#x", seen.Mark, want.Mark)
	}
	return nil
}

// try sends a packet and compares. The error has the whole story of a disagreement.
func (t *trial) try(p *iptables.Packet) (*Way, error) {
	if t.began.IsZero() {
		t.began = time.Now()
	}
	// UDP is a stream after two seconds, which a busy machine needs for the packets of a trial.
	now := time.Since(t.began).Seconds()
	o, err := t.observe(p)
	if err != nil {
		return nil, err
	}
	sent := *p
	sent.Bytes = encode(p, t.isAnswer(p))
	ways, rest := t.machine.Explore(sent, func() *State {
		s := t.state.clone()
		s.Began, s.Now = t.began, now
		s.chosenSource, s.chosenDestination = chosenBy(&o)
		return s
	}, maxWays)
	if rest > 0 {
		return nil, fmt.Errorf("more than %d ways for %s", maxWays, p)
	}
	var agreeing []Way
	var story strings.Builder
	for _, w := range ways {
		if err := t.differs(w, p, &o); err != nil {
			fmt.Fprintf(&story, "\nThe simulator's way (what differs: %v)\n%s", err, wayText(w))
			continue
		}
		agreeing = append(agreeing, w)
	}
	if seen := slices.DeleteFunc(slices.Clone(agreeing), func(w Way) bool { return !lastSeen(&o, w, p.Local) }); len(agreeing) > 1 && len(seen) > 0 {
		agreeing = seen
	}
	if !alike(agreeing) {
		return nil, fmt.Errorf("%d of %d ways are the kernel's, for %s\n%s\n%s", len(agreeing), len(ways), describePacket(p), o, &story)
	}
	w := agreeing[0]
	if err := t.compareEntry(w); err != nil {
		return nil, fmt.Errorf("%w, for %s\n%s\nThe simulator's way\n%s", err, describePacket(p), o, wayText(w))
	}
	t.state = w.State
	t.tally.add(t, w)
	return &w, nil
}

const maxWays = 4096

func describePacket(p *iptables.Packet) string {
	return fmt.Sprintf("%s %+v", p, *p)
}

func (o observation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "The kernel's verdict: %s", o.verdict)
	if o.verdict != Dropped {
		fmt.Fprintf(&b, " by %q, %s id %d, type of service %#x, mark %#x", o.out, &o.packet, o.packet.ICMPID, o.packet.TOS, o.packet.Mark)
	}
	for _, a := range o.answers {
		fmt.Fprintf(&b, "\n  answered with %s type %d code %d", &a, a.ICMPType, a.ICMPCode)
	}
	if o.sendErr != nil {
		fmt.Fprintf(&b, "\n  the sender's error: %v", o.sendErr)
	}
	for _, c := range o.wire {
		fmt.Fprintf(&b, "\n  on the wire at %s: %s", c.device, &c.Packet)
	}
	for _, e := range o.events {
		fmt.Fprintf(&b, "\n  trace: %s", e)
	}
	for _, r := range o.path {
		fmt.Fprintf(&b, "\n  rule: %s", r)
	}
	return b.String()
}

// wayText is the way of the simulator.
func wayText(w Way) string {
	var b strings.Builder
	for _, s := range w.Steps {
		fmt.Fprintf(&b, "  %s %s %s %s %s: %s\n", s.Hook, s.Table, s.Chain, s.Outcome, s.Rule, s.Text)
	}
	fmt.Fprintf(&b, "  %s by %q with %q, %s, %s", w.Verdict, w.Out, w.With, &w.Packet, w.Why)
	if w.Entry != nil {
		fmt.Fprintf(&b, "\n  entry %+v", *w.Entry)
	}
	return b.String()
}
