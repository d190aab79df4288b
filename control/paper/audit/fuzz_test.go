package audit_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// FuzzRead: whatever the rules are, reading, comparing and making objects of them ends
// well, and two dumps that are the same do not differ.
func FuzzRead(f *testing.F) {
	f.Add(text(f, "kind-1.29-worker1-after"))
	f.Add(text(f, "kubeadm-1.22-flannel-node1"))
	for seed := range uint64(6) {
		c := newCluster(seed)
		table, _ := servicetable.Table(c.objects, c.config)
		f.Add(render(f, table, decision.IPv4))
		f.Add(render(f, table, decision.IPv6))
	}
	f.Fuzz(func(t *testing.T, text string) {
		dump, err := iptables.Parse(strings.NewReader(text), iptables.Options{})
		if err != nil {
			return
		}
		node := audit.Read(dump)
		objects := audit.NewObjects("", node)
		servicetable.Table(&kube.Objects{Services: objects.Services, EndpointSlices: objects.EndpointSlices}, audit.Config("", node))
		var b bytes.Buffer
		if err := objects.WriteYAML(&b); err != nil {
			t.Fatal(err)
		}
		if err := audit.WriteTable(&b, true, node); err != nil {
			t.Fatal(err)
		}
		if c := audit.Compare(dump, dump, true); !c.Same() {
			t.Fatalf("it differs from itself: %+v", c)
		}
	})
}

// FuzzReadNFTables: the same of rulesets of nftables.
func FuzzReadNFTables(f *testing.F) {
	f.Add(listing(f))
	for seed := range uint64(6) {
		f.Add(newCluster(seed).nftTables(f))
	}
	f.Fuzz(func(t *testing.T, text string) {
		ruleset, err := nftables.Read("fuzz", strings.NewReader(text))
		if err != nil {
			return
		}
		nodes := audit.ReadNFTables(ruleset)
		objects := audit.NewObjects("", nodes...)
		servicetable.Table(&kube.Objects{Services: objects.Services, EndpointSlices: objects.EndpointSlices}, audit.Config("", nodes...))
		var b bytes.Buffer
		if err := objects.WriteYAML(&b); err != nil {
			t.Fatal(err)
		}
		if err := audit.WriteTable(&b, true, nodes...); err != nil {
			t.Fatal(err)
		}
		if c := audit.CompareNFTables(ruleset, ruleset, true); !c.Same() {
			t.Fatalf("it differs from itself: %+v", c)
		}
	})
}
