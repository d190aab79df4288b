package noderules

import (
	"math/rand/v2"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// TestMachine: a packet meets the rules of iptables and nftables together, a service proxy's among them, and those of iptables-nft once.
func TestMachine(t *testing.T) {
	const table = `{"nftables": [{"table": {"family": "ip", "name": "kube-proxy"}}, {"table": {"family": "ip", "name": "filter"}},
{"chain": {"family": "ip", "table": "kube-proxy", "name": "nat-prerouting", "type": "nat", "hook": "prerouting", "prio": -100, "policy": "accept"}},
{"chain": {"family": "ip", "table": "kube-proxy", "name": "nat-output", "type": "nat", "hook": "output", "prio": -100, "policy": "accept"}},
{"chain": {"family": "ip", "table": "kube-proxy", "name": "c", "type": "filter", "hook": "forward", "prio": -1, "policy": "accept"}},
{"rule": {"family": "ip", "table": "kube-proxy", "chain": "c", "handle": 1, "expr": [{"mangle": {"key": {"meta": {"key": "mark"}}, "value": 1}}]}},
{"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}}]}`
	r := Rules{Network: *network(), Listings: []Listing{
		{NFTables, table}, {"iptables-nft-save", dump("filter", ":FORWARD ACCEPT [0:0]\n[0:0] -A FORWARD -m mark --mark 0x1 -j REJECT")}, {"ip6tables-nft-save", ""},
	}}
	m, err := r.Machine(iptables.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	p := iptables.FirstPacket(uint8(pod.Protocol), pod.Source, pod.Endpoint, false)
	m.Place(&p)
	if result := m.Send(p, new(netfilter.State), rand.New(rand.NewPCG(1, 0))); result.Verdict != netfilter.Rejected || result.Table != "filter" {
		t.Errorf("%s by table %q: %+v", result.Verdict, result.Table, result.Steps)
	}
	if m, err := r.Machine(iptables.IPv6); m != nil || err != nil {
		t.Errorf("IPv6: %v, %v", m, err)
	}
	r.Listings[0].Text = "{"
	if _, err := r.Machine(iptables.IPv4); err == nil {
		t.Error("a listing that ends early")
	}
}
