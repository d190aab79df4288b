package kubernetes_test

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/executable"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { e2etest.Main(m, cli.Main) }

const objects = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.0.2]}]
`

// TestCapabilities: the program serves connections with the capabilities of the
// manifest and no other, removes its rules, and with fewer does not start.
func TestCapabilities(t *testing.T) {
	netnstest.Require(t)
	netnstest.RequireTool(t, "setpriv")
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	daemon := filepath.Join(t.TempDir(), executable.Daemon)
	if err := os.Symlink(binary, daemon); err != nil {
		t.Fatal(err)
	}
	added := read[appsv1.DaemonSet](t, "base/daemonset.yaml").Spec.Template.Spec.Containers[0].SecurityContext.Capabilities.Add
	start := func(capabilities []string) string {
		ns := newNode(t)
		set := strings.Join(append([]string{"-all"}, capabilities...), ",")
		flags := append(e2etest.Objects(t, ns, []byte(objects)), "--keep-rules-on-exit", "--takeover", "--hostname-override", "node", "--queues", "1", "--ready-fd", "3")
		cmd := exec.Command("setpriv", append([]string{"--bounding-set=" + set, "--inh-caps=" + set, "--no-new-privs", daemon}, flags...)...)
		ready, theirs, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer ready.Close()
		var log bytes.Buffer
		cmd.Env = append(os.Environ(), e2etest.CommandEnv()...)
		cmd.ExtraFiles, cmd.Stderr = []*os.File{theirs}, &log
		err = ns.Start(cmd)
		_ = theirs.Close()
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, len("ready\n"))
		n, _ := ready.Read(first) // 0 if the daemon ends before
		if n > 0 {
			connect(t, ns)
			if info, err := os.Stat(flowapi.DefaultSocket); err != nil || info.Mode().Type() != fs.ModeSocket {
				t.Errorf("the flow API is not served: %v", err)
			}
		}
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if n > 0 {
			cleanup := exec.Command("setpriv", "--bounding-set="+set, "--inh-caps="+set, "--no-new-privs", binary, "cleanup")
			var out bytes.Buffer
			cleanup.Env = cmd.Env
			cleanup.Stdout, cleanup.Stderr = &out, &out
			if err := ns.Start(cleanup); err != nil {
				t.Fatal(err)
			}
			if err := cleanup.Wait(); err != nil || out.String() != "removed nftables table ip nfqproxy\nremoved nftables table ip6 nfqproxy\n" {
				t.Errorf("cleanup: %v: %s", err, &out)
			}
		}
		return string(first[:n]) + log.String()
	}
	var names []string
	for _, c := range added {
		names = append(names, "+"+strings.ToLower(string(c)))
	}
	if got := start(names); !strings.HasPrefix(got, "ready\n") {
		t.Errorf("with %v: %s", added, got)
	}
	for i, c := range added {
		without := append(append([]string{}, names[:i]...), names[i+1:]...)
		if got := start(without); strings.HasPrefix(got, "ready\n") || !strings.Contains(got, string(c)) {
			t.Errorf("without %s: %s", c, got)
		}
	}
}

// newNode makes a node with a pod beside it, which is the endpoint of objects.
func newNode(t *testing.T) *netns.Namespace {
	node, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	pod, err := netns.New("pod")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pod.Close() })
	l, err := pod.Listen(t.Context(), netip.MustParseAddrPort("0.0.0.0:8080"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "the endpoint")
			_ = c.Close()
		}
	}()
	for _, err := range []error{
		node.AddVeth("pod", pod, "eth0"),
		node.AddAddress("pod", netip.MustParsePrefix("10.244.0.1/24")),
		pod.AddAddress("eth0", netip.MustParsePrefix("10.244.0.2/24")),
		// A route for service addresses.
		node.AddRoute(netns.Route{Destination: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.244.0.2"), Link: "pod"}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return node
}

// connect requests the service.
func connect(t *testing.T, node *netns.Namespace) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := node.Dial(ctx, "tcp", netip.AddrPort{}, netip.MustParseAddrPort("10.96.0.1:80"))
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	if text, err := io.ReadAll(c); err != nil || string(text) != "the endpoint" {
		t.Errorf("the service answers %q, %v", text, err)
	}
}
