package hubblesource

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// key is a connection by the addresses of its packets.
type key struct {
	origin
	destination netip.AddrPort
}

// origin is a client's address and port, on a node.
type origin struct {
	node     string
	protocol decision.Protocol
	source   netip.AddrPort
}

// The times that a tracker keeps to.
const (
	// settling is how long a connection waits for what tells its translation: a node has a buffer of events for each
	// CPU, so that the events of a socket may come after those of its packets.
	settling = 150 * time.Millisecond
	// silence is after how long without any event there are no more that have happened. hubble-relay sorts events, and, while
	// there are few, gives one a second (--sort-buffer-drain-timeout).
	silence = 1500 * time.Millisecond
	// reuse is how long after a connection's last event a first packet is of another connection. A SYN is sent again after
	// 64 seconds at most (net.ipv4.tcp_syn_retries).
	reuse = 70 * time.Second
	// lingering is how long a connection that has ended is remembered, for events that come late, and idling one that is
	// not established. Cilium's own entries of UDP end after 60 s without a packet.
	lingering, idling = 10 * time.Second, 2 * time.Minute
	// sweeping is the time between two searches for such connections.
	sweeping = 10 * time.Second
)

// maxConnections bounds the connections that a tracker of a stream remembers, and maxNames the names of Services.
const maxConnections, maxNames = 100_000, 100_000

// tracker makes connections of events. It is not safe for concurrent use.
type tracker struct {
	// emit gets each event of a connection, when its translation is known or is not going to be; nil: there is no stream.
	emit func(*connection, flow.Event, flow.Life)

	connections map[key]*connection
	clients     map[origin][]*connection
	names       map[netip.AddrPort]string // of Services, by their addresses
	losses      map[string]int            // how often events of a node were lost
	unresolved  []*connection             // in the order of their beginning
	begun       []*connection             // the same; of a stream, those that may still become unanswered
	swept       time.Time
	direct      map[key]time.Time // packets that came in without the address of a Service, of no known connection
	newest      time.Time         // of all events, by the nodes' clocks
	heard       time.Time         // when the last one came
	sockets
	blind map[string]*blindness
}

// blindness counts, for a node, connections of its pods with and without a known translation.
type blindness struct{ unknown, known int }

func newTracker() *tracker {
	return &tracker{
		connections: make(map[key]*connection), clients: make(map[origin][]*connection), names: make(map[netip.AddrPort]string),
		losses: make(map[string]int), direct: make(map[key]time.Time), sockets: newSockets(), blind: make(map[string]*blindness),
	}
}

// lost notes that events of a node are missing.
func (t *tracker) lost(node string) { t.losses[node]++ }

// incomplete reports whether events of the connection may have been lost.
func (t *tracker) incomplete(c *connection) bool {
	return !c.state.Ended() && t.losses[c.node] != c.losses
}

// take takes the next event, which came at a time.
func (t *tracker) take(e *event, now time.Time) {
	if t.heard = now; e.at.After(t.newest) {
		t.newest = e.at
	}
	if e.service != "" && e.kind == eventTrace && t.isEndpoint(e) {
		e.service = ""
	}
	t.name(e.destination, e.service)
	t.name(e.source, e.from)
	if e.kind == eventTraceSock {
		t.socket(e, now)
		if c := t.connections[key{origin{e.node, e.protocol, e.source}, e.destination}]; c != nil && e.translated && c.front == e.destination && !c.wire.IsValid() {
			c.wire, c.front, c.service = c.front, netip.AddrPort{}, "" // see isEndpoint
			t.await(c)
		}
		return
	}
	c, sentBy := t.find(e)
	if c != nil && c.replacedBy(e) {
		t.forget(c)
		c = nil
	}
	isNew := false
	if c == nil {
		if c, sentBy, isNew = t.begin(e, now); c == nil {
			if e.before {
				t.direct[key{origin{e.node, e.protocol, e.source}, e.destination}] = e.at
			}
			return
		}
	}
	c.last, c.active = e.at, now
	c.incomplete = c.incomplete || e.aggregate || t.incomplete(c)
	t.learn(c, e, sentBy)
	var what flow.Event
	if isNew && c.state == flow.Decided && !c.incomplete && e.kind != eventDrop {
		what = flow.Decided
		c.remember(what, c.first)
	} else {
		what = c.step(e, sentBy)
	}
	if what != 0 {
		t.report(c, what)
	}
}

func (t *tracker) name(a netip.AddrPort, name string) {
	if name == "" {
		return
	}
	if len(t.names) >= maxNames {
		clear(t.names)
	}
	t.names[a] = name
}

// find finds the connection of a packet, and which side sent it.
func (t *tracker) find(e *event) (*connection, sender) {
	if e.sender != server {
		if c := t.connections[key{origin{e.node, e.protocol, e.source}, e.destination}]; c != nil {
			if e.sender == unknownSender && !e.ongoing {
				return c, client // Cilium has not looked it up, so its addresses tell
			}
			return c, e.sender
		}
	}
	if e.sender == client {
		return nil, client
	}
	to := origin{e.node, e.protocol, e.destination}
	if e.xlated.IsValid() && e.sender == server {
		if c := t.connections[key{to, netip.AddrPortFrom(e.xlated, e.source.Port())}]; c != nil {
			return c, server
		}
	}
	if c := t.connections[key{to, e.source}]; c != nil {
		return c, server
	}
	if e.sender == unknownSender {
		return nil, unknownSender
	}
	// A reply that was translated back has the endpoint's address, and the Service's port.
	var found *connection
	for _, c := range t.clients[to] {
		if c.wire.Addr() == e.source.Addr() && (c.answered.IsZero() || c.front.IsValid()) { // else its replies come untranslated
			if found != nil {
				return nil, server
			}
			found = c
		}
	}
	return found, server
}

// replacedBy reports whether the packet is of another connection with the same addresses and ports.
func (c *connection) replacedBy(e *event) bool {
	since := e.at.Sub(c.last)
	switch {
	case c.protocol == decision.UDP:
		return since > idling
	case c.state == flow.Dropped && e.first() && e.kind == eventTrace && !e.before && e.at.Sub(c.since) > repetition:
		return true // it passes now
	case !e.first() || since <= repetition:
		return false
	case c.state == flow.Dropped:
		return since > reuse
	case c.state.Ended(), c.state == flow.Established, c.state == flow.Closing:
		return true
	}
	return since > reuse
}

// begin begins a connection with its first event. nil: the packet does not tell which side is the client. It is not new if it
// began with the packet before its translation.
func (t *tracker) begin(e *event, now time.Time) (c *connection, sentBy sender, isNew bool) {
	sentBy = e.sender
	if sentBy == unknownSender {
		switch {
		case e.first(), e.service != "" && e.protocol != decision.TCP, e.kind == eventDrop && e.protocol == decision.UDP:
			sentBy = client
		case e.second():
			sentBy = server
		default:
			return nil, 0, false
		}
	}
	if e.kind == eventDrop && e.protocol != decision.UDP && !e.first() {
		return nil, 0, false // one of many packets of a connection
	}
	c = &connection{
		node: e.node, protocol: e.protocol, client: e.source, wire: e.destination, first: e.at, since: e.at, arrived: now, losses: t.losses[e.node], state: flow.Decided,
	}
	switch {
	case sentBy == server && e.xlated.IsValid():
		return nil, 0, false // the port of the endpoint is not known
	case sentBy == server:
		c.client, c.wire, c.incomplete = e.destination, e.source, true
	case e.service != "":
		c.front, c.wire, c.service, c.sent = e.destination, netip.AddrPort{}, e.service, e.at
	default:
		c.sent = e.at
		if other := t.fronted(c, e); other != nil {
			return other, sentBy, false
		}
	}
	c.incomplete = c.incomplete || e.ongoing || e.protocol == decision.TCP && !e.first()
	c.identify()
	t.index(c)
	t.unresolved, t.begun = append(t.unresolved, c), append(t.begun, c)
	if c.wire.IsValid() && !c.front.IsValid() {
		t.await(c)
	}
	return c, sentBy, true
}

// fronted finds the Service's address that a new connection's first packet had where it came in, before Cilium translated it.
// It returns the connection that began with it, or adds the address to the new one. With several, none is known.
func (t *tracker) fronted(c *connection, e *event) *connection {
	if e.before { // it comes in with the address that it has
		return nil
	}
	of := origin{c.node, c.protocol, c.client}
	if at, ok := t.direct[key{of, c.wire}]; ok && e.at.Sub(at).Abs() <= window {
		return nil
	}
	var found *connection
	for _, other := range t.clients[of] {
		// After a loss, the packet may have come in with another address, unobserved.
		if !other.front.IsValid() || e.at.Sub(other.fronted).Abs() > window || other.losses != t.losses[c.node] {
			continue
		}
		if found != nil && found.front != other.front {
			return nil
		}
		found = other
	}
	switch {
	case found == nil:
	case !found.wire.IsValid():
		found.wire = c.wire
		t.connections[key{of, c.wire}] = found
		return found
	default:
		c.front, c.service = found.front, found.service
	}
	return nil
}

// learn notes what a packet says about its connection.
func (t *tracker) learn(c *connection, e *event, sentBy sender) {
	if sentBy == server {
		c.serverEnd.merge(e.sourceEnd)
		c.clientEnd.merge(e.destinationEnd)
		if front := netip.AddrPortFrom(e.xlated, e.source.Port()); e.xlated.IsValid() && front != c.wire && front != c.front {
			// Reverse translation: the client sees the address that it has sent to.
			t.unindex(c)
			c.front, c.service = front, t.names[front]
			t.index(c)
		}
		return
	}
	c.clientEnd.merge(e.sourceEnd)
	if e.destination == c.wire { // not the Service's address, which belongs to none
		c.serverEnd.merge(e.destinationEnd)
		c.seen = c.seen || e.delivered && sentBy == client
		if sentBy == client && e.xlated.IsValid() {
			c.snat = e.xlated
		}
	}
	if e.destination == c.front {
		c.fronted = e.at
		c.untouched = c.untouched || e.kind == eventTrace && sentBy == client && !e.before && !c.wire.IsValid()
	}
	if c.front.IsValid() && c.service == "" {
		c.service = t.names[c.front]
	}
}

// merge adds what another event knows of the same end.
func (x *end) merge(o end) {
	x.pod, x.name = cmp.Or(x.pod, o.pod), cmp.Or(x.name, o.name)
	x.local, x.host = x.local || o.local, x.host || o.host
}

func (c *connection) keys() (of origin, list []netip.AddrPort) {
	for _, to := range []netip.AddrPort{c.front, c.wire} {
		if to.IsValid() {
			list = append(list, to)
		}
	}
	return origin{c.node, c.protocol, c.client}, list
}

func (t *tracker) index(c *connection) {
	of, list := c.keys()
	for _, to := range list {
		if k := (key{of, to}); t.connections[k] == nil || to == c.wire {
			t.connections[k] = c
		}
	}
	t.clients[of] = append(t.clients[of], c)
}

func (t *tracker) unindex(c *connection) {
	of, list := c.keys()
	for _, to := range list {
		if k := (key{of, to}); t.connections[k] == c {
			delete(t.connections, k)
		}
	}
	if rest := slices.DeleteFunc(t.clients[of], func(o *connection) bool { return o == c }); len(rest) > 0 {
		t.clients[of] = rest
	} else {
		delete(t.clients, of)
	}
}

// forget ends the life of a connection that is not to have more events.
func (t *tracker) forget(c *connection) {
	t.resolve(c)
	t.unindex(c)
	c.over = true
	t.report(c, flow.Gone)
}

// report hands an event on, or keeps it until the translation is known.
func (t *tracker) report(c *connection, what flow.Event) {
	if t.emit == nil {
		return
	}
	if c.resolved {
		t.emit(c, what, c.life())
	} else {
		c.waiting = append(c.waiting, moment{what, c.life()})
	}
}

// resolve decides what is known of a connection's translation, and reports its events.
func (t *tracker) resolve(c *connection) {
	if c.resolved {
		return
	}
	c.resolved = true
	t.join(c)
	if c.front.IsValid() && c.service == "" {
		c.service = t.names[c.front]
	}
	if c.clientEnd.local || c.clientEnd.pod != "" && !c.serverEnd.local {
		b := t.blind[c.node]
		if b == nil {
			b = new(blindness)
			t.blind[c.node] = b
		}
		if c.front.IsValid() {
			b.known++
		} else {
			b.unknown++
		}
	}
	for _, m := range c.waiting {
		t.emit(c, m.event, m.life)
	}
	c.waiting = nil
}

// happened reports whether all events of the time after the beginning of a connection have come.
func (t *tracker) happened(c *connection, after time.Duration, now time.Time) bool {
	return now.Sub(c.arrived) >= after && (t.newest.Sub(c.first) >= after || now.Sub(t.heard) >= silence)
}

// pass lets time pass until now.
func (t *tracker) pass(now time.Time) {
	for len(t.unresolved) > 0 && t.happened(t.unresolved[0], settling, now) {
		t.resolve(t.unresolved[0])
		t.unresolved = t.unresolved[1:]
	}
	for len(t.begun) > 0 && t.happened(t.begun[0], flow.UnansweredAfter, now) {
		if c := t.begun[0]; !c.over {
			t.unanswered(c)
		}
		t.begun = t.begun[1:]
	}
	if now.Sub(t.swept) >= sweeping {
		t.sweep(now)
	}
}

// unanswered is for a connection UnansweredAfter its beginning. Replies to the node itself, and those between others that
// the node forwards, may pass unobserved.
func (t *tracker) unanswered(c *connection) {
	c.incomplete = c.incomplete || t.incomplete(c)
	if c.state == flow.Decided && !c.incomplete && (c.clientEnd.pod != "" || c.serverEnd.local) {
		t.report(c, c.enter(flow.Unanswered, c.first.Add(flow.UnansweredAfter)))
	}
}

// finish is the end of the events of a list.
func (t *tracker) finish(now time.Time) {
	for _, c := range t.unresolved {
		t.resolve(c)
	}
	t.unresolved = nil
	for _, c := range t.begun {
		if now.Sub(c.first) >= flow.UnansweredAfter {
			t.unanswered(c)
		}
		c.over = c.over || c.state.Ended() && now.Sub(c.last) >= lingering
	}
}

// sweep forgets connections that are over, and the oldest if there are too many.
func (t *tracker) sweep(now time.Time) {
	t.swept = now
	t.sockets.sweep(now)
	for k, at := range t.direct {
		if t.newest.Sub(at) > 2*window {
			delete(t.direct, k)
		}
	}
	var all []*connection
	for k, c := range t.connections {
		if k.destination != c.wire && c.wire.IsValid() {
			continue // it is there twice
		}
		idle := now.Sub(c.active)
		switch open := c.protocol != decision.UDP && (c.state == flow.Established || c.state == flow.Closing || c.state == flow.Answered); {
		case c.state.Ended() && idle >= lingering, !open && idle >= idling:
			t.forget(c)
		default:
			all = append(all, c)
		}
	}
	if more := len(all) - maxConnections; more > 0 {
		slices.SortFunc(all, func(a, b *connection) int { return a.active.Compare(b.active) })
		for _, c := range all[:more] {
			t.unindex(c)
		}
	}
}
