package labs_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// TestChainsAreThoseOfTheDumps: the built-in labs have the names and addresses of
// published nodes, and so their chain names.
func TestChainsAreThoseOfTheDumps(t *testing.T) {
	for lab, dump := range map[string]string{"kind": "kind-1.29-worker1-after", "flannel": "kubeadm-1.22-flannel-node1"} {
		t.Run(lab, func(t *testing.T) {
			data, err := labs.File(lab)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), lab+".yaml")
			if err := os.WriteFile(file, data, 0o644); err != nil {
				t.Fatal(err)
			}
			objects, err := manifest.Load([]string{file})
			if err != nil {
				t.Fatal(err)
			}
			services, _ := control.Build(objects, control.NodeConfig{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
			var got []string
			for _, s := range services {
				if !s.HasEndpoints {
					continue // a service without endpoints has no chains
				}
				got = append(got, s.ServiceChain())
				if s.NodePort != 0 {
					got = append(got, s.ExternalChain())
				}
				for _, e := range s.UsableEndpoints(decision.Cluster) {
					got = append(got, s.EndpointChain(e.AddrPort))
				}
			}
			slices.Sort(got)
			content, err := os.ReadFile(filepath.Join("../../control/testdata", dump+".chains"))
			if err != nil {
				t.Fatal(err)
			}
			if want := strings.Fields(string(content)); !slices.Equal(got, want) {
				t.Errorf("chains:\n %s\nwant:\n %s", strings.Join(got, "\n "), strings.Join(want, "\n "))
			}
		})
	}
}
