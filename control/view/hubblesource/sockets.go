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
	front      netip.AddrPort // before the translation
	service    string
	at         time.Time
	wire       netip.AddrPort // after the translation; invalid: not known yet
	of         netip.AddrPort // the Service's address that became wire
	translated time.Time
	arrived    time.Time // the last event, by this machine's clock
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
	// unexplained is when the last connection began that was resolved without a translation. One that comes later may be its.
	unexplained time.Time
	arrived     time.Time // when the last connection began, by this machine's clock
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
	state.arrived = now
	if !e.translated {
		state.front, state.service, state.at = e.destination, e.service, e.at
		if state.wire.IsValid() && !state.of.IsValid() && !e.at.After(state.translated) && state.translated.Sub(e.at) <= window {
			s.complete(e, state) // a relay sorts events by their time, and those of one time at random
		}
		return
	}
	tr := translation{port: e.source.Port(), at: e.at, arrived: now}
	// Without cookies of the kernel, Cilium sends 0 or, for TCP, a random number each time (sock_local_cookie in bpf_sock.c).
	if state.front.IsValid() && e.at.Sub(state.at).Abs() <= window && (e.cookie != 0 || tr.port != 0) {
		tr.front, tr.service = state.front, state.service
	}
	state.front = netip.AddrPort{} // the next translation has an event of its own
	if e.destination == state.wire && tr.front == state.of && e.at.Sub(state.translated) <= socketAge {
		state.translated = e.at // one more packet
		return
	}
	state.wire, state.of, state.translated = e.destination, tr.front, e.at
	b := s.between(pair{e.node, e.protocol, e.source.Addr(), e.destination})
	if tr.port == 0 && !b.unexplained.IsZero() && tr.at.Sub(b.unexplained) <= disorder {
		return
	}
	b.translations = append(b.translations, tr)
}

// complete adds what a socket's translation was of.
func (s *sockets) complete(e *event, state *socketState) {
	list := s.between(pair{e.node, e.protocol, e.source.Addr(), state.wire}).translations
	for i := range list {
		if tr := &list[i]; tr.at.Equal(state.translated) && tr.port == e.source.Port() && !tr.front.IsValid() {
			tr.front, tr.service, state.of = e.destination, e.service, e.destination
			state.front = netip.AddrPort{}
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
	b.waiting, b.arrived = append(b.waiting, c), c.arrived
}

// isEndpoint reports whether the destination of a packet is the endpoint of a socket with its source port. nfqproxy's own server
// has such events, and names the Service of these packets, too.
func (s *sockets) isEndpoint(e *event) bool {
	b := s.pairs[pair{e.node, e.protocol, e.source.Addr(), e.destination}]
	return b != nil && slices.ContainsFunc(b.translations, func(tr translation) bool { return tr.port == e.source.Port() })
}

// join finds the translation of a connection, by which it gets the Service's address. It stays unknown if translations
// of more than one Service may be the connection's, or if other connections have begun that the same translations may belong
// to. Connections are joined in the order of their beginning.
func (s *sockets) join(c *connection) {
	b := s.pairs[pairOf(c)]
	if b == nil || !c.wire.IsValid() {
		return
	}
	if i := slices.Index(b.waiting, c); i >= 0 {
		b.waiting = without(b.waiting, i)
	}
	old := 0
	for old < len(b.translations) && c.first.Sub(b.translations[old].at) > 2*window {
		old++
	}
	b.translations = b.translations[old:]
	if c.front.IsValid() { // by its packets
		return
	}
	var own []int
	for i, tr := range b.translations {
		after := c.first.Sub(tr.at)
		if after < -window {
			break // all that follow are later
		}
		if after < -disorder || after > window || tr.port != 0 && tr.port != c.client.Port() {
			continue
		}
		if len(own) > 0 && tr.front != b.translations[own[0]].front {
			return
		}
		own = append(own, i)
	}
	if len(own) == 0 {
		b.unexplained = c.first
		return
	}
	first := b.translations[own[0]]
	others := 0
	for others < len(b.waiting) && b.waiting[others].first.Sub(c.first) <= disorder {
		others++
	}
	if first.port == 0 && others >= len(own) {
		// One of them has begun otherwise. None of these translations can be said to be anyone's.
		b.translations = slices.Delete(b.translations, own[0], own[len(own)-1]+1)
		b.waiting = b.waiting[others:]
		return
	}
	b.translations = without(b.translations, own[0])
	if first.front.IsValid() && first.front != c.wire {
		c.front, c.service = first.front, first.service
	}
}

// without removes an element, which is mostly the first one.
func without[T any](list []T, i int) []T {
	if i == 0 {
		return list[1:]
	}
	return slices.Delete(list, i, i+1)
}

// sweep forgets what is too old to be joined.
func (s *sockets) sweep(now time.Time) {
	for k, state := range s.states {
		if now.Sub(state.arrived) > socketAge {
			delete(s.states, k)
		}
	}
	for k, b := range s.pairs {
		b.translations = slices.DeleteFunc(b.translations, func(tr translation) bool { return now.Sub(tr.arrived) > socketAge })
		if len(b.waiting)+len(b.translations) == 0 && now.Sub(b.arrived) > socketAge {
			delete(s.pairs, k)
		}
	}
}
