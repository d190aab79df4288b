package iptables

import "strings"

// SetMatch is "-m set": whether the packet is in an ipset (xt_set.c).
type SetMatch struct {
	Set string
	// Directions tell for each dimension of the set whether the packet's source or
	// destination is looked up; at most 6.
	Directions []SetDirection
	Negated    bool
	// ReturnNomatch: an element with nomatch matches, too.
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

var setModule = &module{
	name: "set",
	shapes: map[string]shape{
		"--match-set": notTwo, "--set": notTwo.named("--match-set"),
		"--return-nomatch": flag, "--update-counters": notFlag, "--update-subcounters": notFlag,
		"--packets-eq": notOne, "--packets-lt": one, "--packets-gt": one,
		"--bytes-eq": notOne, "--bytes-lt": one, "--bytes-gt": one,
	},
	build: func(s *section) Match {
		o := s.oneOf("--match-set")
		if len(o.values) == 0 {
			return SetMatch{}
		}
		return SetMatch{
			Set: value(s, o.values[0], shortText(31)), // IPSET_MAXNAMELEN
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
}

// negatedFlag says whether a flag is there with a "!".
func (s *section) negatedFlag(name string) bool {
	o, ok := s.find(name)
	return ok && o.negated
}

func (s *section) counterTest(prefix string) CounterTest {
	o, ok := s.atMostOne(prefix+"-eq", prefix+"-lt", prefix+"-gt")
	if !ok {
		return CounterTest{}
	}
	t := CounterTest{CompareEqual, value(s, o.values[0], anyUint64)}
	switch {
	case o.name.Text == prefix+"-lt":
		t.Compare = CompareLess
	case o.name.Text == prefix+"-gt":
		t.Compare = CompareGreater
	case o.negated:
		t.Compare = CompareNotEqual
	}
	return t
}

func (t CounterTest) write(w *words, prefix string) {
	switch t.Compare {
	case CompareEqual, CompareNotEqual:
		w.option(t.Compare == CompareNotEqual, prefix+"-eq", decimal(t.Value))
	case CompareLess:
		w.bare(prefix+"-lt", decimal(t.Value))
	case CompareGreater:
		w.bare(prefix+"-gt", decimal(t.Value))
	}
}

// Module is "set".
func (SetMatch) Module() string { return "set" }
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
