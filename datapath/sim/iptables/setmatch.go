package iptables

import "strings"

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

var setModule = &module{
	name: "set",
	shapes: map[string]shape{
		"--match-set": notTwo, "--set": notTwo.named("--match-set"),
		"--return-nomatch": flag, "--update-counters": notFlag, "--update-subcounters": notFlag,
		"--packets-eq": notOne, "--packets-lt": one, "--packets-gt": one,
		"--bytes-eq": notOne, "--bytes-lt": one, "--bytes-gt": one,
	},
	kernel: []revision[Match]{
		{1, 4, func(r raw) (Match, bool) { return decodeSet(r, 1) }},
		{2, 4, func(r raw) (Match, bool) { return decodeSet(r, 2) }},
		{3, 44, func(r raw) (Match, bool) { return decodeSet(r, 3) }},
		{4, 44, func(r raw) (Match, bool) { return decodeSet(r, 4) }},
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

// decodeSet reads struct xt_set_info_match_v1, v3 and v4 (xt_set.h).
func decodeSet(r raw, rev uint8) (Match, bool) {
	const (
		maxDimensions = 6      // IPSET_DIM_MAX
		keepCounters  = 1 << 3 // IPSET_FLAG_SKIP_COUNTER_UPDATE
		keepSub       = 1 << 4 // IPSET_FLAG_SKIP_SUBCOUNTER_UPDATE
		returnNomatch = 1 << 7 // IPSET_FLAG_RETURN_NOMATCH, and IPSET_RETURN_NOMATCH of v2
		invertSelf    = 1 << 0 // IPSET_INV_MATCH
	)
	dimensions, flags := int(r.u8(2)), r.u8(3)
	if dimensions > maxDimensions || r.set == nil {
		return nil, false
	}
	name, ok := r.set(r.u16(0))
	m := SetMatch{Set: name, Negated: flags&invertSelf != 0, ReturnNomatch: rev == 2 && flags&returnNomatch != 0}
	for i := 1; i <= dimensions; i++ {
		d := SetDestination
		if flags&(1<<i) != 0 {
			d = SetSource
		}
		m.Directions = append(m.Directions, d)
	}
	if rev < 3 {
		return m, ok
	}
	more := r.u32(40)
	m.ReturnNomatch, m.KeepCounters, m.KeepSubcounters = more&returnNomatch != 0, more&keepCounters != 0, more&keepSub != 0
	test := func(at int) CounterTest {
		operation, value := at, at+8 // struct ip_set_counter_match0
		if rev == 4 {
			operation, value = at+8, at // struct ip_set_counter_match
		}
		if c := Comparison(r.u8(operation)); c != CompareNone {
			ok = ok && c <= CompareGreater
			return CounterTest{Compare: c, Value: r.u64(value)}
		}
		return CounterTest{}
	}
	m.Packets, m.Bytes = test(8), test(24)
	return m, ok
}

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
