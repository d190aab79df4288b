package hostnat

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

func addr(a string) Value { return Const(netip.MustParseAddr(a).AsSlice()) }

func compare(v Value, first, last []byte) Compare {
	return Compare{Values: []Value{v}, Ranges: []Range{{first, last}}}
}

func equal(v Value, data ...byte) Compare { return compare(v, data, data) }

var (
	sourceAddr = Payload{Offset: 12, ByteSize: 4}
	toPort     = Payload{Transport: true, Offset: 2, ByteSize: 2}
	l4proto    = Meta{Key: "l4proto", ByteSize: 1}
	mark       = Meta{Key: "mark", ByteSize: 4}
	masquerade = NAT{Masquerade: true, Words: "-j MASQUERADE"}
	maybe      = Fixed{Result: Unknown, Words: "-m time …"}
	never      = Fixed{}
	log        = Other{Harmless: true, Words: "-j LOG"}
)

// chain makes a chain; each rule is a list of steps.
func chain(name string, rules ...[]Step) *Chain {
	c := &Chain{Name: name}
	for _, steps := range rules {
		c.Rules = append(c.Rules, &Rule{Chain: name, Steps: steps})
	}
	return c
}

// rule makes a list of steps.
func rule(steps ...Step) []Step { return steps }

func host() *Host {
	h := new(Host)
	h.AddAddress("eth0", netip.MustParsePrefix("172.20.0.2/16"))
	h.AddDevice("eth0", 2)
	return h
}

// pod is a flow of the pod 10.244.1.9 to an endpoint on another node.
var pod = Packet{
	Protocol: 6, Source: netip.MustParseAddrPort("10.244.1.9:1000"), Destination: netip.MustParseAddrPort("172.20.0.9:80"),
	Original: netip.MustParseAddrPort("10.96.0.1:80"), In: "veth1", Out: "eth0",
}

func evaluate(p Packet, tables ...*Table) Result {
	return new(Evaluator).Evaluate(&Ruleset{Host: host(), Tables: map[decision.Family][]*Table{decision.FamilyOf(p.Destination.Addr()): tables}}, p)
}

// TestTranslate: what becomes of the source.
func TestTranslate(t *testing.T) {
	for _, tt := range []struct {
		name       string
		steps      []Step
		masquerade bool
		source     string // empty: stays
		unknown    string // part of the reason
	}{
		{name: "masquerade", steps: rule(masquerade), masquerade: true},
		{name: "an address of the host", steps: rule(NAT{First: addr("172.20.0.2")}), source: "172.20.0.2"},
		{name: "another's address", steps: rule(NAT{First: addr("203.0.113.1")}), unknown: "203.0.113.1 is no address of this host"},
		{name: "within the range already", steps: rule(NAT{First: addr("10.244.1.1"), Last: addr("10.244.1.20")})},
		{name: "within the ports already", steps: rule(NAT{First: addr("10.244.1.9"), FirstPort: Const{3, 0}, LastPort: Const{4, 0}})},
		{name: "not within the ports", steps: rule(NAT{First: addr("10.244.1.9"), FirstPort: Const{19, 0}, LastPort: Const{20, 0}}), unknown: "10.244.1.9 is no address of this host"},
		{name: "only ports", steps: rule(NAT{FirstPort: Const{3, 0}, LastPort: Const{4, 0}})},
		{name: "of the other family", steps: rule(NAT{First: addr("fd00::1")}), unknown: NotKnown},
		{name: "of a map", steps: rule(NAT{First: Mapped{Key: Key{sourceAddr}, ByteSize: 4, Set: &Set{Elements: []Element{{Key: Exactly([]byte{10, 244, 1, 9}), Value: []byte{172, 20, 0, 2}}}}}}), source: "172.20.0.2"},
		{name: "of a map without it", steps: rule(NAT{First: Mapped{Key: Key{sourceAddr}, ByteSize: 4, Set: new(Set)}}), unknown: NotKnown},
		{name: "the other side", steps: rule(NAT{Masquerade: true, Destination: true}), unknown: NotKnown},
		{name: "network", steps: rule(NAT{Netmap: true, First: addr("172.20.0.0"), Last: addr("172.20.0.3")}), unknown: "172.20.0.1 is no address"},
		{name: "nothing", steps: rule(Verdict{Kind: Return})},
		{name: "stopped", steps: rule(Verdict{Kind: Drop}), unknown: Drops},
		{name: "not known", steps: rule(maybe, masquerade), unknown: NotKnown},
		{name: "known not to match", steps: rule(maybe, never, masquerade)},
		{name: "no chain", steps: rule(Verdict{Kind: Jump}), unknown: NotKnown},
		{name: "something else", steps: rule(Other{Words: "-j QUEUE …"}), unknown: NotKnown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := evaluate(pod, &Table{Name: "nat", Base: chain("POSTROUTING", tt.steps)})
			var source netip.Addr
			if tt.source != "" {
				source = netip.MustParseAddr(tt.source)
			}
			if r.Masquerade != tt.masquerade || r.Source != source || (r.Unknown == "") != (tt.unknown == "") || !strings.Contains(r.Unknown, tt.unknown) {
				t.Errorf("%+v", r)
			}
			if (r.Rule != nil) != (tt.masquerade || tt.source != "" || tt.unknown != "") {
				t.Errorf("rule %v", r.Rule)
			}
		})
	}
}

// TestDoubt: a test that is not known to be true only counts where it makes a difference.
func TestDoubt(t *testing.T) {
	nothing := chain("nothing", rule(log), rule(never, masquerade))
	returns := chain("returns", rule(maybe, Verdict{Kind: Return}), rule(log))
	leaves := chain("leaves", rule(maybe, Verdict{Kind: Return}), rule(SetMark{To: number4(1)}), rule(masquerade))
	accepts := chain("accepts", rule(Verdict{Kind: Accept}))
	const translated, stays, unknown = "translated", "stays", "unknown"
	for name, tt := range map[string]struct {
		rules [][]Step
		want  string
	}{
		"a log line":                        {[][]Step{rule(maybe, log), rule(masquerade)}, translated},
		"accepted, and nothing follows":     {[][]Step{rule(maybe, Verdict{Kind: Accept})}, stays},
		"accepted, or translated":           {[][]Step{rule(maybe, Verdict{Kind: Accept}), rule(masquerade)}, unknown},
		"dropped":                           {[][]Step{rule(maybe, Verdict{Kind: Drop})}, unknown},
		"to a chain that does nothing":      {[][]Step{rule(maybe, Verdict{Kind: Jump, Chain: nothing}), rule(masquerade)}, translated},
		"to a chain that accepts":           {[][]Step{rule(maybe, Verdict{Kind: Jump, Chain: accepts}), rule(masquerade)}, unknown},
		"to a chain and not back":           {[][]Step{rule(maybe, Verdict{Kind: Goto, Chain: nothing}), rule(masquerade)}, unknown},
		"to a chain and surely not back":    {[][]Step{rule(Verdict{Kind: Goto, Chain: nothing}), rule(masquerade)}, stays},
		"from a chain, and nothing follows": {[][]Step{rule(Verdict{Kind: Jump, Chain: returns}), rule(masquerade)}, translated},
		"from a chain that translates":      {[][]Step{rule(Verdict{Kind: Jump, Chain: leaves})}, unknown},
		"a mark that is not tested":         {[][]Step{rule(maybe, SetMark{To: number4(1)}), rule(masquerade)}, translated},
		"a mark that is tested":             {[][]Step{rule(maybe, SetMark{To: number4(1)}), rule(equal(mark, number4(1)...), masquerade)}, unknown},
		"a bit of it that is the same":      {[][]Step{rule(maybe, SetMark{To: number4(1)}), rule(equal(Masked{Of: mark, Mask: number4(2)}, number4(0)...), masquerade)}, translated},
		"a bit of it that is not":           {[][]Step{rule(maybe, SetMark{To: number4(1)}), rule(equal(Masked{Of: mark, Mask: number4(2)}, number4(2)...), masquerade)}, stays},
	} {
		r := evaluate(pod, &Table{Name: "nat", Base: chain("POSTROUTING", tt.rules...)})
		got := translated
		switch {
		case r.Unknown != "":
			got = unknown
		case r.Rule == nil:
			got = stays
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s: %+v", name, got, tt.want, r)
		}
	}
}

func number4(n uint32) Const {
	b := number(n)
	return append(Const(nil), b.bytes()...)
}

// TestTables: tables are evaluated in their order; ACCEPT ends only its own, also if it is in doubt, and
// the first that translates is the last one.
func TestTables(t *testing.T) {
	one := &Table{Name: "one", Base: chain("POSTROUTING", rule(equal(sourceAddr, 10, 1, 0, 1), Verdict{Kind: Accept}), rule(equal(sourceAddr, 10, 2, 0, 1), NAT{First: addr("172.20.0.2")}), rule(equal(sourceAddr, 10, 4, 0, 1), maybe, Verdict{Kind: Accept}))}
	two := &Table{Name: "two", Base: chain("out", rule(masquerade))}
	for from, want := range map[string]string{"10.1.0.1:1": "two", "10.2.0.1:1": "one", "10.3.0.1:1": "two", "10.4.0.1:1": "two"} {
		p := pod
		p.Source = netip.MustParseAddrPort(from)
		if r := evaluate(p, one, two); r.Table != want || r.Unknown != "" {
			t.Errorf("%s: %+v, want table %s", from, r, want)
		}
	}
	two.Base.Rules, two.Base.Drops = nil, true
	if r := evaluate(pod, one, two); r.Table != "two" || !strings.Contains(r.Unknown, "by its policy") || r.Rule == nil {
		t.Errorf("%+v, want the policy", r)
	}
	if !one.Translates() || two.Translates() || (*Ruleset)(nil).Any(decision.IPv4) {
		t.Error("which tables translate is not known")
	}
}

// TestTranslates: whatever way leads to a translation, the table is evaluated.
func TestTranslates(t *testing.T) {
	inner := chain("inner", rule(masquerade))
	for name, tt := range map[string]struct {
		step Step
		want bool
	}{
		"itself":             {masquerade, true},
		"by a jump":          {Verdict{Kind: Jump, Chain: inner}, true},
		"by a map":           {VerdictMap{Set: &Set{Elements: []Element{{Verdict: Verdict{Kind: Goto, Chain: inner}}}}}, true},
		"by a map's default": {VerdictMap{Set: &Set{Any: &Element{Verdict: Verdict{Kind: Jump, Chain: inner}}}}, true},
		"by an unknown map":  {VerdictMap{Set: &Set{Unreadable: true}}, true},
		"something unknown":  {Other{Words: "…"}, true},
		"a log line":         {log, false},
		"a verdict":          {Verdict{Kind: Accept}, false},
		"a map of verdicts":  {VerdictMap{Set: &Set{Elements: []Element{{Verdict: Verdict{Kind: Drop}}}}}, false},
	} {
		if got := (&Table{Base: chain("POSTROUTING", rule(tt.step))}).Translates(); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// TestLoop: a walk ends, whatever the rules are.
func TestLoop(t *testing.T) {
	loop := &Chain{Name: "loop"}
	for range 50 {
		loop.Rules = append(loop.Rules, &Rule{Chain: "loop", Steps: rule(Verdict{Kind: Jump, Chain: chain("end", rule(log))})})
	}
	outer := &Chain{Name: "POSTROUTING"}
	for range 5000 {
		outer.Rules = append(outer.Rules, &Rule{Chain: "POSTROUTING", Steps: rule(Verdict{Kind: Jump, Chain: loop})})
	}
	if r := evaluate(pod, &Table{Name: "nat", Base: outer}); !strings.Contains(r.Unknown, "has met 100000 rules") {
		t.Errorf("%+v", r)
	}
	self := &Chain{Name: "self"}
	self.Rules = []*Rule{{Chain: "self", Steps: rule(Verdict{Kind: Jump, Chain: self})}}
	if r := evaluate(pod, &Table{Name: "nat", Base: self}); r.Unknown == "" {
		t.Errorf("%+v", r)
	}
}

// TestRange compares values of which some bits are not known.
func TestRange(t *testing.T) {
	for _, tt := range []struct {
		data, known []byte
		first, last []byte
		want        Truth
	}{
		{[]byte{5}, []byte{0xff}, []byte{5}, []byte{5}, True},
		{[]byte{4}, []byte{0xfe}, []byte{5}, []byte{5}, Unknown},
		{[]byte{4}, []byte{0xfe}, []byte{6}, []byte{6}, False},
		{[]byte{1, 0}, []byte{0xff, 0}, []byte{1, 0}, []byte{1, 0xff}, True},
		{[]byte{1, 0}, []byte{0xff, 0}, []byte{1, 1}, []byte{1, 0xff}, Unknown},
		{[]byte{1, 0}, []byte{0xff, 0}, []byte{2, 0}, []byte{3, 0}, False},
		{[]byte{1, 0}, []byte{0xff, 0}, []byte{0, 0}, []byte{0, 9}, False},
		{[]byte{1, 7}, []byte{0xff, 0xff}, []byte{0, 9}, []byte{1, 6}, False},
		{[]byte{1, 7, 0}, []byte{0xff, 0xff, 0}, []byte{1, 7}, []byte{1, 7}, True}, // the first bytes
		{[]byte{1}, []byte{0xff}, []byte{1, 7}, []byte{1, 7}, Unknown},
	} {
		b := bits{size: len(tt.data)}
		copy(b.data[:], tt.data)
		copy(b.known[:], tt.known)
		if got := (Range{tt.first, tt.last}).contains(&b); got != tt.want {
			t.Errorf("%v of bits %v in %v to %v: %v, want %v", tt.data, tt.known, tt.first, tt.last, got, tt.want)
		}
	}
}

// TestMarkUse is about what may not be seen of a rule's text.
func TestMarkUse(t *testing.T) {
	connmark := Ct{Key: "mark", ByteSize: 4}
	for name, tt := range map[string]struct {
		step Step
		want MarkUse
	}{
		"all bits":        {SetMark{To: number4(1)}, MarkUse{Changes: Marks{Packet: ^uint32(0)}}},
		"some bits":       {SetMark{To: Masked{Of: mark, Mask: number4(^uint32(6)), Xor: number4(2)}}, MarkUse{Changes: Marks{Packet: 6}}},
		"toggled":         {SetMark{To: Masked{Of: mark, Mask: number4(^uint32(0)), Xor: number4(16)}}, MarkUse{Changes: Marks{Packet: 16}}},
		"moved":           {SetMark{Connection: true, To: Xor{A: Masked{Of: connmark, Mask: number4(^uint32(8))}, B: Shifted{Of: Masked{Of: mark, Mask: number4(1)}, By: 4}}}, MarkUse{Changes: Marks{Connection: 24}, Copies: Marks{Packet: 1}}},
		"moved the other": {SetMark{To: Shifted{Of: Masked{Of: connmark, Mask: number4(8)}, By: -3}}, MarkUse{Changes: Marks{Packet: ^uint32(0)}, Copies: Marks{Connection: 8}}},
		"tested":          {Module{Tests: []Test{Not{Tests: []Test{equal(Masked{Of: mark, Mask: number4(5)}, number4(4)...)}}}}, MarkUse{Tests: Marks{Packet: 5}}},
		"looked up":       {VerdictMap{Key: Key{l4proto, connmark}}, MarkUse{Tests: Marks{Connection: ^uint32(0)}}},
		"nothing":         {equal(toPort, 0, 80), MarkUse{}},
	} {
		if got := (&Rule{Steps: []Step{tt.step}}).MarkUse(); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// TestAllocations: a flow costs none.
func TestAllocations(t *testing.T) {
	set := &Ruleset{Host: host(), Tables: map[decision.Family][]*Table{decision.IPv4: {{Base: chain("POSTROUTING",
		rule(equal(l4proto, 17), masquerade), rule(AddrTypes{Types: typeLocal}, Verdict{Kind: Return}), rule(In{Key: Key{sourceAddr}, Set: &Set{}}, masquerade),
		rule(equal(Meta{Key: "oifname", ByteSize: 16}, []byte("eth0\x00")...), equal(Ct{Key: "saddr", ByteSize: 4}, 10, 244, 1, 9), masquerade))}}}}
	e := new(Evaluator)
	if n := testing.AllocsPerRun(100, func() {
		if r := e.Evaluate(set, pod); !r.Masquerade {
			t.Fatalf("%+v", r)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
