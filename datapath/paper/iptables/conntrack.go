package iptables

import (
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// Conntrack is "-m conntrack" (xt_conntrack.c, conntrack_mt). For a packet without an entry only
// State is evaluated, and the rule does not match if it is not given.
type Conntrack struct {
	State               Condition[States]
	Protocol            Condition[uint8]   // IANA number, of the original direction
	OriginalSource      Condition[Network] // as the first packet had it
	OriginalDestination Condition[Network]
	// ReplySource is the source of replies, so the endpoint after DNAT; ReplyDestination is their
	// destination.
	ReplySource, ReplyDestination               Condition[Network]
	OriginalSourcePort, OriginalDestinationPort Condition[PortRange]
	ReplySourcePort, ReplyDestinationPort       Condition[PortRange]
	Status                                      Condition[CtStatus]
	Expire                                      Condition[Range[uint32]] // the entry's remaining life in seconds
	Direction                                   Condition[Direction]
}

// States are the states of --ctstate and --state.
type States uint16

// The states, with the bits of xt_conntrack.h. SNAT and DNAT are no states of conntrack: they mean
// that the source or destination of the connection is translated.
const (
	StateInvalid     States = 1 << 0 // XT_CONNTRACK_STATE_INVALID
	StateEstablished States = 1 << 1 // XT_CONNTRACK_STATE_BIT(IP_CT_ESTABLISHED)
	StateRelated     States = 1 << 2 // XT_CONNTRACK_STATE_BIT(IP_CT_RELATED)
	StateNew         States = 1 << 3 // XT_CONNTRACK_STATE_BIT(IP_CT_NEW)
	StateSNAT        States = 1 << 6 // XT_CONNTRACK_STATE_SNAT
	StateDNAT        States = 1 << 7 // XT_CONNTRACK_STATE_DNAT
	StateUntracked   States = 1 << 8 // XT_CONNTRACK_STATE_UNTRACKED
)

var stateNames = bitNames{
	{uint32(StateInvalid), "INVALID"}, {uint32(StateNew), "NEW"}, {uint32(StateRelated), "RELATED"},
	{uint32(StateEstablished), "ESTABLISHED"}, {uint32(StateUntracked), "UNTRACKED"},
	{uint32(StateSNAT), "SNAT"}, {uint32(StateDNAT), "DNAT"},
}

// String is "NEW,RELATED".
func (s States) String() string { return stateNames.text(uint32(s)) }

// CtStatus are bits of enum ip_conntrack_status (nf_conntrack_common.h); 0 is NONE, which matches
// an entry without any of these bits.
type CtStatus uint8

// The bits.
const (
	StatusExpected  CtStatus = 1 << 0 // IPS_EXPECTED
	StatusSeenReply CtStatus = 1 << 1 // IPS_SEEN_REPLY
	StatusAssured   CtStatus = 1 << 2 // IPS_ASSURED
	StatusConfirmed CtStatus = 1 << 3 // IPS_CONFIRMED
)

var statusNames = bitNames{
	{uint32(StatusExpected), "EXPECTED"}, {uint32(StatusSeenReply), "SEEN_REPLY"},
	{uint32(StatusAssured), "ASSURED"}, {uint32(StatusConfirmed), "CONFIRMED"},
}

// String is "EXPECTED,ASSURED", or "NONE".
func (s CtStatus) String() string {
	if s == 0 {
		return "NONE"
	}
	return statusNames.text(uint32(s))
}

// Direction is that of a packet in its connection: enum ip_conntrack_dir.
type Direction uint8

// The directions.
const (
	Original Direction = iota // IP_CT_DIR_ORIGINAL
	Reply                     // IP_CT_DIR_REPLY
)

var directionNames = []string{"ORIGINAL", "REPLY"}

func (d Direction) String() string { return nameOf(directionNames, d) }

var conntrackShapes = map[string]shape{
	"--ctstate": notOne, "--ctproto": notOne, "--ctorigsrc": notOne, "--ctorigdst": notOne, "--ctreplsrc": notOne,
	"--ctrepldst": notOne, "--ctorigsrcport": notOne, "--ctorigdstport": notOne, "--ctreplsrcport": notOne,
	"--ctrepldstport": notOne, "--ctstatus": notOne, "--ctexpire": notOne, "--ctdir": one,
}

var _ = addMatch(&module{
	name:   "conntrack",
	shapes: conntrackShapes, phrases: conntrackPhrases(),

	build: func(s *section) Match {
		if len(s.options) == 0 {
			s.miss("--ctstate, --ctstatus, ...")
		}
		statuses := someShort[CtStatus]("a list of conntrack statuses", append(bitNames{{0, "NONE"}}, statusNames...))
		return Conntrack{
			State:                   condition(s, "--ctstate", someShort[States]("a list of conntrack states", stateNames)),
			Protocol:                condition(s, "--ctproto", aProtocol),
			OriginalSource:          condition(s, "--ctorigsrc", s.moduleNetwork()),
			OriginalDestination:     condition(s, "--ctorigdst", s.moduleNetwork()),
			ReplySource:             condition(s, "--ctreplsrc", s.moduleNetwork()),
			ReplyDestination:        condition(s, "--ctrepldst", s.moduleNetwork()),
			OriginalSourcePort:      condition(s, "--ctorigsrcport", aPort),
			OriginalDestinationPort: condition(s, "--ctorigdstport", aPort),
			ReplySourcePort:         condition(s, "--ctreplsrcport", aPort),
			ReplyDestinationPort:    condition(s, "--ctrepldstport", aPort),
			Status:                  condition(s, "--ctstatus", statuses),
			Expire: condition(s, "--ctexpire", kind[Range[uint32]]{"a time", "seconds, or first:last", func(t string) (Range[uint32], bool) {
				return parseAnyRange[uint32](t, ":")
			}}),
			Direction: condition(s, "--ctdir", oneName[Direction]("a direction", directionNames)),
		}
	},
})

func (Conntrack) module() string { return "conntrack" }
func (m Conntrack) write(w *words) {
	writeCondition(w, "--ctstate", m.State, States.String)
	writeCondition(w, "--ctproto", m.Protocol, decimal)
	writeCondition(w, "--ctorigsrc", m.OriginalSource, Network.hostText)
	writeCondition(w, "--ctorigdst", m.OriginalDestination, Network.hostText)
	writeCondition(w, "--ctreplsrc", m.ReplySource, Network.hostText)
	writeCondition(w, "--ctrepldst", m.ReplyDestination, Network.hostText)
	writeCondition(w, "--ctorigsrcport", m.OriginalSourcePort, PortRange.String)
	writeCondition(w, "--ctorigdstport", m.OriginalDestinationPort, PortRange.String)
	writeCondition(w, "--ctreplsrcport", m.ReplySourcePort, PortRange.String)
	writeCondition(w, "--ctrepldstport", m.ReplyDestinationPort, PortRange.String)
	writeCondition(w, "--ctstatus", m.Status, CtStatus.String)
	writeCondition(w, "--ctexpire", m.Expire, Range[uint32].String)
	writeCondition(w, "--ctdir", m.Direction, Direction.String)
}

// states are the packet's states for --ctstate.
func (c *Context) states() States {
	bits := c.Host.State()
	if e := c.Host.Connection(); e != nil {
		if e.SNAT {
			bits |= StateSNAT
		}
		if e.DNAT {
			bits |= StateDNAT
		}
	}
	return bits
}

// test is conntrack_mt (xt_conntrack.c).
func (m Conntrack) test(c *Context) Truth {
	result := True
	if m.State.Given {
		result = c.inStates(m.State.Value, m.State.Negated)
	}
	if c.Host.Connection() == nil {
		return result.And(truthOf(m.State.Given))
	}
	for _, n := range []struct {
		Condition[Network]
		key   string
		reply bool
	}{
		{m.OriginalSource, "saddr", false}, {m.OriginalDestination, "daddr", false}, {m.ReplySource, "saddr", true}, {m.ReplyDestination, "daddr", true},
	} {
		if n.Given {
			result = result.And(c.ofConnection(rules.ConnectionField(n.key, n.reply, n.Value.Addr.BitLen()/8)).inNetwork(n.Value, n.Negated))
		}
	}
	for _, p := range []struct {
		Condition[PortRange]
		key   string
		reply bool
	}{
		{m.OriginalSourcePort, "proto-src", false}, {m.OriginalDestinationPort, "proto-dst", false},
		{m.ReplySourcePort, "proto-src", true}, {m.ReplyDestinationPort, "proto-dst", true},
	} {
		if p.Given {
			result = result.And(c.ofConnection(rules.ConnectionField(p.key, p.reply, 2)).inPorts(p.Value, p.Negated))
		}
	}
	if d := m.Direction; d.Given {
		result = result.And(c.ofConnection(rules.ConnectionDirection).is(d.Negated, byte(d.Value)))
	}
	if p := m.Protocol; p.Given {
		result = result.And(c.ofConnection(rules.ConnectionField("protocol", false, 1)).is(p.Negated, p.Value))
	}
	if s := m.Status; s.Given {
		result = result.And(c.ofConnection(rules.ConnectionStatus).anyBit(uint32(s.Value)).NegatedIf(s.Negated))
	}
	return result.And(truthOf(!m.Expire.fails(m.Expire.Value.Contains(c.Host.Expires()))))
}

func (m Conntrack) why(c *Context) string {
	if !m.State.Given {
		return ""
	}
	return "its state is " + c.states().String()
}

func (m Conntrack) whyNot(c *Context) string {
	if !m.State.Given {
		return ""
	}
	return isNot(m.why(c), m.State.Value.alternatives(), m.State.Negated)
}

// alternatives is "NEW or RELATED".
func (s States) alternatives() string { return strings.ReplaceAll(s.String(), ",", " or ") }

// State is "-m state", the older spelling of --ctstate, without SNAT and DNAT.
type State struct {
	States  States
	Negated bool
}

var _ = addMatch(&module{
	name:    "state",
	shapes:  map[string]shape{"--state": notOne},
	phrases: map[string]phrase{"state": statePhrase},
	build: func(s *section) Match {
		v, negated := sole(s, "--state", someShort[States]("a list of states", stateNames[:5]))
		return State{v, negated}
	},
})

func (State) module() string   { return "state" }
func (m State) write(w *words) { w.option(m.Negated, "--state", m.States.String()) }

func (m State) test(c *Context) Truth { return c.inStates(m.States, m.Negated) }

func (State) why(c *Context) string { return "its state is " + c.Host.State().String() }

func (m State) whyNot(c *Context) string {
	return isNot(m.why(c), m.States.alternatives(), m.Negated)
}

// conntrackPhrases: the text begins with any option.
func conntrackPhrases() map[string]phrase {
	phrases := make(map[string]phrase)
	for name := range conntrackShapes {
		phrases[strings.TrimPrefix(name, "--")] = conntrackPhrase
	}
	return phrases
}

// conntrackPhrase reads "! ctstate INVALID ctproto 6 ...". A repeated option belongs to another
// match.
func conntrackPhrase(w *wording, negated bool) bool {
	w.load("conntrack")
	w.at--
	given := make(map[string]bool)
	for {
		at := w.at
		not := w.word("!") || negated
		t, _ := w.next()
		if _, ok := conntrackShapes["--"+t.Text]; !ok || given[t.Text] {
			w.at = at
			return len(given) > 0
		}
		given[t.Text], negated = true, false
		v, ok := w.next()
		if !ok {
			return false
		}
		w.emit(not, "--"+t.Text, v)
	}
}

func statePhrase(w *wording, negated bool) bool {
	w.load("state")
	not, t, ok := w.negatable()
	w.emit(not != negated, "--state", t)
	return ok
}
