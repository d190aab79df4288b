package kubeproxytest

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/apiserver"
)

// NFTables runs kube-proxy in mode nftables in a namespace of its own that has the addresses, until done is true of what nft lists,
// or nothing changes for some seconds. It gives what nft lists then. Require nft and cluster.KubeProxy first.
func NFTables(t testing.TB, objects *kube.Objects, node *servicetable.NodeConfig, addresses []netip.Prefix, done func(listing string) bool) string {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	n, err := netns.New("node")
	check(err)
	t.Cleanup(func() { _ = n.Close() })
	check(n.AddBridge("eth0"))
	for _, a := range addresses {
		check(n.AddAddress("eth0", a))
	}
	api := &apiserver.Server{}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	listener, err := n.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	check(errors.Join(err, api.Set(objects)))
	check(api.Serve(listener, kubeconfig))
	t.Cleanup(func() { _ = api.Close() })
	program, err := cluster.Binary(cluster.KubeProxy)
	check(err)
	cmd := exec.Command(program, "--config="+writeConfig(t, node, kubeconfig))
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(n.Start(cmd))
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("kube-proxy's log:\n%s", &log)
		}
	}()
	const quiet = 20 * time.Second // a busy machine may need some between the tables of the families
	have, changed := "", time.Now()
	for {
		listing, err := n.Run("", "nft", "list", "ruleset")
		check(err)
		if listing != have {
			have, changed = listing, time.Now()
		}
		if done(have) || have != "" && time.Since(changed) > quiet || time.Since(changed) > time.Minute {
			return have
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// writeConfig writes the configuration of kube-proxy on a node, and gives its path.
func writeConfig(t testing.TB, node *servicetable.NodeConfig, kubeconfig string) string {
	t.Helper()
	type object = map[string]any
	config := object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables", "hostnameOverride": node.Name,
		"clientConnection":  object{"kubeconfig": kubeconfig, "contentType": "application/json"},
		"conntrack":         object{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
		"nodePortAddresses": []string{"0.0.0.0/0", "::/0"},
		"detectLocalMode":   string(node.Mode),
		"detectLocal":       object{"bridgeInterface": node.Bridge, "interfaceNamePrefix": node.InterfacePrefix},
	}
	if node.PrimaryNodePorts {
		config["nodePortAddresses"] = []string{"primary"}
	}
	var cidrs []string
	for _, p := range node.ClusterCIDRs {
		cidrs = append(cidrs, p.String())
	}
	config["clusterCIDR"] = strings.Join(cidrs, ",")
	nftables := object{"masqueradeAll": node.MasqueradeAll}
	if node.MasqueradeMark != 0 {
		bit := 0
		for node.MasqueradeMark>>bit != 1 {
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
