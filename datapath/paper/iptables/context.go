package iptables

import (
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// Truth is the result of a match for a packet.
type Truth = rules.Truth

// The results.
const (
	False   = rules.False
	True    = rules.True
	Unknown = rules.Unknown // it depends on something that is not known
)

func truthOf(b bool) Truth {
	if b {
		return True
	}
	return False
}

// Context is a packet at one place of its way through a host, as the matches and targets of a rule
// see it: the sk_buff, the xt_action_param, and the parts of the kernel that modules look up. It is
// not safe for concurrent use.
type Context struct {
	Packet Packet
	// In and Out are the devices as the rules of the hook see them; empty: none.
	In, Out string
	// Rule is the rule under evaluation, and Match the position of the match among its matches in the
	// order of evaluation. Matches keep their memory by them.
	Rule  *Rule
	Match int
	Host  Host
}

// Host is what matches and targets see of the host besides the packet.
type Host interface {
	// Connection is that of the packet; nil: it has none.
	Connection() *Connection
	// Reply reports whether the packet is in the reply direction of its connection.
	Reply() bool
	// Tracked reports whether connection tracking has seen the packet, or must ignore it. Before,
	// its connection is the template of a rule.
	Tracked() bool
	// State is the packet's state in connection tracking: one of StateInvalid, StateUntracked,
	// StateNew and StateEstablished.
	State() States
	// Expires is the remaining life of the packet's connection in seconds.
	Expires() uint32
	// Lives reports whether a connection is in the table, and not closed.
	Lives(original Tuple, zone uint16) bool
	// Zone is the conntrack zone of a packet without a connection.
	Zone() uint16

	// AddrType reports whether the address is of one of the types. device limits the routes; empty:
	// all devices.
	AddrType(a netip.Addr, device string, types AddrTypes) bool
	// Hook is where the packet is: PREROUTING, INPUT, FORWARD, OUTPUT or POSTROUTING.
	Hook() string
	// RouteBack is the route from one of the packet's addresses to the other: its type, AddrUnspec if there is none, and its
	// device; for an address of the host the device that has it.
	RouteBack(to netip.Addr, mark uint32) (AddrTypes, string)
	// IsBroadcast reports whether it is a broadcast address of IPv4.
	IsBroadcast(a netip.Addr) bool
	// NextHop is the address to which the packet's route leads on its link; not valid: it has no route yet.
	NextHop() netip.Addr
	// Group is the group of a device; false: it is not known.
	Group(device string) (group uint32, known bool)
	// Translates reports whether the rules translate at all: only then is the packet's connection marked as done.
	Translates() bool
	// HasFrames reports whether packets on the device have an Ethernet header.
	HasFrames(device string) bool
	// Untrack has connection tracking ignore the packet, unless it has seen it.
	Untrack()
	// SetZone gives the packet a template with a zone, unless it has a connection or a template.
	SetZone(zone uint16)
	// Assign gives the packet to the transparent socket at an address and port; those that are not valid or 0 are the
	// input device's and the packet's own. false: there is no such socket.
	Assign(to netip.Addr, port uint16) bool
	// Assigned reports whether a rule has assigned the packet to a socket.
	Assigned() bool
	// Listener is the packet's socket on the host: whether there is one, whether it listens on all
	// addresses, and whether it has IP_TRANSPARENT.
	Listener() (found, wildcard, transparent bool)

	// Set is an ipset; nil: its contents are not known.
	Set(name string) *Set
	// Memory is what matches have kept of earlier packets.
	Memory() *Memory
	// Uptime is the time since the host booted in seconds, and Time the time of day; the zero time:
	// it is not known.
	Uptime() float64
	Time() time.Time
	// Fresh reports whether the rules have just been loaded, so that their counters are known.
	Fresh() bool
	// Draw is a random choice of the kernel: true with the probability p, 0 < p < 1.
	Draw(p float64) bool
	// Assume records an assumption that the result depends on.
	Assume(text string)
}

// Memory is what matches keep between packets, as their modules in the kernel do. Each kind of match
// has keys of a type of its own; the values are replaced, never changed. The zero value is empty.
type Memory struct{ kept map[any]any }

// Clone returns a copy.
func (m *Memory) Clone() Memory { return Memory{maps.Clone(m.kept)} }

// recall returns what is kept under a key; the zero value if nothing is.
func recall[T any](c *Context, key any) (value T, known bool) {
	value, known = c.Host.Memory().kept[key].(T)
	return value, known
}

func (c *Context) keep(key, value any) { c.Host.Memory().keep(key, value) }

func (m *Memory) keep(key, value any) {
	if m.kept == nil {
		m.kept = make(map[any]any)
	}
	m.kept[key] = value
}

// place identifies the match of a rule, which may have several of a kind.
type place struct {
	rule  *Rule
	match int
}

func (c *Context) place() place { return place{c.Rule, c.Match} }

// assume records an assumption.
func (c *Context) assume(format string, args ...any) { c.Host.Assume(fmt.Sprintf(format, args...)) }

// Optional parts of a match.
type (
	// depending is a match that reads more than addresses, ports, devices, marks, and the connection.
	depending interface{ reads() Facts }
	// failing explains why the match fails, with one sentence; empty: there is no better one than
	// that the match does not match.
	failing interface{ whyNot(*Context) string }
	// succeeding explains why it matches; empty: that is obvious.
	succeeding interface{ why(*Context) string }
	// telling explains both.
	telling interface {
		tell(c *Context, matched bool) string
	}
	// obscure is the reason for Unknown: the end of a sentence that begins with the match.
	obscure interface{ unknown(*Context) string }
)

// Optional parts of a target.
type (
	// changing changes the packet or its connection, and lets it continue with the next rule.
	changing interface{ change(*Context) }
	// describing describes the effect of the target on the packet, after it was applied.
	describing interface{ effect(*Context) string }
	// inert has no effect that other rules can see.
	inert interface{ inert() }
)

// Evaluate evaluates a match for the packet. If it depends on assumed fields, the assumption is
// recorded.
func (c *Context) Evaluate(m Match) Truth {
	if c.Packet.Supposed != 0 && !c.suppose(Reads(m)) {
		return Unknown
	}
	return m.test(c)
}

// WhyNot returns one sentence about why a match fails.
func (c *Context) WhyNot(m Match) string {
	text := ""
	switch m := m.(type) {
	case failing:
		text = m.whyNot(c)
	case telling:
		text = m.tell(c, false)
	}
	if text == "" {
		text = Describe(m) + " does not match"
	}
	return text
}

// Why returns one sentence about why a match succeeds; empty if that is obvious.
func (c *Context) Why(m Match) string {
	switch m := m.(type) {
	case succeeding:
		return m.why(c)
	case telling:
		return m.tell(c, true)
	}
	return ""
}

// WhyUnknown returns one sentence about why the result of a match is unknown.
func (c *Context) WhyUnknown(m Match) string {
	if o, ok := m.(obscure); ok {
		return o.unknown(c)
	}
	return Describe(m) + " is not simulated"
}

// Change applies a target that changes the packet or its connection; it does nothing for others.
func (c *Context) Change(t Target) {
	if t, ok := t.(changing); ok {
		t.change(c)
	}
}

// Effect describes the effect of a target that was applied; empty for a rule without a target.
func (c *Context) Effect(t Target) string {
	switch t := t.(type) {
	case nil:
		return ""
	case describing:
		return t.effect(c)
	}
	return t.name() + " is applied"
}
