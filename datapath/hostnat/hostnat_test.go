package hostnat

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

func addr(a string) rules.Value { return rules.Const(netip.MustParseAddr(a).AsSlice()) }

func compare(v rules.Value, first, last []byte) rules.Compare {
	return rules.Compare{Values: []rules.Value{v}, Ranges: []rules.Range{{First: first, Last: last}}}
}

func equal(v rules.Value, data ...byte) rules.Compare { return compare(v, data, data) }

var (
	sourceAddr = rules.Payload{Offset: 12, ByteSize: 4}
	l4proto    = rules.Meta{Key: "l4proto", ByteSize: 1}
	mark       = rules.Meta{Key: "mark", ByteSize: 4}
	masquerade = rules.NAT{Kind: rules.Masquerade}
	maybe      = rules.Fixed{Result: rules.Unknown, Words: "-m time …"}
	never      = rules.Fixed{}
	log        = rules.Other{Harmless: true, Words: "-j LOG"}
)

// chain makes a chain; each rule is a list of steps.
func chain(name string, lists ...[]rules.Step) *rules.Chain {
	c := &rules.Chain{Name: name}
	for _, steps := range lists {
		c.Rules = append(c.Rules, &rules.Rule{Chain: name, Steps: steps})
	}
	return c
}

// rule makes a list of steps.
func rule(steps ...rules.Step) []rules.Step { return steps }

func host() *Host {
	h := new(Host)
	h.AddAddress("eth0", netip.MustParsePrefix("172.20.0.2/16"))
	h.AddDevice("eth0", 2)
	return h
}

// pod is a flow of the pod 10.244.1.9 to an endpoint on another node.
var pod = Packet{
	Packet: decision.Packet{
		Protocol: decision.TCP, Source: netip.MustParseAddrPort("10.244.1.9:1000"), Destination: netip.MustParseAddrPort("10.96.0.1:80"), InInterface: "veth1",
	},
	Endpoint: netip.MustParseAddrPort("172.20.0.9:80"), Out: "eth0",
}

func evaluate(p Packet, tables ...*Table) Result {
	return new(Evaluator).Evaluate(&Ruleset{Host: host(), Tables: map[decision.Family][]*Table{decision.FamilyOf(p.Endpoint.Addr()): tables}}, p)
}

// TestTranslate: what becomes of the source.
func TestTranslate(t *testing.T) {
	for _, tt := range []struct {
		name       string
		steps      []rules.Step
		masquerade bool
		source     string // empty: stays
		unknown    string // part of the reason
	}{
		{name: "masquerade", steps: rule(masquerade), masquerade: true},
		{name: "an address of the host", steps: rule(rules.NAT{First: addr("172.20.0.2")}), source: "172.20.0.2"},
		{name: "another's address", steps: rule(rules.NAT{First: addr("203.0.113.1")}), unknown: "203.0.113.1 is no address of this host"},
		{name: "within the range already", steps: rule(rules.NAT{First: addr("10.244.1.1"), Last: addr("10.244.1.20")})},
		{name: "within the ports already", steps: rule(rules.NAT{First: addr("10.244.1.9"), FirstPort: rules.Const{3, 0}, LastPort: rules.Const{4, 0}})},
		{name: "not within the ports", steps: rule(rules.NAT{First: addr("10.244.1.9"), FirstPort: rules.Const{19, 0}, LastPort: rules.Const{20, 0}}), unknown: "10.244.1.9 is no address of this host"},
		{name: "only ports", steps: rule(rules.NAT{FirstPort: rules.Const{3, 0}, LastPort: rules.Const{4, 0}})},
		{name: "of the other family", steps: rule(rules.NAT{First: addr("fd00::1")}), unknown: NotKnown},
		{name: "of a map", steps: rule(rules.NAT{First: rules.Mapped{Key: rules.Key{sourceAddr}, ByteSize: 4, Set: &rules.Set{Elements: []rules.Element{{Key: rules.Exactly([]byte{10, 244, 1, 9}), Value: []byte{172, 20, 0, 2}}}}}}), source: "172.20.0.2"},
		{name: "of a map without it", steps: rule(rules.NAT{First: rules.Mapped{Key: rules.Key{sourceAddr}, ByteSize: 4, Set: new(rules.Set)}}), unknown: NotKnown},
		{name: "the other side", steps: rule(rules.NAT{Kind: rules.DNAT}), unknown: NotKnown},
		{name: "network", steps: rule(rules.NAT{Netmap: true, First: addr("172.20.0.0"), Last: addr("172.20.0.3")}), unknown: "172.20.0.1 is no address"},
		{name: "nothing", steps: rule(rules.Verdict{Kind: rules.Return})},
		{name: "stopped", steps: rule(rules.Verdict{Kind: rules.Drop}), unknown: Drops},
		{name: "not known", steps: rule(maybe, masquerade), unknown: NotKnown},
		{name: "known not to match", steps: rule(maybe, never, masquerade)},
		{name: "no chain", steps: rule(rules.Verdict{Kind: rules.Jump}), unknown: NotKnown},
		{name: "something else", steps: rule(rules.Other{Words: "-j QUEUE …"}), unknown: NotKnown},
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
	returns := chain("returns", rule(maybe, rules.Verdict{Kind: rules.Return}), rule(log))
	leaves := chain("leaves", rule(maybe, rules.Verdict{Kind: rules.Return}), rule(rules.SetMark{To: number4(1)}), rule(masquerade))
	accepts := chain("accepts", rule(rules.Verdict{Kind: rules.Accept}))
	const translated, stays, unknown = "translated", "stays", "unknown"
	for name, tt := range map[string]struct {
		rules [][]rules.Step
		want  string
	}{
		"a log line":                        {[][]rules.Step{rule(maybe, log), rule(masquerade)}, translated},
		"accepted, and nothing follows":     {[][]rules.Step{rule(maybe, rules.Verdict{Kind: rules.Accept})}, stays},
		"accepted, or translated":           {[][]rules.Step{rule(maybe, rules.Verdict{Kind: rules.Accept}), rule(masquerade)}, unknown},
		"dropped":                           {[][]rules.Step{rule(maybe, rules.Verdict{Kind: rules.Drop})}, unknown},
		"to a chain that does nothing":      {[][]rules.Step{rule(maybe, rules.Verdict{Kind: rules.Jump, Chain: nothing}), rule(masquerade)}, translated},
		"to a chain that accepts":           {[][]rules.Step{rule(maybe, rules.Verdict{Kind: rules.Jump, Chain: accepts}), rule(masquerade)}, unknown},
		"to a chain and not back":           {[][]rules.Step{rule(maybe, rules.Verdict{Kind: rules.Goto, Chain: nothing}), rule(masquerade)}, unknown},
		"to a chain and surely not back":    {[][]rules.Step{rule(rules.Verdict{Kind: rules.Goto, Chain: nothing}), rule(masquerade)}, stays},
		"from a chain, and nothing follows": {[][]rules.Step{rule(rules.Verdict{Kind: rules.Jump, Chain: returns}), rule(masquerade)}, translated},
		"from a chain that translates":      {[][]rules.Step{rule(rules.Verdict{Kind: rules.Jump, Chain: leaves})}, unknown},
		"a mark that is not tested":         {[][]rules.Step{rule(maybe, rules.SetMark{To: number4(1)}), rule(masquerade)}, translated},
		"a mark that is tested":             {[][]rules.Step{rule(maybe, rules.SetMark{To: number4(1)}), rule(equal(mark, number4(1)...), masquerade)}, unknown},
		"a bit of it that is the same":      {[][]rules.Step{rule(maybe, rules.SetMark{To: number4(1)}), rule(equal(rules.Masked{Of: mark, Mask: number4(2)}, number4(0)...), masquerade)}, translated},
		"a bit of it that is not":           {[][]rules.Step{rule(maybe, rules.SetMark{To: number4(1)}), rule(equal(rules.Masked{Of: mark, Mask: number4(2)}, number4(2)...), masquerade)}, stays},
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

func number4(n uint32) rules.Const {
	b := rules.Number(n)
	return append(rules.Const(nil), b.Bytes()...)
}

// TestTables: tables are evaluated in their order; ACCEPT ends only its own, also if it is in doubt, and
// the first that translates is the last one.
func TestTables(t *testing.T) {
	one := &Table{Name: "one", Base: chain("POSTROUTING", rule(equal(sourceAddr, 10, 1, 0, 1), rules.Verdict{Kind: rules.Accept}), rule(equal(sourceAddr, 10, 2, 0, 1), rules.NAT{First: addr("172.20.0.2")}), rule(equal(sourceAddr, 10, 4, 0, 1), maybe, rules.Verdict{Kind: rules.Accept}))}
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
	if !one.Base.Translates() || two.Base.Translates() || (*Ruleset)(nil).Any(decision.IPv4) {
		t.Error("which tables translate is not known")
	}
}

// TestTranslates: whatever way leads to a translation, the table is evaluated.
func TestTranslates(t *testing.T) {
	inner := chain("inner", rule(masquerade))
	for name, tt := range map[string]struct {
		step rules.Step
		want bool
	}{
		"itself":             {masquerade, true},
		"by a jump":          {rules.Verdict{Kind: rules.Jump, Chain: inner}, true},
		"by a map":           {rules.VerdictMap{Set: &rules.Set{Elements: []rules.Element{{Verdict: rules.Verdict{Kind: rules.Goto, Chain: inner}}}}}, true},
		"by a map's default": {rules.VerdictMap{Set: &rules.Set{Any: &rules.Element{Verdict: rules.Verdict{Kind: rules.Jump, Chain: inner}}}}, true},
		"by an unknown map":  {rules.VerdictMap{Set: &rules.Set{Unreadable: true}}, true},
		"something unknown":  {rules.Other{Words: "…"}, true},
		"a log line":         {log, false},
		"a verdict":          {rules.Verdict{Kind: rules.Accept}, false},
		"a map of verdicts":  {rules.VerdictMap{Set: &rules.Set{Elements: []rules.Element{{Verdict: rules.Verdict{Kind: rules.Drop}}}}}, false},
	} {
		if got := chain("POSTROUTING", rule(tt.step)).Translates(); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// TestLoop: a walk ends, whatever the rules are.
func TestLoop(t *testing.T) {
	loop := &rules.Chain{Name: "loop"}
	for range 50 {
		loop.Rules = append(loop.Rules, &rules.Rule{Chain: "loop", Steps: rule(rules.Verdict{Kind: rules.Jump, Chain: chain("end", rule(log))})})
	}
	outer := &rules.Chain{Name: "POSTROUTING"}
	for range 5000 {
		outer.Rules = append(outer.Rules, &rules.Rule{Chain: "POSTROUTING", Steps: rule(rules.Verdict{Kind: rules.Jump, Chain: loop})})
	}
	if r := evaluate(pod, &Table{Name: "nat", Base: outer}); !strings.Contains(r.Unknown, "has met 100000 rules") {
		t.Errorf("%+v", r)
	}
	self := &rules.Chain{Name: "self"}
	self.Rules = []*rules.Rule{{Chain: "self", Steps: rule(rules.Verdict{Kind: rules.Jump, Chain: self})}}
	if r := evaluate(pod, &Table{Name: "nat", Base: self}); r.Unknown == "" {
		t.Errorf("%+v", r)
	}
}

// TestAllocations: a flow costs none.
func TestAllocations(t *testing.T) {
	set := &Ruleset{Host: host(), Tables: map[decision.Family][]*Table{decision.IPv4: {{Base: chain("POSTROUTING",
		rule(equal(l4proto, 17), masquerade), rule(rules.AddrTypes{Types: 1 << 2}, rules.Verdict{Kind: rules.Return}), rule(rules.In{Key: rules.Key{sourceAddr}, Set: &rules.Set{}}, masquerade),
		rule(equal(rules.Meta{Key: "oifname", ByteSize: 16}, []byte("eth0\x00")...), equal(rules.Ct{Key: "saddr", ByteSize: 4}, 10, 244, 1, 9), masquerade))}}}}
	e := new(Evaluator)
	if n := testing.AllocsPerRun(100, func() {
		if r := e.Evaluate(set, pod); !r.Masquerade {
			t.Fatalf("%+v", r)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkEvaluate is a flow through kind's rules (KIND-MASQ-AGENT), as legacy iptables has them.
func BenchmarkEvaluate(b *testing.B) {
	network := func(v rules.Payload, mask, net []byte) rules.Compare {
		return rules.Compare{Values: []rules.Value{rules.Masked{Of: v, Mask: mask}}, Ranges: []rules.Range{rules.Exactly(net)}}
	}
	destination := rules.Payload{Offset: 16, ByteSize: 4}
	agent := chain("KIND-MASQ-AGENT",
		rule(network(destination, []byte{255, 255, 0, 0}, []byte{10, 244, 0, 0}), rules.Verdict{Kind: rules.Return}),
		rule(rules.Module{Words: "-m comment"}, masquerade))
	base := chain("POSTROUTING", rule(rules.Module{Tests: []rules.Test{rules.AddrTypes{Types: 1 << 2, Negated: true}}}, rules.Verdict{Kind: rules.Jump, Chain: agent}))
	set := &Ruleset{Host: host(), Tables: map[decision.Family][]*Table{decision.IPv4: {{Base: base}}}}
	e := new(Evaluator)
	b.ReportAllocs()
	for b.Loop() {
		if r := e.Evaluate(set, pod); !r.Masquerade {
			b.Fatalf("%+v", r)
		}
	}
}
