package nftrules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// BenchmarkCompile compiles the rules of ten thousand services with ten endpoints each, in the shape of kube-proxy's.
func BenchmarkCompile(b *testing.B) {
	var text, services strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&text, "\tchain service-%d {\n\t\tip saddr != 10.128.0.0/9 meta mark set meta mark | 0x4000\n\t\tnumgen random mod 10 vmap {", i)
		for j := range 10 {
			fmt.Fprintf(&text, " %d : goto endpoint-%d-%d,", j, i, j)
		}
		text.WriteString(" }\n\t}\n")
		for j := range 10 {
			fmt.Fprintf(&text, "\tchain endpoint-%d-%d {\n\t\tmeta l4proto tcp dnat to 10.%d.%d.%d:8080\n\t}\n", i, j, 128+i/250, i%250, j+1)
		}
		fmt.Fprintf(&services, "10.96.%d.%d . tcp . 80 : goto service-%d,\n", i/250, i%250+1, i)
	}
	rs, err := nftables.Read("rules", strings.NewReader("table ip kube-proxy {\n\tmap service-ips {\n\t\ttype ipv4_addr . inet_proto . inet_service : verdict\n\t\telements = { "+services.String()+
		" }\n\t}\n"+text.String()+"\tchain nat-prerouting {\n\t\ttype nat hook prerouting priority dstnat;\n\t\tip daddr . meta l4proto . th dport vmap @service-ips\n\t}\n}\n"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if d, _ := Compile(rs, iptables.IPv4); len(d.Tables[0].Rules) != 120001 {
			b.Fatal(len(d.Tables[0].Rules))
		}
	}
}
