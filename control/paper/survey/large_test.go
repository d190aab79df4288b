package survey_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/paper/survey"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// manyServices are the rules of services, each with endpoints and a node port, as kube-proxy writes them. The endpoints have all
// addresses of their networks.
func manyServices(services, endpoints int) string {
	var nat, filter strings.Builder
	nat.WriteString("*nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:KUBE-SERVICES - [0:0]\n")
	var rules strings.Builder
	for i := range services {
		h := fmt.Sprintf("%016d", i)
		ip, name := fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250), fmt.Sprintf("default/web-%d", i)
		fmt.Fprintf(&nat, ":KUBE-EXT-%s - [0:0]\n:KUBE-SVC-%[1]s - [0:0]\n", h)
		fmt.Fprintf(&rules, "-A KUBE-SERVICES -d %s/32 -p tcp -m comment --comment \"%s cluster IP\" -m tcp --dport 80 -j KUBE-SVC-%s\n", ip, name, h)
		fmt.Fprintf(&rules, "-A KUBE-SVC-%s ! -s 10.128.0.0/9 -d %s/32 -p tcp -m comment --comment \"%s cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ\n", h, ip, name)
		fmt.Fprintf(&rules, "-A KUBE-NODEPORTS -p tcp -m comment --comment \"%s\" -m tcp --dport %d -j KUBE-EXT-%s\n", name, 20000+i, h)
		fmt.Fprintf(&rules, "-A KUBE-EXT-%s -m comment --comment \"masquerade traffic for %s external destinations\" -j KUBE-MARK-MASQ\n-A KUBE-EXT-%[1]s -j KUBE-SVC-%[1]s\n", h, name)
		for e := range endpoints {
			n := i*endpoints + e
			at, chain := fmt.Sprintf("10.%d.%d.%d", 128+n>>16, n>>8&255, n&255), fmt.Sprintf("KUBE-SEP-%s%d", h[2:], e)
			statistic := ""
			if left := endpoints - e; left > 1 {
				statistic = fmt.Sprintf(" -m statistic --mode random --probability %.11f", 1/float64(left))
			}
			fmt.Fprintf(&nat, ":%s - [0:0]\n", chain)
			fmt.Fprintf(&rules, "-A KUBE-SVC-%s -m comment --comment \"%s -> %s:8080\"%s -j %s\n", h, name, at, statistic, chain)
			fmt.Fprintf(&rules, "-A %s -s %s/32 -m comment --comment \"%s\" -j KUBE-MARK-MASQ\n-A %[1]s -p tcp -m comment --comment \"%[3]s\" -m tcp -j DNAT --to-destination %[2]s:8080\n", chain, at, name)
		}
	}
	nat.WriteString(`-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
`)
	nat.WriteString(rules.String())
	nat.WriteString("-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n")
	filter.WriteString(`*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
`)
	return filter.String() + nat.String()
}

// TestLargeIsLinear: the number of rules that are evaluated for a service does not depend on the number of services.
func TestLargeIsLinear(t *testing.T) {
	d, err := iptables.Parse(strings.NewReader(manyServices(300, 3)), iptables.Options{Family: iptables.IPv4})
	if err != nil {
		t.Fatal(err)
	}
	s, err := survey.Run([]*iptables.Dump{d}, survey.Known{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Ports != 300 || s.Connections != 7*300 || len(s.Losses) > 0 || len(s.Skipped) > 0 {
		t.Errorf("%d service ports, %d connections, losses %+v, skipped %q", s.Ports, s.Connections, s.Losses, s.Skipped)
	}
	if pod := s.Sources[0]; pod.Kind != survey.Pod || pod.Addr.String() != "10.128.0.99" {
		t.Errorf("the first source is %s", &pod)
	}
}

// BenchmarkRun: 10,000 services with 10 endpoints each, and a node port; also where the rules do not show the pods' network.
func BenchmarkRun(b *testing.B) {
	text := manyServices(10000, 10)
	b.Run("pods known", func(b *testing.B) { benchmarkRun(b, text) })
	b.Run("pods not known", func(b *testing.B) { benchmarkRun(b, strings.ReplaceAll(text, " ! -s 10.128.0.0/9", "")) })
}

func benchmarkRun(b *testing.B, text string) {
	b.Helper()
	for b.Loop() {
		d, err := iptables.Parse(strings.NewReader(text), iptables.Options{Family: iptables.IPv4})
		if err != nil {
			b.Fatal(err)
		}
		s, err := survey.Run([]*iptables.Dump{d}, survey.Known{})
		if err != nil || len(s.Losses) > 0 {
			b.Fatal(err, s.Losses)
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.Sys)/(1<<20), "MiB-of-the-system")
	}
}
