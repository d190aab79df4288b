package journal

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// wholeFlow has something in every field but Table.
func wholeFlow(s *decision.ServicePort) flow.Flow {
	return flow.Flow{
		Packet: decision.Packet{
			Protocol: decision.UDP, Source: netip.MustParseAddrPort("10.244.1.9:40000"), Destination: netip.MustParseAddrPort("[fd00::1]:80"),
			Local: true, InInterface: "eth0",
		},
		Decision: decision.Decision{
			Verdict: decision.DNAT, Reason: decision.Bound, Entry: decision.EntryNodePort, Branch: decision.BranchExternal, Policy: decision.Local,
			Mark: decision.MarkHairpin, Masquerade: true, Index: 1, Draw: 0.25, Drawn: true,
			Pick:        decision.Pick{Position: 1, Evidence: decision.Evidence{Kind: decision.Noted, Note: "the best"}, Probability: 0.5},
			ServicePort: s, Generation: 7,
		},
		Node: &node, TableAge: time.Second, Queue: 3, Time: time.Unix(1, 2), Waited: 4, Deciding: 5, Writing: 6, Accepting: 7,
		Proxy: "kube-proxy (iptables)", Outdated: 8, Outcome: conntrack.Kept, Existing: netip.MustParseAddrPort("10.244.0.9:8080"), ExistingMasqueraded: true, SourceAddr: netip.MustParseAddr("192.0.2.7"),
		HostRule: netip.MustParseAddr("192.0.2.8"), Err: errors.New("no"), Held: &flow.Hold{ID: "h"}, Earlier: []flow.Attempt{{Endpoint: "e"}},
		Shadows: []flow.ShadowPick{{Algorithm: "p2c"}},
	}
}

// TestKept: what is kept of a flow is all of it.
func TestKept(t *testing.T) {
	s := web()
	bare := flow.Flow{
		Packet: decision.Packet{Source: netip.MustParseAddrPort("10.244.1.9:1"), Destination: netip.MustParseAddrPort("10.96.0.10:80")},
		Node:   &node, Time: time.Unix(0, 0),
	}
	for _, f := range []flow.Flow{wholeFlow(s), bare} {
		k := keep(&f, keyOf(uint8(f.Packet.Protocol), f.Packet.Source, f.Packet.Destination))
		k.node = f.Node
		if f.Decision.ServicePort != nil {
			k.port = &usedPort{port: s}
		}
		if got := k.flow(); !reflect.DeepEqual(got, f) {
			t.Errorf("got  %+v\nwant %+v", got, f)
		}
	}
	whole := wholeFlow(s)
	for _, v := range []reflect.Value{reflect.ValueOf(whole), reflect.ValueOf(whole.Packet), reflect.ValueOf(whole.Decision)} {
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; v.Field(i).IsZero() && name != "Table" {
				t.Errorf("wholeFlow has no %s", name)
			}
		}
	}
}
