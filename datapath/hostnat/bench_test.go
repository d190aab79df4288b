package hostnat

import (
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// BenchmarkEvaluate is a flow through kind's rules (KIND-MASQ-AGENT), as legacy iptables has them.
func BenchmarkEvaluate(b *testing.B) {
	network := func(v Payload, mask, net []byte) Compare {
		return Compare{Values: []Value{Masked{Of: v, Mask: mask}}, Ranges: []Range{Exactly(net)}}
	}
	destination := Payload{Offset: 16, ByteSize: 4}
	agent := chain("KIND-MASQ-AGENT",
		rule(network(destination, []byte{255, 255, 0, 0}, []byte{10, 244, 0, 0}), Verdict{Kind: Return}),
		rule(Module{Words: "-m comment"}, masquerade))
	base := chain("POSTROUTING", rule(Module{Tests: []Test{AddrTypes{Types: typeLocal, Negated: true}}}, Verdict{Kind: Jump, Chain: agent}))
	set := &Ruleset{Host: host(), Tables: map[decision.Family][]*Table{decision.IPv4: {{Base: base}}}}
	e := new(Evaluator)
	b.ReportAllocs()
	for b.Loop() {
		if r := e.Evaluate(set, pod); !r.Masquerade {
			b.Fatalf("%+v", r)
		}
	}
}
