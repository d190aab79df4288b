package nftrules

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// condition is the part of an [iptables.Native] that has no effect.
type condition struct{}

func (condition) Does(*iptables.Context) string { return "" }
func (condition) Effect() bool                  { return false }

// comparison compares a field with constants; it is an [iptables.Native].
type comparison struct {
	condition
	rules.Compare
	field
	of    nftables.Match
	flags bool // the constants are flags
}

func (m *comparison) Text() string                             { return nftables.Text(m.of) }
func (m *comparison) Reads() iptables.Facts                    { return m.facts }
func (m *comparison) Evaluate(c *iptables.Context) rules.Truth { return m.Compare.Test(c) }

func (m *comparison) WhyNot(c *iptables.Context) string {
	if _, random := m.Value.(*numgen); random {
		return "the random number is another one"
	}
	b, present := m.Value.Read(c)
	switch {
	case !present:
		return fmt.Sprintf("the packet has no %s", m.field.name())
	case !b.All():
		return fmt.Sprintf("%s is not %s", m.field.name(), m.want())
	case m.Negated && !m.flags:
		return fmt.Sprintf("%s is %s", m.field.name(), m.kind.describe(m.plain(b.Bytes())))
	}
	return fmt.Sprintf("%s is %s, not %s", m.field.name(), m.kind.describe(m.plain(b.Bytes())), m.want())
}

// want is what the field has to be.
func (m *comparison) want() string {
	words := map[string]string{"<": "less than ", "<=": "at most ", ">": "more than ", ">=": "at least ", "!": "without "}
	return words[m.of.Op] + nftables.Text(m.of.Right)
}

func (m *comparison) WhyUnknown(*iptables.Context) string {
	return fmt.Sprintf("%s is not known of this packet", m.field.name())
}

// membership looks a key up in a set; it is an [iptables.Native].
type membership struct {
	condition
	*table
	negated bool
	of      nftables.Match
}

func (m *membership) Text() string { return nftables.Text(m.of) }

func (m *membership) Reads() iptables.Facts {
	facts := factsOf(m.fields)
	if m.limited() {
		facts |= iptables.FactMemory
	}
	return facts
}

func (m *membership) Evaluate(c *iptables.Context) rules.Truth {
	for _, f := range m.fields { // a packet without the field matches neither
		if _, random := f.Value.(*numgen); random {
			continue
		}
		if _, present := f.Read(c); !present {
			return rules.False
		}
	}
	e, t := m.find(c)
	if t == rules.True && !m.negated {
		return m.runs(c, e)
	}
	return t.NegatedIf(m.negated)
}

func (m *membership) WhyNot(c *iptables.Context) string {
	verb := "is not"
	if m.negated {
		verb = "is"
	}
	if m.limited() {
		if _, t := m.find(c); t == rules.True && !m.negated {
			return fmt.Sprintf("the limit or quota of %s in %s does not match", m.described(c), m.name())
		}
	}
	return fmt.Sprintf("%s %s in %s", m.described(c), verb, m.name())
}

func (m *membership) WhyUnknown(c *iptables.Context) string {
	if f := m.unread(c); f != "" {
		return f
	}
	return fmt.Sprintf("the element of %s has a statement that is not supported", m.name())
}

// fixed is a condition or statement with the same result for all packets.
type fixed struct {
	condition
	words, why string
	result     rules.Truth
	facts      iptables.Facts
}

// never is a condition that no packet of the family meets.
func never(words, why string) fixed { return fixed{words: words, why: why, result: rules.False} }

// unsupported is a condition or statement whose result is not known.
func unsupported(words, why string) fixed {
	return fixed{words: words, why: why, result: rules.Unknown, facts: iptables.FactOther}
}

func (m fixed) Text() string                           { return m.words }
func (m fixed) Reads() iptables.Facts                  { return m.facts }
func (m fixed) Evaluate(*iptables.Context) rules.Truth { return m.result }
func (m fixed) WhyNot(*iptables.Context) string        { return m.why }
func (m fixed) WhyUnknown(*iptables.Context) string    { return m.why }

// match compiles a condition.
func (c *compiler) match(b *builder, m nftables.Match) error {
	if f, ok := m.Left.(nftables.Fib); ok && f.Result == "oif" && isPresence(m.Right) { // as nft before 1.0.7 writes it
		f.Check = true
		m.Left = f
	}
	fields, err := c.fields(m.Left)
	if err != nil {
		return err
	}
	for i := range fields {
		f := &fields[i]
		if raw, ok := f.expr.(nftables.RawPayload); ok && raw.Base == "ll" && raw.Offset <= 96 && raw.Offset+raw.Length >= 112 {
			b.frameType = true
		}
		if f.never {
			return errFamily
		}
		if f.unreadable() {
			return fmt.Errorf("%s is not supported", f.name())
		}
		b.needs(f.needs)
	}
	if _, ok := m.Right.(nftables.Range); ok && len(fields) == 1 {
		if r, err := fields[0].rangeOf(m.Right); err == nil && bytes.Compare(r.First, r.Last) > 0 {
			return errors.New("no range ends before it begins: nft lists a condition with < and the next one with > as one")
		}
	}
	if typed := c.typed(fields, m); typed != nil {
		b.matches = append(b.matches, typed...)
		return nil
	}
	set := m.Right
	switch m.Right.(type) {
	case nftables.SetRef, nftables.AnonymousSet:
	default:
		if len(fields) == 1 {
			compare, err := compareWith(&fields[0], m)
			if err == nil {
				b.add(compare)
			}
			return err
		}
		set = nftables.AnonymousSet{Elements: []nftables.Element{{Key: m.Right}}}
	}
	t, err := c.table(set, fields)
	if err == nil {
		b.add(&membership{table: t, negated: m.Op == "!=", of: m})
	}
	return err
}

// isPresence reports whether a constant says that something is there or not.
func isPresence(e nftables.Expr) bool {
	l, ok := e.(nftables.Literal)
	_, is := kindBool.names[l.Text]
	return ok && is && l.Kind != nftables.Quoted
}

// compareWith compares a field with a constant (nftables, src/netlink_linearize.c: netlink_gen_relational, netlink_gen_flagcmp).
func compareWith(f *field, m nftables.Match) (*comparison, error) {
	out := &comparison{field: *f, of: m}
	out.Values = []rules.Value{f.Value}
	zero := make([]byte, f.Size())
	if m.Op == "in" || m.Op == "!" {
		flags, err := f.value(m.Right)
		if err != nil {
			return nil, err
		}
		out.flags = true
		out.Values = []rules.Value{rules.Masked{Of: f.Value, Mask: flags}}
		out.Ranges, out.Negated = []rules.Range{rules.Exactly(zero)}, m.Op == "in"
		return out, nil
	}
	r, err := f.rangeOf(m.Right)
	if err != nil {
		return nil, err
	}
	most := f.placed(maximum(f))
	switch m.Op {
	case "==":
	case "!=":
		out.Negated = true
	case "<":
		r = rules.Range{First: r.First, Last: most}
		out.Negated = true
	case "<=":
		r = rules.Range{First: zero, Last: r.Last}
	case ">":
		r = rules.Range{First: zero, Last: r.Last}
		out.Negated = true
	case ">=":
		r = rules.Range{First: r.First, Last: most}
	default:
		return nil, fmt.Errorf("%s is not supported", m.Op)
	}
	out.Ranges = []rules.Range{r}
	tellApart([]field{*f}, out.Ranges)
	return out, nil
}

// maximum is the greatest value of a field.
func maximum(f *field) []byte {
	if f.mask == nil {
		b := make([]byte, f.Size())
		for i := range b {
			b[i] = 0xff
		}
		return b
	}
	return f.plain(f.mask)
}

// typed is a condition that iptables has, too.
func (c *compiler) typed(fields []field, m nftables.Match) []iptables.Match {
	if len(fields) != 1 {
		return nil
	}
	f, negated := &fields[0], m.Op == "!="
	switch v := f.Value.(type) {
	case rules.Meta:
		switch v.Key {
		case "iif", "iifname":
			if i, ok := device(m); ok {
				return []iptables.Match{iptables.InInterface{Interface: i, Negated: negated}}
			}
		case "oif", "oifname":
			if i, ok := device(m); ok {
				return []iptables.Match{iptables.OutInterface{Interface: i, Negated: negated}}
			}
		case "l4proto":
			return typedProtocol(f, m)
		case "mark":
			return typedMark(f, m, ^uint32(0))
		}
	case rules.Masked:
		if of, ok := v.Of.(rules.Meta); ok && of.Key == "mark" && zeros(v.Xor) {
			return typedMark(f, m, uint32(numberOf(v.Mask)))
		}
	case rules.Ct:
		if v.Key == "state" && m.Op == "in" {
			return typedState(f, m)
		}
	case rules.AddrType:
		return c.typedAddrType(f, v, m)
	case rules.Payload:
		return c.typedPayload(f, v, m)
	}
	return nil
}

func zeros(b []byte) bool { return numberOf(b) == 0 }

// device is the one device that a condition names.
func device(m nftables.Match) (iptables.Interface, bool) {
	l, ok := m.Right.(nftables.Literal)
	if !ok || m.Op != "==" && m.Op != "!=" || l.Kind == nftables.Number || l.Text == "" || len(l.Text) >= rules.DeviceSize {
		return iptables.Interface{}, false
	}
	if n := len(l.Text) - 1; l.Text[n] == '*' {
		return iptables.Interface{Name: l.Text[:n], Wildcard: true}, n == 0 || l.Text[n-1] != '\\'
	}
	return iptables.Interface{Name: l.Text}, true
}

func typedProtocol(f *field, m nftables.Match) []iptables.Match {
	l, ok := m.Right.(nftables.Literal)
	if b, known := f.kind.constant(l); ok && known && b[0] != 0 && (m.Op == "==" || m.Op == "!=") {
		return []iptables.Match{iptables.Protocol{Number: b[0], Negated: m.Op == "!="}}
	}
	return nil
}

func typedMark(f *field, m nftables.Match, mask uint32) []iptables.Match {
	b, err := f.value(m.Right)
	if err != nil || m.Op != "==" && m.Op != "!=" {
		return nil
	}
	return []iptables.Match{iptables.Mark{Mark: iptables.MaskedValue{Value: uint32(numberOf(b)), Mask: mask}, Negated: m.Op == "!="}}
}

func typedState(f *field, m nftables.Match) []iptables.Match {
	b, err := f.value(m.Right)
	if err != nil {
		return nil
	}
	states := iptables.States(numberOf(b))
	if states&64 != 0 {
		states = states&^64 | iptables.StateUntracked
	}
	return []iptables.Match{iptables.Conntrack{State: iptables.Condition[iptables.States]{Given: true, Value: states}}}
}

func (c *compiler) typedAddrType(f *field, v rules.AddrType, m nftables.Match) []iptables.Match {
	const prohibit = 8 // RTN_PROHIBIT, the last type of nft
	b, err := f.value(m.Right)
	if err != nil || m.Op != "==" && m.Op != "!=" || !c.is4() || numberOf(b) > prohibit {
		return nil
	}
	types := iptables.Condition[iptables.AddrTypes]{Given: true, Negated: m.Op == "!=", Value: iptables.AddrUnspec << numberOf(b)}
	a := iptables.Addrtype{Destination: types, LimitIn: v.In, LimitOut: v.Out}
	if v.Source {
		a.Source, a.Destination = types, iptables.Condition[iptables.AddrTypes]{}
	}
	return []iptables.Match{a}
}

// typedPayload is a condition on addresses or ports.
func (c *compiler) typedPayload(f *field, v rules.Payload, m nftables.Match) []iptables.Match {
	if m.Op != "==" && m.Op != "!=" {
		return nil
	}
	negated := m.Op == "!="
	switch f.kind {
	case kindProtocol:
		if c.is4() {
			return typedProtocol(f, m)
		}
	case kindAddr4, kindAddr6:
		p, ok := prefixOf(f, m.Right)
		source := v.Offset == 12 && c.is4() || v.Offset == 8 && !c.is4()
		switch {
		case !ok || v.Transport:
		case source:
			return []iptables.Match{iptables.Source{Network: iptables.NetworkOf(p), Negated: negated}}
		default:
			return []iptables.Match{iptables.Destination{Network: iptables.NetworkOf(p), Negated: negated}}
		}
	case kindPort:
		if f.needs != protoTCP && f.needs != protoUDP && f.needs != protoSCTP {
			return nil
		}
		return typedPorts(f, v.Offset == 0, m, negated)
	}
	return nil
}

// anyPort is what every port is in.
var anyPort = iptables.Ports{Range: iptables.PortRange{First: 0, Last: 65535}}

func typedPorts(f *field, source bool, m nftables.Match, negated bool) []iptables.Match {
	var list []iptables.PortRange
	elements := []nftables.Element{{Key: m.Right}}
	if set, ok := m.Right.(nftables.AnonymousSet); ok {
		elements = set.Elements
	}
	for _, e := range elements {
		r, err := f.rangeOf(e.Key)
		if err != nil || len(e.Statements) > 0 {
			return nil
		}
		list = append(list, iptables.PortRange{First: uint16(numberOf(r.First)), Last: uint16(numberOf(r.Last))})
	}
	if len(list) != 1 {
		side := iptables.DestinationPorts
		if source {
			side = iptables.SourcePorts
		}
		return []iptables.Match{iptables.Multiport{Side: side, Ports: list, Negated: negated}}
	}
	from, to := anyPort, iptables.Ports{Range: list[0], Negated: negated}
	if source {
		from, to = to, from
	}
	switch f.needs {
	case protoTCP:
		return []iptables.Match{iptables.TCP{Source: from, Destination: to}}
	case protoUDP:
		return []iptables.Match{iptables.UDP{Source: from, Destination: to}}
	}
	return []iptables.Match{iptables.SCTP{Source: from, Destination: to}}
}

// Sources are those of the set, also of one that must not have the packet.
func (m *membership) Sources() []netip.Prefix { return m.table.Sources() }

// Destinations are those of the set; of one that must not have the packet, none.
func (m *membership) Destinations() []netip.Prefix {
	if m.negated {
		return nil
	}
	return m.table.Destinations()
}
