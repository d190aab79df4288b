package audit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	peers "github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
	"github.com/nfqproxy/nfqproxy/deploy/apiserver"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestRealNFTables has the real kube-proxy write its tables of mode nftables for generated clusters: those that nftproxy writes
// are the same byte for byte as nft lists them, but for the order of the services' chains and sets, which is random. ReadNFTables
// finds in them the services of the table, and no problem.
func TestRealNFTables(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	netnstest.RequireTool(t, "nft")
	clustertest.RequireProgram(t, peers.KubeProxy)
	for seed := range uint64(netnstest.Cases(100, 5)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			c := newCluster(seed)
			c.separate()
			table, _ := servicetable.Table(c.objects, c.config)
			var want bytes.Buffer
			if _, err := nftproxy.Tables(table, nftproxy.Options{ServiceCIDRs: c.serviceCIDRs()}, families...).WriteTo(&want); err != nil {
				t.Fatal(err)
			}
			have := c.realNFTables(t, inOrder(want.String()))
			if diff := cmp.Diff(strings.Split(inOrder(have), "\n"), strings.Split(inOrder(want.String()), "\n")); diff != "" {
				t.Fatalf("(-kube-proxy +nftproxy)\n%s\nin\n%s", diff, have)
			}
			c.compareNFTables(t, table, have)
		})
	}
}

// compareNFTables compares what is read from kube-proxy's tables with the table that they are for.
func (c *cluster) compareNFTables(t *testing.T, table *decision.Table, listing string) {
	t.Helper()
	nodes := readNFTables(t, listing)
	if len(nodes) != 2 {
		t.Fatalf("%d nodes in\n%s", len(nodes), listing)
	}
	for i, f := range families {
		var want []*audit.Service
		for _, s := range table.Services() {
			if s.Family == f {
				want = append(want, shownByNFTables(table, s))
			}
		}
		node := nodes[i]
		if diff := cmp.Diff(want, node.Services, services); diff != "" {
			t.Fatalf("%s: (-want +have)\n%s\nin\n%s", f, diff, listing)
		}
		if len(node.Problems) > 0 || len(node.Gaps) > 0 || node.Mode != proxymode.ModeNFTables {
			t.Fatalf("%s: %s, problems %q, gaps %q in\n%s", f, node.Mode, node.Problems, node.Gaps, listing)
		}
		p := node.Proxy
		if p.MasqueradeMark != table.Node().Mark() || !strings.HasPrefix(p.Version, "1.36") || p.MasqueradeAll != c.config.MasqueradeAll || !slices.Equal(p.ServiceCIDRs, c.serviceCIDRs()[i:i+1]) ||
			c.config.PrimaryNodePorts != (len(p.NodePortAddresses) == 1 && p.NodePortAddresses[0] == table.Node().IP(f)) {
			t.Fatalf("%s: %+v of %+v", f, p, c.config)
		}
	}
}

func readNFTables(t testing.TB, listing string) []*audit.Node {
	t.Helper()
	ruleset, err := nftables.Read("listing", strings.NewReader(listing), nftables.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return audit.ReadNFTables(ruleset)
}

// realNFTables runs kube-proxy in a namespace of its own until nft lists what is wanted, or nothing changes for some seconds.
func (c *cluster) realNFTables(t *testing.T, want string) string {
	t.Helper()
	n, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	for _, err := range []error{
		n.AddBridge("eth0"), n.AddAddress("eth0", netip.PrefixFrom(netip.MustParseAddr(addr(decision.IPv4, nodeNet, 1)), 16)),
		n.AddAddress("eth0", netip.PrefixFrom(netip.MustParseAddr(addr(decision.IPv6, nodeNet, 1)), 64)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	api := &apiserver.Server{}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	listener, err := n.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err := errors.Join(err, api.Set(c.objects)); err != nil {
		t.Fatal(err)
	}
	if err := api.Serve(listener, kubeconfig); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	program, err := peers.Binary(peers.KubeProxy)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config="+c.kubeProxyConfig(t, kubeconfig))
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("kube-proxy's log:\n%s", &log)
		}
	}()
	const quiet = 5 * time.Second
	have, changed := "", time.Now()
	for {
		listing, err := n.Run("", "nft", "list", "ruleset")
		switch {
		case err != nil:
			t.Fatal(err)
		case listing != have:
			have, changed = listing, time.Now()
		}
		if inOrder(have) == want || have != "" && time.Since(changed) > quiet || time.Since(changed) > time.Minute {
			return have
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// kubeProxyConfig writes the configuration of kube-proxy on the cluster's node.
func (c *cluster) kubeProxyConfig(t *testing.T, kubeconfig string) string {
	t.Helper()
	type object = map[string]any
	config := object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables", "hostnameOverride": c.config.Name,
		"clientConnection":  object{"kubeconfig": kubeconfig, "contentType": "application/json"},
		"conntrack":         object{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
		"nodePortAddresses": []string{"0.0.0.0/0", "::/0"},
		"detectLocalMode":   string(c.config.Mode),
		"detectLocal":       object{"bridgeInterface": c.config.Bridge, "interfaceNamePrefix": c.config.InterfacePrefix},
	}
	if c.config.PrimaryNodePorts {
		config["nodePortAddresses"] = []string{"primary"}
	}
	var cidrs []string
	for _, p := range c.config.ClusterCIDRs {
		cidrs = append(cidrs, p.String())
	}
	config["clusterCIDR"] = strings.Join(cidrs, ",")
	nftables := object{"masqueradeAll": c.config.MasqueradeAll}
	if c.config.MasqueradeMark != 0 {
		bit := 0
		for c.config.MasqueradeMark>>bit != 1 {
			bit++
		}
		nftables["masqueradeBit"] = bit
	}
	config["nftables"] = nftables
	text, err := json.Marshal(config)
	path := kubeconfig + ".kube-proxy"
	if err := errors.Join(err, os.WriteFile(path, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}
