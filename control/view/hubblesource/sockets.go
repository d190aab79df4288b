package hubblesource

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Cilium's socket load balancer translates the address of a Service in connect() and sendmsg(), before there is a packet. Its
// two events, before and after the translation, have the same socket cookie. They have the pod's address, which Hubble finds
// by the cgroup, and no source port. So the connection is the one that the pod begins to the endpoint at about that time.
//
// The times within which a connection begins around the translation: up to window after it and, as events may come in another
// order than they happened, up to disorder before it.
const (
	window   = time.Second
	disorder = 100 * time.Millisecond
)

// maxSockets bounds the sockets and the pairs of a pod and an endpoint that are remembered. A socket is forgotten after
// socketAge.
const maxSockets = 100_000

// socketAge is how long a translation of a socket's is the one before: a client of UDP that sends each packet by itself has
// one for each, and they are of one connection.
const socketAge = 30 * time.Second

// socketKey is a socket. Sources of Cilium's events have no port.
type socketKey struct {
	origin
	cookie, cgroup uint64
}

// socketState is what the last events of a socket said.
type socketState struct {
	front       netip.AddrPort // before the translation
	service     string
	at          time.Time
	wire        netip.AddrPort // after the translation; invalid: not known yet
	of          netip.AddrPort // the Service's address that became wire
	translated  time.Time
	arrivedLast time.Time
}

// pair is a pod and an endpoint.
type pair struct {
	node     string
	protocol decision.Protocol
	pod      netip.Addr
	wire     netip.AddrPort
}

// translation is one of a socket's.
type translation struct {
	front   netip.AddrPort // invalid: not known
	service string
	port    uint16 // of the source; 0: not known
	at      time.Time
	arrived time.Time
}

// between are the connections from a pod to an endpoint that wait to be resolved, and translations that may be theirs.
type between struct {
	waiting      []*connection
	translations []translation
}

// sockets joins the events of sockets with connections.
type sockets struct {
	states map[socketKey]*socketState
	pairs  map[pair]*between
}

func newSockets() sockets {
	return sockets{make(map[socketKey]*socketState), make(map[pair]*between)}
}

// socket takes an event of a socket.
func (s *sockets) socket(e *event, now time.Time) {
	k := socketKey{origin{e.node, e.protocol, e.source}, e.cookie, e.cgroup}
	state := s.states[k]
	if state == nil {
		if len(s.states) >= maxSockets {
			clear(s.states)
		}
		state = new(socketState)
		s.states[k] = state
	}
	state.arrivedLast = now
	if !e.translated {
		state.front, state.service, state.at = e.destination, e.service, e.at
		if state.wire.IsValid() && !state.of.IsValid() && !e.at.After(state.translated) && state.translated.Sub(e.at) <= window {
			s.complete(e, state) // a relay sorts events by their time, and those of one time at random
		}
		return
	}
	tr := translation{port: e.source.Port(), at: e.at, arrived: now}
	if state.front.IsValid() && e.at.Sub(state.at).Abs() <= window {
		tr.front, tr.service = state.front, state.service
	}
	if e.destination == state.wire && tr.front == state.of && e.at.Sub(state.translated) <= socketAge {
		state.translated = e.at // one more packet
		return
	}
	state.wire, state.of, state.translated = e.destination, tr.front, e.at
	b := s.between(pair{e.node, e.protocol, e.source.Addr(), e.destination})
	b.translations = append(b.translations, tr)
}

// complete adds what a socket's translation was of.
func (s *sockets) complete(e *event, state *socketState) {
	list := s.between(pair{e.node, e.protocol, e.source.Addr(), state.wire}).translations
	for i := range list {
		if tr := &list[i]; tr.at.Equal(state.translated) && tr.port == e.source.Port() && !tr.front.IsValid() {
			tr.front, tr.service, state.of = e.destination, e.service, e.destination
			return
		}
	}
}

func (s *sockets) between(p pair) *between {
	b := s.pairs[p]
	if b == nil {
		if len(s.pairs) >= maxSockets {
			clear(s.pairs)
		}
		b = new(between)
		s.pairs[p] = b
	}
	return b
}

func pairOf(c *connection) pair { return pair{c.node, c.protocol, c.client.Addr(), c.wire} }

// await lets a new connection wait for the events of its socket.
func (s *sockets) await(c *connection) {
	b := s.between(pairOf(c))
	b.waiting = append(b.waiting, c)
}

// isEndpoint reports whether the destination of a packet is the endpoint of a socket with its source port. nfqproxy's own server
// has such events, and names the Service of these packets, too.
func (s *sockets) isEndpoint(e *event) bool {
	b := s.pairs[pair{e.node, e.protocol, e.source.Addr(), e.destination}]
	return b != nil && slices.ContainsFunc(b.translations, func(tr translation) bool { return tr.port == e.source.Port() })
}

// join finds the translation of a connection, by which it gets the Service's address. It stays unknown if translations
// of more than one Service may be the connection's, or if other connections have begun that the same translation may belong
// to.
func (s *sockets) join(c *connection) {
	b := s.pairs[pairOf(c)]
	if b == nil || !c.wire.IsValid() {
		return
	}
	defer func() { b.waiting = slices.DeleteFunc(b.waiting, func(o *connection) bool { return o == c }) }()
	if c.front.IsValid() { // by its packets
		return
	}
	mayBe := func(tr translation, of *connection) bool {
		after := of.first.Sub(tr.at)
		return after >= -disorder && after <= window && (tr.port == 0 || tr.port == of.client.Port())
	}
	var own []int
	for i, tr := range b.translations {
		if mayBe(tr, c) {
			own = append(own, i)
		}
	}
	if len(own) == 0 {
		return
	}
	first := b.translations[own[0]]
	for _, i := range own {
		if b.translations[i].front != first.front {
			return
		}
	}
	var others []*connection
	for _, o := range b.waiting {
		if o != c && !o.front.IsValid() && o.first.Sub(c.first).Abs() <= disorder {
			others = append(others, o)
		}
	}
	if first.port == 0 && len(others) >= len(own) {
		// One of them has another beginning. None of these translations can be said to be anyone's.
		for n, i := range own {
			b.translations = slices.Delete(b.translations, i-n, i-n+1)
		}
		b.waiting = slices.DeleteFunc(b.waiting, func(o *connection) bool { return slices.Contains(others, o) })
		return
	}
	b.translations = slices.Delete(b.translations, own[0], own[0]+1)
	if first.front.IsValid() && first.front != c.wire {
		c.front, c.service = first.front, first.service
	}
}

// sweep forgets what is too old to be joined.
func (s *sockets) sweep(now time.Time) {
	for k, state := range s.states {
		if now.Sub(state.arrivedLast) > socketAge {
			delete(s.states, k)
		}
	}
	for k, b := range s.pairs {
		b.translations = slices.DeleteFunc(b.translations, func(tr translation) bool { return now.Sub(tr.arrived) > 2*window })
		if len(b.waiting)+len(b.translations) == 0 {
			delete(s.pairs, k)
		}
	}
}
