package servicetable

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// The .chains files list the KUBE-SVC, KUBE-SEP and KUBE-EXT chains that
// kube-proxy declared on a real node; the .yaml files are the objects of its
// cluster. Chain names are hashes over the service port's name, the protocol and
// the endpoint, so equal sets mean equal service ports and endpoints.
func TestChainsAreThoseOfRealNodes(t *testing.T) {
	for _, cluster := range []string{"kubeadm-1.22-flannel-node1", "kind-1.29-worker1-after"} {
		t.Run(cluster, func(t *testing.T) {
			objects, err := manifest.Load([]string{filepath.Join("testdata", cluster+".yaml")})
			if err != nil {
				t.Fatal(err)
			}
			content, err := os.ReadFile(filepath.Join("testdata", cluster+".chains"))
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Fields(string(content))

			ports, warnings := Build(&objects.Objects, NodeConfig{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
			var got []string
			for _, p := range ports {
				got = append(got, p.ServiceChain())
				if p.NodePort != 0 {
					got = append(got, p.ExternalChain())
				}
				for _, i := range p.Usable[decision.Cluster] {
					got = append(got, p.EndpointChain(p.Endpoints[i].AddrPort))
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("chains:\n %s\nwant:\n %s", strings.Join(got, "\n "), strings.Join(want, "\n "))
			}
			if len(warnings) != 0 {
				t.Errorf("warnings: %q", warnings)
			}
		})
	}
}
