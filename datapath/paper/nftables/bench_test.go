package nftables

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

// kubeProxyRules are the rules of kube-proxy in mode nftables for so many services, each with ten endpoints, in the shape in which nft
// lists them.
func kubeProxyRules(services int) string {
	var b strings.Builder
	b.WriteString("table ip kube-proxy {\n\tcomment \"rules for kube-proxy\"\n\n\tmap service-ips {\n\t\ttype ipv4_addr . inet_proto . inet_service : verdict\n\t\tcomment \"ClusterIP, ExternalIP and LoadBalancer IP traffic\"\n\t\telements = { ")
	service := func(i int) string { return fmt.Sprintf("service-%08X-default/service-%d/tcp/http", i*2654435761, i) }
	endpoint := func(i, j int) (name, address string) {
		address = fmt.Sprintf("10.%d.%d.%d", 128+i/250%100, i%250, j+1)
		return fmt.Sprintf("endpoint-%08X-default/service-%d/tcp/http__%s/8080", i*40503+j, i, address), address
	}
	for i := range services {
		if i > 0 {
			b.WriteString(",\n\t\t\t     ")
		}
		fmt.Fprintf(&b, "10.96.%d.%d . tcp . 80 : goto %s", i/250, i%250+1, service(i))
	}
	b.WriteString(" }\n\t}\n")
	for i := range services {
		fmt.Fprintf(&b, "\n\tchain %s {\n\t\tip daddr 10.96.%d.%d tcp dport 80 ip saddr != 10.128.0.0/9 jump mark-for-masquerade\n\t\tnumgen random mod 10 vmap {", service(i), i/250, i%250+1)
		for j := range 10 {
			if j > 0 {
				b.WriteByte(',')
			}
			name, _ := endpoint(i, j)
			fmt.Fprintf(&b, " %d : goto %s", j, name)
		}
		b.WriteString(" }\n\t}\n")
		for j := range 10 {
			name, address := endpoint(i, j)
			fmt.Fprintf(&b, "\n\tchain %s {\n\t\tip saddr %s jump mark-for-masquerade\n\t\tmeta l4proto tcp dnat to %s:8080\n\t}\n", name, address, address)
		}
	}
	b.WriteString("}\n")
	return b.String()
}

// BenchmarkReadKubeProxy reads a cluster of ten thousand services with ten endpoints each.
func BenchmarkReadKubeProxy(b *testing.B) {
	text := kubeProxyRules(10000)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		r, err := Read("rules", strings.NewReader(text))
		if err != nil {
			b.Fatal(err)
		}
		if n := len(r.Tables[0].Chains); n != 110000 {
			b.Fatal(n)
		}
	}
}

func BenchmarkPrintKubeProxy(b *testing.B) {
	text := kubeProxyRules(10000)
	r, err := Read("rules", strings.NewReader(text))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := r.WriteTo(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReadElements reads a set of a hundred thousand prefixes.
func BenchmarkReadElements(b *testing.B) {
	var text strings.Builder
	text.WriteString("table inet t {\n\tset s {\n\t\ttype ipv4_addr\n\t\tflags interval\n\t\telements = { ")
	for i := range 100000 {
		fmt.Fprintf(&text, "%d.%d.%d.0/24, ", 1+i>>16, i>>8&255, i&255)
	}
	text.WriteString("224.0.0.0/4 }\n\t}\n}\n")
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Read("rules", strings.NewReader(text.String())); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReadJSON reads a hundred thousand chains of one rule each.
func BenchmarkReadJSON(b *testing.B) {
	var text strings.Builder
	text.WriteString(`{"nftables": [{"metainfo": {"version": "1.1.7"}}, {"table": {"family": "ip", "name": "t", "handle": 1}}`)
	for i := range 100000 {
		fmt.Fprintf(&text, `, {"chain": {"family": "ip", "table": "t", "name": "c%d", "handle": %d}}`, i, 2*i)
		fmt.Fprintf(&text, `, {"rule": {"family": "ip", "table": "t", "chain": "c%d", "handle": %d, "expr": [{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": "10.%d.%d.1"}}, {"jump": {"target": "mark-for-masquerade"}}]}}`, i, 2*i+1, i>>8, i&255)
	}
	text.WriteString("]}")
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Read("rules", strings.NewReader(text.String())); err != nil {
			b.Fatal(err)
		}
	}
}
