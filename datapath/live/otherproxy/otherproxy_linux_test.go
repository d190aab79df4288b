package otherproxy

import (
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestFindLegacy: the back end of iptables is known.
func TestFindLegacy(t *testing.T) {
	netnstest.Require(t)
	netnstest.RequireTool(t, "iptables-legacy")
	n, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if out, err := n.Run("", "iptables-legacy", "-t", "nat", "-N", "KUBE-SERVICES"); err != nil {
		t.Fatal(err, out)
	}
	if err := n.Do(func() error {
		got, err := Find()
		if got != "kube-proxy (iptables-legacy)" {
			t.Errorf("%q", got)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestFind: each proxy is known by its traces, and kube-proxy's count most. The kind of a device does not matter.
func TestFind(t *testing.T) {
	netnstest.Require(t)
	netnstest.RequireTool(t, "nft")
	const iptables, nftables = "add table ip nat; add chain ip nat KUBE-SERVICES", "add table ip kube-proxy"
	for _, tt := range []struct {
		name, rules string
		devices     []string
		want        string
	}{
		{"nothing", "", nil, Unknown},
		{"iptables", iptables, nil, "kube-proxy (iptables)"},
		{"IPv6 only", "add table ip6 nat; add chain ip6 nat KUBE-SERVICES", nil, "kube-proxy (iptables)"},
		{"nftables", nftables, nil, "kube-proxy (nftables)"},
		{"ipvs", iptables, []string{"kube-ipvs0"}, "kube-proxy (ipvs)"},
		{"the device of ipvs is left over", nftables, []string{"kube-ipvs0"}, "kube-proxy (nftables)"},
		{"virtual servers without kube-proxy's chains", "", []string{"kube-dummy-if"}, "kube-router"},
		{"Cilium in kube-proxy's place", "add table ip nat; add chain ip nat CILIUM_PRE_nat", []string{"cilium_host"}, Cilium},
		{"Cilium beside kube-proxy", iptables, []string{"cilium_host"}, "kube-proxy (iptables)"},
		{"OVN-Kubernetes", "", []string{"ovn-k8s-mp0"}, "OVN-Kubernetes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := netns.New("node")
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			if tt.rules != "" {
				if out, err := n.Run(tt.rules, "nft", "-f", "-"); err != nil {
					t.Fatal(err, out)
				}
			}
			for _, d := range tt.devices {
				if err := n.AddBridge(d); err != nil {
					t.Fatal(err)
				}
			}
			if err := n.Do(func() error {
				got, err := Find()
				if got != tt.want {
					t.Errorf("%q, want %q", got, tt.want)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}
