package hubblesource

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// proxyName is the service proxy of the records: Hubble's API is Cilium's, and the translations that it reports are made
// by Cilium's load balancer. otherProxy is that of packets which Cilium forwarded with the Service's address, and which
// something else translated.
const (
	proxyName  = "Cilium"
	otherProxy = "another proxy than Cilium"
)

// connection is one connection as a node reports it.
type connection struct {
	id       string
	node     string
	protocol decision.Protocol
	client   netip.AddrPort
	// front is the Service's address that the client connects to, and wire the destination of the packets on the wire.
	// Without a known translation, one of them is not valid.
	front, wire netip.AddrPort
	service     string // the Service that has front, where its name is known
	fronted     time.Time
	untouched   bool       // Cilium forwarded packets to front
	snat        netip.Addr // the client's address after a translation of the source; invalid: none is known
	clientEnd   end
	serverEnd   end

	first, last time.Time // of its events
	arrived     time.Time // when the first came, by this machine's clock
	active      time.Time // when the last one came
	losses      int       // of the node, when it began
	incomplete  bool
	resolved    bool // what is known of the translation does not wait for more
	leftOut     bool // the reader does not get its records

	state    flow.State
	since    time.Time
	answered time.Time // zero: it was not
	sent     time.Time // the first packet, or its last repetition
	finished [3]bool   // the sides that have closed, by sender
	repeated uint32
	seen     bool // the endpoint sees the client's own address and port
	drop     hubblepb.DropReason
	over     bool
	waiting  []moment // events before it was resolved
	history  []flow.Moment
}

// moment is an event that waits for the translation.
type moment struct {
	event flow.Event
	life  flow.Life
}

// identify gives the connection an ID, the same whenever its first event is read.
func (c *connection) identify() {
	to := c.wire
	if c.front.IsValid() {
		to = c.front
	}
	h := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s\n%d", c.node, c.protocol, c.client, to, c.first.UnixNano()))
	c.id = hex.EncodeToString(h[:8])
}

// translated reports whether the Service's address and the endpoint are known.
func (c *connection) translated() bool { return c.front.IsValid() && c.wire.IsValid() }

// enter changes the state.
func (c *connection) enter(s flow.State, at time.Time) flow.Event {
	if s.Order() > c.state.Order()+1 && s != flow.Reset && s != flow.Refused && s != flow.Dropped {
		c.incomplete = true // states in between were not reported
	}
	c.state, c.since = s, at
	c.remember(s, at)
	return s
}

// maxHistory is the number of events that a single flow's response has: see [flow.Life].
const maxHistory = 8

func (c *connection) remember(what flow.Event, at time.Time) {
	if len(c.history) < maxHistory {
		c.history = append(c.history, flow.Moment{Event: what, Time: at.UTC()})
	}
}

// repetition is the longest that two observations of one packet are apart: a node reports a packet where it comes in and
// where it goes out. Retransmissions are at least a second apart at first (RFC 6298).
const repetition = 500 * time.Millisecond

// assured is how long the kernel's connection tracking waits until UDP packets in both directions are a stream
// (nf_conntrack_proto_udp.c).
const assured = 2 * time.Second

// step follows a packet, and returns the event that it is; 0: none. The states are those of the kernel's connection tracking,
// see flow.StateOf.
func (c *connection) step(e *event, from sender) flow.Event {
	switch {
	case e.kind == eventDrop:
		return c.dropped(e)
	case c.state.Ended():
		if e.first() && c.state == flow.Dropped {
			return c.repeat(e.at)
		}
		return 0
	case e.first():
		return c.repeat(e.at)
	}
	order := c.state.Order()
	if from == server && c.answered.IsZero() {
		c.answered = e.at
	}
	switch {
	case e.second():
		if order == 0 {
			return c.enter(flow.Answered, e.at)
		}
		return 0
	case e.aborts():
		if order == 0 && from == server {
			return c.enter(flow.Refused, e.at)
		}
		return c.enter(flow.Reset, e.at)
	case e.closes():
		// The second FIN of an unknown sender is the other side's: the first one is reported once.
		both := e.closed() || from == unknownSender && c.state == flow.Closing
		c.finished[from] = true
		switch {
		case both || c.finished[client] && c.finished[server]:
			return c.enter(flow.Closed, e.at)
		case c.state != flow.Closing:
			return c.enter(flow.Closing, e.at)
		}
		return 0
	}
	switch {
	case order >= flow.Established.Order():
		return 0
	case c.protocol == decision.UDP && c.answered.IsZero(), c.protocol == decision.SCTP && order == 0 && from != server:
		return c.repeat(e.at)
	case order == 0 && c.protocol != decision.TCP:
		return c.enter(flow.Answered, e.at)
	case c.protocol == decision.UDP && e.at.Sub(c.first) < assured:
		return 0
	}
	return c.enter(flow.Established, e.at)
}

// repeat is the first packet again. UDP's clients send more than one packet without an answer, which are none.
func (c *connection) repeat(at time.Time) flow.Event {
	again := at.Sub(c.sent) > repetition
	if again || c.sent.IsZero() {
		c.sent = at
	}
	if !again || c.protocol == decision.UDP || c.state.Order() != 0 && c.state != flow.Dropped {
		return 0
	}
	c.repeated++
	c.remember(flow.Repeated, at)
	return flow.Repeated
}

// dropped is a packet that Cilium dropped. Of connections that were answered it is one of many packets, and says nothing
// about the connection.
func (c *connection) dropped(e *event) flow.Event {
	switch {
	case c.state == flow.Dropped:
		return c.repeat(e.at)
	case c.state != flow.Decided && c.state != flow.Unanswered || !c.answered.IsZero():
		return 0
	}
	c.drop = e.drop
	return c.enter(flow.Dropped, e.at)
}

// life is the present state.
func (c *connection) life() flow.Life {
	l := flow.Life{
		State: c.state, Since: c.since.UTC(), Answered: !c.answered.IsZero(), Over: c.over, Duration: max(0, c.since.Sub(c.first).Seconds()),
		Repeated: c.repeated, Incomplete: c.incomplete,
	}
	if l.Answered && !c.incomplete {
		l.AnsweredAfter = max(0, c.answered.Sub(c.first).Seconds())
	}
	if c.seen && !c.snat.IsValid() {
		l.SeenSource = c.client.String()
	}
	return l
}

// record is the connection's record.
func (c *connection) record(event flow.Event, life flow.Life) *flow.Record {
	at := c.first.UTC()
	r := &flow.Record{
		Version: flow.Version, ID: c.id, Event: event, Time: &at, Node: c.node, Protocol: c.protocol.String(), Source: c.client.String(),
		Local: c.clientEnd.host, SourcePod: c.clientEnd.pod, SourceHost: c.clientEnd.name, Service: c.service,
		Candidates: []flow.Candidate{}, Excluded: []flow.Excluded{}, Life: &life,
	}
	to := c.wire
	if c.front.IsValid() {
		to = c.front
	}
	r.Destination = to.String()
	if c.clientEnd.local || c.clientEnd.host {
		r.SourceNode = c.node
	}
	if c.snat.IsValid() {
		r.Masquerade, r.MasqueradeAddress = true, c.snat.String()
	}
	switch {
	case life.State == flow.Dropped:
		r.Verdict, r.Reason, r.Proxy = decision.Drop.String(), dropWords(c.drop), proxyName
		if c.translated() {
			r.Error = "Cilium dropped it on its way to " + c.wire.String()
		}
	case c.translated():
		r.Verdict, r.Reason, r.Proxy, r.Endpoint = decision.DNAT.String(), decision.ByProxy.String(), proxyName, c.wire.String()
		if c.untouched {
			r.Proxy = otherProxy
		}
		r.Pod = c.serverEnd.pod
		if c.serverEnd.local || c.serverEnd.host {
			r.EndpointNode = c.node
		}
	case c.clientEnd.pod != "" && !c.clientEnd.local && c.wire.IsValid() && c.serverEnd.local:
		// It comes from a pod of another node, which has translated it if it is for a Service.
		r.Verdict, r.Reason = decision.Accept.String(), decision.NotAService.String()
	default:
		r.Verdict, r.Reason, r.Proxy = decision.Accept.String(), decision.TranslationUnknown.String(), proxyName
	}
	return r
}
