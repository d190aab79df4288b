package hostnat

import (
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

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
