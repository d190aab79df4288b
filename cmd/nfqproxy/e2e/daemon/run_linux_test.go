package daemon

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestRunRefusesNonsense: each mistake on the command line or in the manifests is one
// clear message and exit code 2.
func TestRunRefusesNonsense(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	ns, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	dir := t.TempDir()
	file := func(name, content string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	good := file("good.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n")
	bad := file("bad.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 800000}]}\n")
	tests := []struct {
		name string
		args []string
		want []string // parts of the message
	}{
		{"nowhere to get objects from", nil, []string{"not in a pod of a cluster: give --kubeconfig"}},
		{"unknown flag", []string{"--objects", good, "--object", "x"}, []string{"nfqproxy run has no flag --object (did you mean --objects?)"}},
		{"an argument", []string{"--objects", good, "extra"}, []string{`nfqproxy run takes no argument "extra"`}},
		{"bad prefix", []string{"--objects", good, "--cluster-cidr", "10.244.0.0"}, []string{"--cluster-cidr", `"10.244.0.0" is not a prefix`}},
		{"bad node port prefix", []string{"--objects", good, "--nodeport-addresses", "eth0"}, []string{"--nodeport-addresses", `"eth0"`}},
		{"no queues", []string{"--objects", good, "--queues", "0"}, []string{"--queues 0"}},
		{"queues beyond the last", []string{"--objects", good, "--queue-num", "65534", "--queues", "2"}, []string{"--queue-num 65534", "none above 65534"}},
		{"no such file", []string{"--objects", filepath.Join(dir, "none.yaml")}, []string{"none.yaml", "no such file"}},
		{"faulty manifest", []string{"--objects", bad}, []string{"bad.yaml", "document 1", "Service default/web", "spec.ports[0].port", "800000"}},
		{"flow log in no directory", []string{"--objects", good, "--flow-log", filepath.Join(dir, "no", "flow.log")}, []string{"--flow-log", "no such file"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := e2etest.Run(t, ns, append([]string{"run"}, tt.args...)...)
			if code != 2 || stdout != "" {
				t.Errorf("exit code %d, stdout %q; want 1 and nothing", code, stdout)
			}
			for _, w := range tt.want {
				if !strings.Contains(stderr, w) {
					t.Errorf("message %q does not contain %q", stderr, w)
				}
			}
			if strings.Count(stderr, "nfqproxy: ")+strings.Count(stderr, "nfqproxyd: ") != 1 {
				t.Errorf("not one message: %q", stderr)
			}
			if err := ns.Do(func() error {
				tables, err := e2etest.Tables()
				if len(tables) > 0 {
					t.Errorf("tables %v are left", tables)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			if v, err := ns.Sysctl("net.ipv4.conf.all.route_localnet"); err != nil || v != "0" {
				t.Errorf("route_localnet is %q, error %v", v, err)
			}
		})
	}
}

func TestRunWithoutCapability(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	cmd := e2etest.Command("run", "--objects", e2etest.WriteFile(t, "lab.yaml", e2etest.Lab))
	// A user namespace without a root user: the process has no capability in it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	code, _, stderr := e2etest.RunCommand(t, nil, cmd)
	if code != 2 || !strings.Contains(stderr, "CAP_NET_ADMIN") || !strings.Contains(stderr, "run as root") {
		t.Errorf("exit code %d, message %q", code, stderr)
	}
}

// TestSecondDaemonOnANode: the message names the first daemon, whatever queues
// the second would have, and the first one goes on undisturbed.
func TestSecondDaemonOnANode(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	for _, args := range [][]string{nil, {"--queue-num", "200"}} {
		code, _, stderr := e2etest.Run(t, c.Host("node-a"), append([]string{"run", "--objects", c.Objects}, args...)...)
		if code != 2 || !strings.Contains(stderr, "another nfqproxy (process ") {
			t.Errorf("%v: exit code %d, message %q", args, code, stderr)
		}
	}
	c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80"))
}

// ping sends one ICMP echo request and waits for the answer.
func ping(c *e2etest.Cluster, host, to string) {
	c.T.Helper()
	if err := c.Host(host).Do(func() error {
		conn, err := net.ListenPacket("ip4:icmp", "0.0.0.0")
		if err != nil {
			return err
		}
		defer conn.Close()
		request := []byte{8, 0, 0xf7, 0xfe, 0, 1, 0, 0} // echo request, id 1, sequence 0
		if _, err := conn.WriteTo(request, &net.IPAddr{IP: net.ParseIP(to)}); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(e2etest.Timeout)); err != nil {
			return err
		}
		b := make([]byte, 64)
		for {
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				return err
			}
			if n >= 1 && b[0] == 0 { // echo reply
				return nil
			}
		}
	}); err != nil {
		c.T.Fatalf("ping from %s to %s: %v", host, to, err)
	}
}

// TestICMPIsNotQueued: a ping through the node does not touch the queues.
func TestICMPIsNotQueued(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	queued := func() (n uint64) {
		c.Must(c.Host("node-a").Do(func() error {
			for q := range uint16(4) {
				counters, err := nfqueue.ReadCounters(100 + q)
				if err != nil {
					return err
				}
				n += counters.Sequence
			}
			return nil
		}))
		return n
	}
	c.Sync("shell")
	before := queued()
	for range 10 {
		ping(c, "shell", "10.244.1.2")
		ping(c, "node-a", "10.244.1.2")
	}
	if after := queued(); after != before {
		t.Errorf("%d packets were queued", after-before)
	}
}

// TestTakenQueue: where another program is bound to a queue, the daemon takes those behind it
// and says so, unless --queue-num says which.
func TestTakenQueue(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	const first = 100 // the lab's daemons choose it as any daemon does
	c.Must(c.StopDaemon(t.Context(), "node-a"))
	var other *nfqueue.Queue
	c.Must(c.Host("node-a").Do(func() (err error) {
		other, err = nfqueue.Open(first+1, nfqueue.Config{MaxLen: 1, CopyRange: 20, ReadBuffer: 4096})
		return err
	}))
	defer other.Close()
	code, _, stderr := e2etest.Run(t, c.Host("node-a"), "run", "--objects", c.Objects, "--queue-num", "100", "--queues", "2")
	if code != 2 || !strings.Contains(stderr, "queue 101: is taken by netlink port id") || !strings.Contains(stderr, "--queue-num") {
		t.Errorf("with --queue-num: exit code %d, message %q", code, stderr)
	}
	c.Must(c.StartDaemon(t.Context(), "node-a"))
	c.Logged("another program is bound to one of our queues; using other queues")
	if a := c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.30:80")); a.Pod != "default/solo" {
		t.Errorf("answered by %+v", a)
	}
	c.Must(c.Host("node-a").Do(func() error {
		var queued uint64
		for q := range uint16(2) {
			counters, err := nfqueue.ReadCounters(first + 2 + q)
			if err != nil {
				return err
			}
			queued += counters.Sequence
		}
		if queued == 0 {
			t.Errorf("no packet came by queues %d and %d", first+2, first+3)
		}
		return nil
	}))
}
