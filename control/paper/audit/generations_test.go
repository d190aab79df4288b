package audit_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// nat makes a dump with the rules of table nat, their chains declared, in front of which
// stand those that every kube-proxy writes, and those of filter.
func nat(filter, rules string) string {
	text := "*filter\n:FORWARD ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-EXTERNAL-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n" + filter + "COMMIT\n*nat\n"
	rules = `-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -m mark --mark 0x4000/0x4000 -j MASQUERADE
` + rules + `-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
`
	seen := map[string]bool{"PREROUTING": true, "OUTPUT": true, "POSTROUTING": true}
	for _, word := range strings.Fields(rules) {
		if strings.HasPrefix(word, "KUBE-") && word != "KUBE-SEP-LIST" && !seen[word] {
			seen[word] = true
			text += ":" + word + " - [0:0]\n"
		}
	}
	return text + ":PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n" + rules + "COMMIT\n"
}

// ep makes the rules of an endpoint's chain.
func ep(s *decision.ServicePort, addr string) (chain, rules string) {
	at := netip.MustParseAddrPort(addr)
	chain = s.EndpointChain(at)
	return chain, fmt.Sprintf("-A %s -s %s/32 -m comment --comment \"%s\" -j KUBE-MARK-MASQ\n-A %[1]s -p %[4]s -m comment --comment \"%[3]s\" -m %[4]s -j DNAT --to-destination %[5]s\n",
		chain, at.Addr(), s.Name, s.Protocol.Lower(), addr)
}

func TestOldGenerations(t *testing.T) {
	web := &decision.ServicePort{Name: decision.ServicePortName{Namespace: "default", Name: "web", Port: "http"}, Protocol: decision.TCP}
	h := web.ServiceChain()[len("KUBE-SVC-"):]
	a, aRules := ep(web, "10.244.1.2:80")
	b, bRules := ep(web, "10.244.2.2:80")
	here, there := netip.MustParseAddrPort("10.244.1.2:80"), netip.MustParseAddrPort("10.244.2.2:80")
	balanced := []audit.Endpoint{{Chain: a, AddrPort: here, Share: 0.5}, {Chain: b, AddrPort: there, Share: 0.5}}
	localised := []audit.Endpoint{
		{Chain: a, AddrPort: here, Share: 0.5, LocalShare: 1, Locality: audit.OnThisNode},
		{Chain: b, AddrPort: there, Share: 0.5, Locality: audit.OnAnotherNode},
	}
	base := func(change func(*audit.Service)) *audit.Service {
		s := &audit.Service{Name: web.Name, Protocol: decision.TCP, Family: decision.IPv4, ClusterIP: netip.MustParseAddr("10.96.0.20"), Port: 80, Endpoints: balanced}
		change(s)
		return s
	}
	spread := `-A KUBE-SVC-` + h + ` -m comment --comment "default/web:http" -m statistic --mode random --probability 0.50000000000 -j ` + a + `
-A KUBE-SVC-` + h + ` -m comment --comment "default/web:http" -j ` + b + "\n" + aRules + bRules
	portal := `-d 10.96.0.20/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j `
	for _, c := range []struct {
		name, filter, rules string
		want                *audit.Service
		version             string
	}{
		{"1.17: masquerade among the portals, a node port", "",
			`-A KUBE-SERVICES ! -s 10.244.0.0/16 ` + portal + `KUBE-MARK-MASQ
-A KUBE-SERVICES ` + portal + `KUBE-SVC-` + h + `
-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -j KUBE-MARK-MASQ
-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -j KUBE-SVC-` + h + "\n" + spread,
			base(func(s *audit.Service) { s.NodePort = 30080 }), "1.20 or earlier"},
		{"1.17: an external IP", "",
			`-A KUBE-SERVICES ! -s 10.244.0.0/16 ` + portal + `KUBE-MARK-MASQ
-A KUBE-SERVICES ` + portal + `KUBE-SVC-` + h + `
-A KUBE-SERVICES -d 192.0.2.9/32 -p tcp -m comment --comment "default/web:http external IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SERVICES -d 192.0.2.9/32 -p tcp -m comment --comment "default/web:http external IP" -m tcp --dport 80 -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j KUBE-SVC-` + h + `
-A KUBE-SERVICES -d 192.0.2.9/32 -p tcp -m comment --comment "default/web:http external IP" -m tcp --dport 80 -m addrtype --dst-type LOCAL -j KUBE-SVC-` + h + "\n" + spread,
			base(func(s *audit.Service) { s.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.9")} }), "1.20 or earlier"},
		{"1.22: policy Local by KUBE-XLB", `-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http health check node port" -m tcp --dport 32000 -j ACCEPT
`,
			`-A KUBE-SERVICES ` + portal + `KUBE-SVC-` + h + `
-A KUBE-SVC-` + h + ` ! -s 10.244.0.0/16 ` + portal + `KUBE-MARK-MASQ
-A KUBE-NODEPORTS -s 127.0.0.0/8 -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -j KUBE-MARK-MASQ
-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -j KUBE-XLB-` + h + `
-A KUBE-XLB-` + h + ` -s 10.244.0.0/16 -m comment --comment "Redirect pods trying to reach external loadbalancer VIP to clusterIP" -j KUBE-SVC-` + h + `
-A KUBE-XLB-` + h + ` -m comment --comment "masquerade LOCAL traffic for default/web:http LB IP" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
-A KUBE-XLB-` + h + ` -m comment --comment "route LOCAL traffic for default/web:http LB IP to service chain" -m addrtype --src-type LOCAL -j KUBE-SVC-` + h + `
-A KUBE-XLB-` + h + ` -m comment --comment "Balancing rule 0 for default/web:http" -j ` + a + "\n" + spread,
			base(func(s *audit.Service) {
				s.NodePort, s.ExternalPolicy, s.HealthCheckNodePort, s.Endpoints = 30080, decision.Local, 32000, localised
			}), "1.21 to 1.23"},
		{"1.22: policy Local without endpoints here", "",
			`-A KUBE-SERVICES ` + portal + `KUBE-SVC-` + h + `
-A KUBE-SVC-` + h + ` ! -s 10.244.0.0/16 ` + portal + `KUBE-MARK-MASQ
-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -j KUBE-XLB-` + h + `
-A KUBE-XLB-` + h + ` -m comment --comment "masquerade LOCAL traffic for default/web:http LB IP" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
-A KUBE-XLB-` + h + ` -m comment --comment "default/web:http has no local endpoints" -j KUBE-MARK-DROP
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
` + spread,
			base(func(s *audit.Service) {
				s.NodePort, s.ExternalPolicy, s.Dropped, s.Endpoints = 30080, decision.Local, true, []audit.Endpoint{
					{Chain: a, AddrPort: here, Share: 0.5, Locality: audit.OnAnotherNode}, {Chain: b, AddrPort: there, Share: 0.5, Locality: audit.OnAnotherNode},
				}
			}), "1.21 to 1.23"},
		{"1.22: source ranges, the others marked to be dropped", "",
			`-A KUBE-SERVICES ` + portal + `KUBE-SVC-` + h + `
-A KUBE-SVC-` + h + ` ! -s 10.244.0.0/16 ` + portal + `KUBE-MARK-MASQ
-A KUBE-SERVICES -d 192.0.2.10/32 -p tcp -m comment --comment "default/web:http loadbalancer IP" -m tcp --dport 80 -j KUBE-FW-` + h + `
-A KUBE-FW-` + h + ` -m comment --comment "default/web:http loadbalancer IP" -j KUBE-MARK-MASQ
-A KUBE-FW-` + h + ` -s 198.51.100.0/24 -m comment --comment "default/web:http loadbalancer IP" -j KUBE-SVC-` + h + `
-A KUBE-FW-` + h + ` -m comment --comment "default/web:http loadbalancer IP" -j KUBE-MARK-DROP
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
` + spread,
			base(func(s *audit.Service) {
				s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.10")}
				s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
			}), "1.21 to 1.23"},
		{"1.22: a load balancer IP for everyone", "",
			`-A KUBE-SERVICES ` + portal + `KUBE-SVC-` + h + `
-A KUBE-SVC-` + h + ` ! -s 10.244.0.0/16 ` + portal + `KUBE-MARK-MASQ
-A KUBE-SERVICES -d 192.0.2.10/32 -p tcp -m comment --comment "default/web:http loadbalancer IP" -m tcp --dport 80 -j KUBE-FW-` + h + `
-A KUBE-FW-` + h + ` -m comment --comment "default/web:http loadbalancer IP" -j KUBE-MARK-MASQ
-A KUBE-FW-` + h + ` -m comment --comment "default/web:http loadbalancer IP" -j KUBE-SVC-` + h + `
-A KUBE-FW-` + h + ` -m comment --comment "default/web:http loadbalancer IP" -j KUBE-MARK-DROP
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
` + spread,
			base(func(s *audit.Service) { s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.10")} }), "1.21 to 1.23"},
		{"1.24: KUBE-EXT, but no KUBE-PROXY-FIREWALL", "",
			`-A KUBE-SERVICES ` + portal + `KUBE-SVC-` + h + `
-A KUBE-SVC-` + h + ` ! -s 10.244.0.0/16 ` + portal + `KUBE-MARK-MASQ
-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -j KUBE-EXT-` + h + `
-A KUBE-EXT-` + h + ` -m comment --comment "masquerade traffic for default/web:http external destinations" -j KUBE-MARK-MASQ
-A KUBE-EXT-` + h + ` -j KUBE-SVC-` + h + "\n" + spread,
			base(func(s *audit.Service) { s.NodePort = 30080 }), "1.24"},
		{"1.17: session affinity", "",
			`-A KUBE-SERVICES ! -s 10.244.0.0/16 ` + portal + `KUBE-MARK-MASQ
-A KUBE-SERVICES ` + portal + `KUBE-SVC-` + h + `
-A KUBE-SVC-` + h + ` -m comment --comment "default/web:http" -m statistic --mode random --probability 0.50000000000 -j ` + a + `
-A KUBE-SVC-` + h + ` -m comment --comment "default/web:http" -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-LIST --mask 255.255.255.255 --rsource -j ` + a + `
-A KUBE-SVC-` + h + ` -m comment --comment "default/web:http" -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-LIST --mask 255.255.255.255 --rsource -j ` + b + `
-A KUBE-SVC-` + h + ` -m comment --comment "default/web:http" -j ` + b + "\n" + strings.ReplaceAll(aRules+bRules, "-j DNAT", "-m recent --set --name KUBE-SEP-LIST --mask 255.255.255.255 --rsource -j DNAT"),
			base(func(s *audit.Service) { s.AffinitySeconds = 10800 }), "1.20 or earlier"},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := audit.Read(parse(t, nat(c.filter, c.rules), decision.IPv4))
			if diff := cmp.Diff([]*audit.Service{c.want}, node.Services, services); diff != "" {
				t.Errorf("(-want +have)\n%s", diff)
			}
			if len(node.Problems)+len(node.Gaps) > 0 {
				t.Errorf("problems %q, gaps %q", node.Problems, node.Gaps)
			}
			if node.Proxy.Version != c.version || node.Proxy.PodCIDR.String() != "10.244.0.0/16" {
				t.Errorf("proxy %+v, want version %s", node.Proxy, c.version)
			}
		})
	}
}

// TestNamesWithColon: a service port without a name had a colon at its end, which its
// chains' names are the hash of, too.
func TestNamesWithColon(t *testing.T) {
	const h = "XGLOHA7QRQ3V22RZ" // of kube-system/kubernetes-dashboard: in many a posted dump
	node := audit.Read(parse(t, nat(`-A KUBE-SERVICES -d 10.96.0.30/32 -p tcp -m comment --comment "default/gone: has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
`, `-A KUBE-SERVICES -d 10.233.62.27/32 -p tcp -m comment --comment "kube-system/kubernetes-dashboard: cluster IP" -m tcp --dport 443 -j KUBE-SVC-`+h+`
-A KUBE-SVC-`+h+` -m comment --comment "kube-system/kubernetes-dashboard:" -j KUBE-SEP-XXXXXXXXXXXXXXXX
-A KUBE-SEP-XXXXXXXXXXXXXXXX -s 10.244.1.2/32 -m comment --comment "kube-system/kubernetes-dashboard:" -j KUBE-MARK-MASQ
-A KUBE-SEP-XXXXXXXXXXXXXXXX -p tcp -m comment --comment "kube-system/kubernetes-dashboard:" -m tcp -j DNAT --to-destination 10.244.1.2:8443
`), decision.IPv4))
	var names []string
	for _, s := range node.Services {
		names = append(names, s.Title())
	}
	if diff := cmp.Diff([]string{"default/gone", "kube-system/kubernetes-dashboard"}, names); diff != "" {
		t.Error(diff)
	}
	if !node.Services[0].Refused || node.Services[1].Refused {
		t.Errorf("refused: %t, %t", node.Services[0].Refused, node.Services[1].Refused)
	}
	// Only the endpoint's chain has a made-up name.
	if len(node.Problems) > 0 || !slices.ContainsFunc(node.Gaps, func(g audit.Issue) bool {
		return strings.Contains(g.Text, "chain KUBE-SEP-XXXXXXXXXXXXXXXX should be KUBE-SEP-")
	}) {
		t.Errorf("problems %q, gaps %q", node.Problems, node.Gaps)
	}
}

// TestWithoutComments: services are known by their addresses, and become objects.
func TestWithoutComments(t *testing.T) {
	var kept []string
	for line := range strings.Lines(text(t, "kind-1.29-worker1-after")) {
		if before, rest, ok := strings.Cut(line, ` -m comment --comment "`); ok {
			_, after, _ := strings.Cut(rest, `"`)
			line = before + after
		}
		kept = append(kept, line)
	}
	node := audit.Read(parse(t, strings.Join(kept, ""), decision.IPv4))
	var have []string
	for _, s := range node.Services {
		have = append(have, fmt.Sprintf("%s/%s %s %d", s.Title(), s.Protocol, s.Type(), len(s.Endpoints)))
	}
	want := []string{"10.96.0.1:443/TCP ClusterIP 1", "10.96.0.10:53/TCP ClusterIP 2", "10.96.0.10:53/UDP ClusterIP 2", "10.96.0.10:9153/TCP ClusterIP 2", "10.96.118.136:80/TCP NodePort 2"}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Error(diff)
	}
	if len(node.Problems)+len(node.Gaps) > 0 {
		t.Errorf("problems %q, gaps %q", node.Problems, node.Gaps)
	}
	objects := audit.NewObjects("", node)
	again := throughYAML(t, t.TempDir(), objects)
	if len(again.Services) != 3 || again.Services[1].Name != "service-10-96-0-10" || len(again.Services[1].Spec.Ports) != 3 {
		t.Errorf("services %+v", again.Services)
	}
	if n := "10.96.118.136:80 (TCP) has no name in its comments and is named default/service-10-96-118-136:tcp-80: its chains get other names"; len(objects.Notes) != 5 || objects.Notes[4] != n {
		t.Errorf("notes %q", objects.Notes)
	}
}
