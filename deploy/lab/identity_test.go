package lab

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// TestPodIdentity: the files are those that kubelet writes.
func TestPodIdentity(t *testing.T) {
	pod := &Pod{Name: "db-0", Namespace: "shop", Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.5"), netip.MustParseAddr("fd00:10:244::5")}}
	servers := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::a")}
	const resolv = "search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\nnameserver fd00:10:96::a\noptions ndots:5\n"
	const head = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
	object := new(corev1.Pod)
	object.Spec.Hostname, object.Spec.Subdomain = "first", "db"
	for _, tt := range []struct {
		object          *corev1.Pod
		hostname, hosts string
	}{
		{nil, "db-0", head + "10.244.0.5\tdb-0\nfd00:10:244::5\tdb-0\n"},
		{new(corev1.Pod), "db-0", head + "10.244.0.5\tdb-0\nfd00:10:244::5\tdb-0\n"},
		{object, "first", head + "10.244.0.5\tfirst.db.shop.svc.cluster.local\tfirst\nfd00:10:244::5\tfirst.db.shop.svc.cluster.local\tfirst\n"},
	} {
		got := podIdentity(pod, tt.object, servers)
		if got.Hostname != tt.hostname || got.Files[hostsFile] != tt.hosts || got.Files[resolvFile] != resolv || got.Files[hostnameFile] != tt.hostname+"\n" {
			t.Errorf("%+v", got)
		}
	}
	if got := podIdentity(pod, nil, nil).Files[resolvFile]; !strings.Contains(got, "no Service kube-system/kube-dns") || !strings.Contains(got, "nameserver 127.0.0.1\n") {
		t.Errorf("without kube-dns: %s", got)
	}
	if got := hostname(strings.Repeat("x", 62) + ".example"); got != strings.Repeat("x", 62) {
		t.Errorf("a long name: %s", got)
	}
}

func TestMachineIdentity(t *testing.T) {
	data, err := labs.File("kind")
	if err != nil {
		t.Fatal(err)
	}
	s, err := labfile.Parse("kind", data)
	if err != nil {
		t.Fatal(err)
	}
	got := machineIdentity(s, "kind-worker")
	if got.Hostname != "kind-worker" || got.Files[resolvFile] != noDNS || !strings.Contains(got.Files[hostsFile], "\n172.20.0.3\tkind-worker2\n") || !strings.HasSuffix(got.Files[hostsFile], "\n192.0.2.10\toutside\n") {
		t.Errorf("%+v", got)
	}
}
