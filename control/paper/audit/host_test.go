package audit

import (
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
)

func serversOf(t *testing.T, text string) *ipvs.State {
	t.Helper()
	s, err := ipvs.Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func dumpOf(t *testing.T, text string, b iptables.Backend) *iptables.Dump {
	t.Helper()
	d, err := iptables.Parse(strings.NewReader(text), iptables.Options{Family: iptables.IPv4})
	if err != nil {
		t.Fatal(err)
	}
	d.Backend = b
	return d
}

const (
	kubeRules = `*nat
:PREROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ABCDEFGHIJKLMNOP - [0:0]
:KUBE-SEP-ABCDEFGHIJKLMNOP - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.20/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-ABCDEFGHIJKLMNOP
-A KUBE-SVC-ABCDEFGHIJKLMNOP -m comment --comment "default/web:http -> 10.244.1.2:8080" -j KUBE-SEP-ABCDEFGHIJKLMNOP
-A KUBE-SEP-ABCDEFGHIJKLMNOP -s 10.244.1.2/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
-A KUBE-SEP-ABCDEFGHIJKLMNOP -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.1.2:8080
COMMIT
`
	otherRules = `*filter
:INPUT ACCEPT [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
COMMIT
`
)

// TestCompareBackEnds: a service is the same in the other back end of iptables.
func TestCompareBackEnds(t *testing.T) {
	before := &Host{Name: "a", Dumps: []*iptables.Dump{dumpOf(t, kubeRules, iptables.BackendLegacy), dumpOf(t, otherRules, iptables.BackendNFT)}}
	after := &Host{Name: "b", Dumps: []*iptables.Dump{dumpOf(t, otherRules, iptables.BackendLegacy), dumpOf(t, kubeRules, iptables.BackendNFT)}}
	c, compared := CompareHosts(before, after, false)
	if !compared || len(c.Services) != 0 {
		t.Errorf("compared %t, services %+v", compared, c.Services)
	}
	if c, _ = CompareHosts(before, before, false); !c.Same() || len(c.Notes) != 0 {
		t.Errorf("one host differs from itself: %+v", c)
	}
}

// TestCompareOnly: what one of the two has is noted, and nothing in common is nothing to compare.
func TestCompareOnly(t *testing.T) {
	rules := &Host{Name: "a", Dumps: []*iptables.Dump{dumpOf(t, kubeRules, iptables.BackendUnknown)}}
	servers := &Host{Name: "b", IPVS: serversOf(t, "-A -t 10.96.0.20:80 -s rr\n")}
	if _, compared := CompareHosts(rules, servers, false); compared {
		t.Error("rules were compared with virtual servers")
	}
	both := &Host{Name: "c", Dumps: rules.Dumps, IPVS: servers.IPVS}
	if c, compared := CompareHosts(rules, both, false); !compared || !c.Same() || len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "are in c only, and not in a") {
		t.Errorf("compared %t: %+v", compared, c)
	}
}

func TestCompareServers(t *testing.T) {
	before := serversOf(t, "-A -t 10.96.0.20:80 -s rr\n-a -t 10.96.0.20:80 -r 10.244.1.2:8080 -m -w 1\n-A -u 10.96.0.10:53 -s rr\n")
	after := serversOf(t, "-A -t 10.96.0.20:80 -s lc -p 60\n-a -t 10.96.0.20:80 -r 10.244.1.2:8080 -m -w 0\n-a -t 10.96.0.20:80 -r 10.244.1.3:8080 -m -w 1\n-A -t 10.96.0.30:80 -s rr\n")
	var b strings.Builder
	if err := (&Comparison{Servers: compareServers(before, after)}).WriteText(&b); err != nil {
		t.Fatal(err)
	}
	const want = `Virtual servers
  ~ TCP 10.96.0.20:80
      ~ scheduler rr -> lc
      + session affinity ClientIP 60s
      ~ real server 10.244.1.2:8080 (Masq, weight 1) -> 10.244.1.2:8080 (Masq, weight 0)
      + real server 10.244.1.3:8080 (Masq, weight 1)
  + TCP 10.96.0.30:80
      + scheduler rr
  - UDP 10.96.0.10:53
`
	if b.String() != want {
		t.Errorf("got:\n%swant:\n%s", b.String(), want)
	}
}

// TestServicesOfIPVS: the sets tell what an address is, where endpoints are, and which policy is Local.
func TestServicesOfIPVS(t *testing.T) {
	s := serversOf(t, `-A -t 10.96.0.20:80 -s rr
-a -t 10.96.0.20:80 -r 10.244.1.2:8080 -m -w 1
-a -t 10.96.0.20:80 -r 10.244.2.2:8080 -m -w 0
-A -t 172.20.0.2:30080 -s rr
-A -t 10.244.1.1:30080 -s rr
-A -t 198.51.100.7:80 -s rr
-A -f 7 -s rr
`)
	sets, err := iptables.ParseSets(strings.NewReader(`create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536
add KUBE-CLUSTER-IP 10.96.0.20,tcp:80
create KUBE-LOOP-BACK hash:ip,port,ip family inet hashsize 1024 maxelem 65536
add KUBE-LOOP-BACK 10.244.1.2,tcp:8080,10.244.1.2
create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
add KUBE-NODE-PORT-TCP 30080
create KUBE-NODE-PORT-LOCAL-TCP bitmap:port range 0-65535
add KUBE-NODE-PORT-LOCAL-TCP 30080
`))
	if err != nil {
		t.Fatal(err)
	}
	services, nodes := ServicesOfIPVS(s, sets, decision.IPv4, nil)
	if len(services) != 3 || len(nodes) != 2 {
		t.Fatalf("%d services at node ports of %v", len(services), nodes)
	}
	web, port := services[0], services[1]
	if web.ClusterIP.String() != "10.96.0.20" || len(web.Endpoints) != 1 || web.Endpoints[0].Locality != OnThisNode || web.ExternalPolicy != decision.Cluster {
		t.Errorf("%+v", web)
	}
	if port.NodePort != 30080 || port.ExternalPolicy != decision.Local || !port.Refused {
		t.Errorf("%+v", port)
	}
	if in := InNoSet(s, sets); len(in) != 1 || in[0].String() != "TCP 198.51.100.7:80" {
		t.Errorf("in no set: %v", in)
	}
	if InNoSet(s, nil) != nil {
		t.Error("without sets it is not known which have the servers")
	}
}
