package nftrules

import (
	"os"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

func BenchmarkX(b *testing.B) {
	text, _ := os.ReadFile("/tmp/kp10k.nft")
	rs, err := nftables.Read("x", strings.NewReader(string(text)), nftables.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		d, _ := Compile(rs, iptables.IPv4)
		h, _ := netfilter.GuessHost([]*iptables.Dump{d}, &netfilter.Host{}, nil)
		if _, err := netfilter.New([]*iptables.Dump{d}, nil, h, netfilter.Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
