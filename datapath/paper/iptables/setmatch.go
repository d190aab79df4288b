package iptables

import (
	"fmt"
	"strings"
)

// SetMatch is "-m set": whether the packet is in an ipset (xt_set.c).
type SetMatch struct {
	Set string
	// Directions are, for each dimension of the set, source or destination for the lookup; at most
	// 6.
	Directions []SetDirection
	Negated    bool
	// ReturnNomatch: an element with nomatch also matches.
	ReturnNomatch bool
	// KeepCounters and KeepSubcounters are "! --update-counters" and
	// "! --update-subcounters".
	KeepCounters, KeepSubcounters bool
	// Packets and Bytes compare the element's counters.
	Packets, Bytes CounterTest
}

// SetDirection is one word of "src,dst".
type SetDirection uint8

// The directions.
const (
	SetSource SetDirection = iota
	SetDestination
)

func (d SetDirection) String() string { return nameOf([]string{"src", "dst"}, d) }

// CounterTest compares a counter with a value; with CompareNone it is always true.
type CounterTest struct {
	Compare Comparison
	Value   uint64
}

// Comparison is IPSET_COUNTER_... (ip_set.h).
type Comparison uint8

// The comparisons.
const (
	CompareNone Comparison = iota
	CompareEqual
	CompareNotEqual
	CompareLess
	CompareGreater
)

var _ = addMatch(&module{
	name: "set",
	shapes: map[string]shape{
		"--match-set": notTwo, "--set": notTwo.named("--match-set"),
		"--return-nomatch": flag, "--update-counters": notFlag, "--update-subcounters": notFlag,
		"--packets-eq": notOne, "--packets-lt": one, "--packets-gt": one,
		"--bytes-eq": notOne, "--bytes-lt": one, "--bytes-gt": one,
	},
	phrases: map[string]phrase{"match-set": setPhrase},
	build: func(s *section) Match {
		o := s.oneOf("--match-set")
		if len(o.values) == 0 {
			return SetMatch{}
		}
		return SetMatch{
			Set: value(s, o.values[0], keptText(31)), // IPSET_MAXNAMELEN
			Directions: value(s, o.values[1], kind[[]SetDirection]{"a list of directions", "src or dst for each dimension of the set, at most 6", func(t string) ([]SetDirection, bool) {
				var list []SetDirection
				for word := range strings.SplitSeq(t, ",") {
					switch strings.ToLower(word) {
					case "src":
						list = append(list, SetSource)
					case "dst":
						list = append(list, SetDestination)
					default:
						return nil, false
					}
				}
				return list, len(list) <= 6 // IPSET_DIM_MAX
			}}),
			Negated: o.negated, ReturnNomatch: s.has("--return-nomatch"),
			KeepCounters: s.negatedFlag("--update-counters"), KeepSubcounters: s.negatedFlag("--update-subcounters"),
			Packets: s.counterTest("--packets"), Bytes: s.counterTest("--bytes"),
		}
	},
})

// negatedFlag reports whether a flag is there with a "!".
func (s *section) negatedFlag(name string) bool {
	o, ok := s.find(name)
	return ok && o.negated
}

func (s *section) counterTest(prefix string) CounterTest {
	o, ok := s.atMostOne(prefix+"-eq", prefix+"-lt", prefix+"-gt")
	if !ok {
		return CounterTest{}
	}
	return CounterTest{o.comparison(), value(s, o.values[0], anyUint64)}
}

// comparison is that of an option whose name ends with -eq, -lt or -gt.
func (o option) comparison() Comparison {
	switch {
	case strings.HasSuffix(o.name.Text, "-lt"):
		return CompareLess
	case strings.HasSuffix(o.name.Text, "-gt"):
		return CompareGreater
	case o.negated:
		return CompareNotEqual
	}
	return CompareEqual
}

// comparisonOption is the end of such a name.
func comparisonOption(c Comparison) string {
	switch c {
	case CompareLess:
		return "-lt"
	case CompareGreater:
		return "-gt"
	}
	return "-eq"
}

func (t CounterTest) write(w *words, prefix string) {
	if t.Compare != CompareNone {
		w.option(t.Compare == CompareNotEqual, prefix+comparisonOption(t.Compare), decimal(t.Value))
	}
}

func (SetMatch) module() string { return "set" }
func (m SetMatch) write(w *words) {
	var directions []string
	for _, d := range m.Directions {
		directions = append(directions, d.String())
	}
	w.option(m.Negated, "--match-set", m.Set, strings.Join(directions, ","))
	w.flag(m.ReturnNomatch, "--return-nomatch")
	if m.KeepCounters {
		w.option(true, "--update-counters")
	}
	if m.KeepSubcounters {
		w.option(true, "--update-subcounters")
	}
	m.Packets.write(w, "--packets")
	m.Bytes.write(w, "--bytes")
}

// test is set_match (xt_set.c). The contents of sets are unknown without the file of `ipset save`,
// and the counters of elements always are.
func (m SetMatch) test(c *Context) Truth {
	s := c.Host.Set(m.Set)
	if s == nil || m.Packets.Compare != CompareNone || m.Bytes.Compare != CompareNone {
		return Unknown
	}
	return c.inSet(s, m.Directions, m.ReturnNomatch, 0).NegatedIf(m.Negated)
}

func (m SetMatch) whyNot(c *Context) string {
	verb := "is not"
	if m.Negated {
		verb = "is"
	}
	return fmt.Sprintf("%s %s in the ipset %s", m.element(c), verb, m.Set)
}

// element is the element that is looked up.
func (m SetMatch) element(c *Context) string {
	var parts []string
	for i, d := range m.Directions {
		what := c.Packet.Source
		if d == SetDestination {
			what = c.Packet.Destination
		}
		if i == 0 && len(m.Directions) == 1 {
			return what.Addr().String()
		}
		parts = append(parts, d.String())
	}
	return fmt.Sprintf("%s -> %s, as %s,", c.Packet.SourceText(), c.Packet.DestinationText(), strings.Join(parts, ","))
}

func (m SetMatch) unknown(c *Context) string {
	if c.Host.Set(m.Set) == nil {
		return fmt.Sprintf("the contents of the ipset %s are not known", m.Set)
	}
	return Describe(m) + " is not simulated"
}

// maxSetDepth is how deep lists of sets may be nested here; the kernel knows no lists in
// lists (ip_set_list_set.c).
const maxSetDepth = 2

// inSet looks the packet up. Of the networks that contain it the longest one decides; one with
// nomatch does not match.
func (c *Context) inSet(s *Set, directions []SetDirection, returnNomatch bool, depth int) Truth {
	_, spec, ok := strings.Cut(s.Type, ":")
	if !ok || depth >= maxSetDepth {
		return Unknown
	}
	dimensions := strings.Split(spec, ",")
	for _, d := range dimensions {
		switch d {
		case "ip", "net", "port", "mac", "iface", "set":
		default: // like hash:ip,mark
			return Unknown
		}
	}
	if dimensions[0] != "set" && len(directions) < len(dimensions) {
		return False // the kernel refuses such rules, or they never match
	}
	longest, found := -1, False
	for i := range s.Elements {
		e := &s.Elements[i]
		if dimensions[0] == "set" {
			member := c.Host.Set(e.Member)
			if member == nil {
				return Unknown
			}
			switch c.inSet(member, directions, returnNomatch, depth+1) {
			case Unknown:
				return Unknown
			case True:
				return True
			}
			continue
		}
		if bits, is := c.inElement(e, dimensions, directions); is && bits > longest {
			longest, found = bits, truthOf(!e.Nomatch || returnNomatch)
		}
	}
	return found
}

// inElement compares the packet with an element in each dimension. bits is the element's prefix
// length.
func (c *Context) inElement(e *Element, dimensions []string, directions []SetDirection) (bits int, is bool) {
	p, addresses := &c.Packet, 0
	for i, dimension := range dimensions {
		own, device := p.Source, c.In
		if directions[i] == SetDestination {
			own, device = p.Destination, c.Out
		}
		matches := false
		switch dimension {
		case "ip", "net":
			addresses++
			network := e.Network
			if addresses == 2 {
				network = e.Second
			}
			matches = network.IsValid() && network.Contains(own.Addr()) ||
				addresses == 1 && !network.IsValid() && e.Range.First.IsValid() && e.Range.Contains(own.Addr())
			bits += max(network.Bits(), 0)
		case "port":
			port := own.Port()
			if hasICMP(p.Protocol) {
				port = uint16(p.ICMPType)<<8 | uint16(p.ICMPCode)
			}
			matches = (e.Protocol == p.Protocol || len(dimensions) == 1 && HasPorts(p.Protocol)) && e.Ports.Contains(port)
		case "mac":
			matches = c.framed() && *p.MAC == e.MAC
		case "iface":
			matches = device != "" && device == strings.TrimPrefix(e.Interface, "physdev:")
		}
		if !matches {
			return 0, false
		}
	}
	return bits, true
}

// setPhrase reads "match-set NAME src,dst", followed by options as iptables-save writes them,
// without the dashes.
func setPhrase(w *wording, negated bool) bool {
	w.load("set")
	name, _ := w.next()
	directions, ok := w.next()
	w.emit(negated, "--match-set", name, directions)
	return ok && w.options("--", modules["set"].shapes)
}
