package audit_test

import (
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// text is a published dump.
func text(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile("../../../datapath/paper/iptables/testdata/" + name + ".rules")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// published makes the service port of an IPv4 cluster with equal shares.
func published(name, port string, p decision.Protocol, clusterIP string, number uint16, locality []audit.Locality, endpoints ...[2]string) *audit.Service {
	s := &audit.Service{
		Name: decision.ServicePortName{Namespace: "kube-system", Name: name, Port: port}, Protocol: p, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr(clusterIP), Port: number,
	}
	if name != "kube-dns" {
		s.Name.Namespace = "default"
	}
	for i, e := range endpoints {
		endpoint := audit.Endpoint{Chain: "KUBE-SEP-" + e[0], AddrPort: netip.MustParseAddrPort(e[1]), Share: 1 / float64(len(endpoints))}
		if locality != nil {
			endpoint.Locality = locality[i]
		}
		s.Endpoints = append(s.Endpoints, endpoint)
	}
	return s
}

// TestPublishedDumps: the services of real nodes, exactly.
func TestPublishedDumps(t *testing.T) {
	const tcp, udp = decision.TCP, decision.UDP
	dns := []*audit.Service{
		published("kube-dns", "dns", udp, "10.96.0.10", 53, nil, [2]string{"YIL6JZP7A3QYXJU2", "10.244.0.2:53"}, [2]string{"6E7XQMQ4RAYOWTTM", "10.244.0.3:53"}),
		published("kube-dns", "dns-tcp", tcp, "10.96.0.10", 53, nil, [2]string{"IT2ZTR26TO4XFPTO", "10.244.0.2:53"}, [2]string{"ZXMNUKOKXUTL2MK2", "10.244.0.3:53"}),
		published("kube-dns", "metrics", tcp, "10.96.0.10", 9153, nil, [2]string{"N4G2XR5TDX7PQE7P", "10.244.0.2:9153"}, [2]string{"ZP3FB6NMPNCO4VBJ", "10.244.0.3:9153"}),
	}
	nginx := published("my-nginx-service", "", tcp, "10.96.118.136", 80, nil, [2]string{"ULMINKU752SDK7IQ", "10.244.1.2:80"}, [2]string{"S4QGHWZAQRZ7NT5K", "10.244.2.2:80"})
	nginx.NodePort = 30080
	before := append([]*audit.Service{published("kubernetes", "https", tcp, "10.96.0.1", 443, nil, [2]string{"JUT7YNYSQHXLFUEC", "172.20.0.3:6443"})}, dns...)
	after := append([]*audit.Service{published("kubernetes", "https", tcp, "10.96.0.1", 443, nil, [2]string{"AVE2LRPBNW6AJSYV", "172.20.0.4:6443"}), nginx}, dns...)
	// flannel's rules show which pods are on the node.
	flannel := []audit.Locality{audit.OnThisNode, audit.OnAnotherNode}
	kubeadm := []*audit.Service{
		published("kubernetes", "https", tcp, "10.96.0.1", 443, nil, [2]string{"EMMXYKITEUOEZBH3", "192.168.100.1:6443"}),
		published("my-nginx-svc", "", tcp, "10.98.69.149", 3000, flannel[1:], [2]string{"DSBJGVCOU4RGUKVK", "10.244.3.38:80"}),
		published("kube-dns", "dns", udp, "10.96.0.10", 53, flannel, [2]string{"LPGSDLJ3FDW46N4W", "10.244.0.5:53"}, [2]string{"2NK74F4BXH6S2KMP", "10.244.2.21:53"}),
		published("kube-dns", "dns-tcp", tcp, "10.96.0.10", 53, flannel, [2]string{"LASJGFFJP3UOS6RQ", "10.244.0.5:53"}, [2]string{"QCMSUSADBJSJISDV", "10.244.2.21:53"}),
		published("kube-dns", "metrics", tcp, "10.96.0.10", 9153, flannel, [2]string{"FVQSBIWR5JTECIVC", "10.244.0.5:9153"}, [2]string{"KGEJJ2QZOQ6ELXUE", "10.244.2.21:9153"}),
	}
	pods := netip.MustParsePrefix("10.244.0.0/16")
	kind := audit.Proxy{Version: "1.25 or later", PodCIDR: pods, MasqueradeMark: 0x4000, LocalhostNodePorts: true}
	old := audit.Proxy{
		Version: "1.21 to 1.23", PodCIDR: pods, NodePodCIDR: netip.MustParsePrefix("10.244.0.0/24"), MasqueradeMark: 0x4000, LocalhostNodePorts: true,
	}
	for name, want := range map[string]struct {
		services []*audit.Service
		proxy    audit.Proxy
	}{
		"kind-1.29-worker1-before":   {before, kind},
		"kind-1.29-worker1-after":    {after, kind},
		"kind-1.29-worker2-before":   {before, kind},
		"kind-1.29-worker2-after":    {after, kind},
		"kubeadm-1.22-flannel-node1": {kubeadm, old},
	} {
		t.Run(name, func(t *testing.T) {
			node := audit.Read(parse(t, text(t, name), decision.IPv4))
			if diff := cmp.Diff(want.services, node.Services, services); diff != "" {
				t.Errorf("services (-want +have)\n%s", diff)
			}
			if diff := cmp.Diff(want.proxy, node.Proxy, services); diff != "" {
				t.Errorf("proxy (-want +have)\n%s", diff)
			}
			if len(node.Problems)+len(node.Gaps) > 0 {
				t.Errorf("problems %q, gaps %q", node.Problems, node.Gaps)
			}
		})
	}
}
