package flows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	benchcluster "github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

// threeNodes is the lab of the end-to-end tests, with a third node.
func threeNodes(t *testing.T) []byte {
	t.Helper()
	const node = `- {name: node-b, addresses: [172.21.0.3, "fd00:172:21::3"], podCIDRs: [10.244.1.0/24, "fd00:10:244:1::/64"]}` + "\n"
	const pod = `- {name: shell, node: node-a,`
	text := string(e2etest.Lab)
	if !strings.Contains(text, node) || !strings.Contains(text, pod) {
		t.Fatal("the lab has changed: a third node cannot be added")
	}
	text = strings.Replace(text, node, node+`- {name: node-c, addresses: [172.21.0.4, "fd00:172:21::4"], podCIDRs: [10.244.2.0/24, "fd00:10:244:2::/64"]}`+"\n", 1)
	text = strings.Replace(text, pod, `- {name: third, node: node-c, addresses: [10.244.2.9, "fd00:10:244:2::9"]}`+"\n"+pod, 1)
	return []byte(text)
}

// TestRelay: the real hubble-relay, on another machine, finds the daemons of three nodes by any of them, and
// merges their flows, in lists and in a stream. Both go on when a daemon is killed, and when it comes back.
func TestRelay(t *testing.T) {
	t.Parallel()
	hubble, relay := clustertest.RequireProgram(t, benchcluster.Hubble), clustertest.RequireProgram(t, benchcluster.HubbleRelay)
	ca := newAuthority(t)
	cert, key := ca.issue("nodes", []string{"*.default.hubble-grpc.cilium.io"})
	clientCert, clientKey := ca.issue("relay", nil)
	c := e2etest.NewClusterOf(t, threeNodes(t), nil)
	// export is the second container of a node's pod.
	export := func(node string) *e2etest.Daemon {
		return c.Export(node, nil, "--hubble-bind-address", "0.0.0.0:4244", "--hubble-tls-cert", cert, "--hubble-tls-key", key, "--hubble-tls-client-ca", ca.file)
	}
	export("node-a")
	second := export("node-b")
	export("node-c")
	outside := c.Host("outside")
	e2etest.StartDaemon(t, outside, exec.Command(relay, "serve", "--peer-service", "172.21.0.2:4244", "--listen-address", "127.0.0.1:4245", "--health-listen-address", "127.0.0.1:4222",
		"--disable-server-tls", "--tls-hubble-server-ca-files", ca.file, "--tls-hubble-client-cert-file", clientCert, "--tls-hubble-client-key-file", clientKey,
		"--retry-timeout", "200ms", "--gops=false"))

	run := func(args ...string) (stdout, stderr string, err error) {
		cmd := exec.Command(hubble, args...)
		var out, complaints bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &complaints
		if err := outside.Start(cmd); err != nil {
			t.Fatal(err)
		}
		err = cmd.Wait()
		return out.String(), complaints.String(), err
	}
	const server = "--server=127.0.0.1:4245"
	// states are those of the nodes, as hubble lists them.
	states := func() string {
		out, _, err := run("list", "nodes", server, "-o", "json")
		var list []struct {
			Name, Address string
			State         any
		}
		if err == nil {
			err = json.Unmarshal([]byte(out), &list)
		}
		if err != nil {
			return err.Error()
		}
		var lines []string
		for _, n := range list {
			lines = append(lines, fmt.Sprint(n.Name, " ", n.Address, " ", n.State))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	waitFor := func(what, want string) {
		t.Helper()
		last := ""
		for end := time.Now().Add(e2etest.Timeout); last != want; time.Sleep(50 * time.Millisecond) {
			if last = states(); time.Now().After(end) {
				t.Fatalf("%s: hubble lists the nodes\n%s\nwant\n%s", what, last, want)
			}
		}
	}
	const all = "node-a 172.21.0.2:4244 NODE_CONNECTED\nnode-b 172.21.0.3:4244 NODE_CONNECTED\nnode-c 172.21.0.4:4244 NODE_CONNECTED"
	waitFor("at first", all)

	// flows are those that hubble observes, by node, in their order.
	type seen struct {
		node, port string
	}
	// parse is a line of hubble's; at is zero for the state of a node.
	parse := func(line string) (s seen, at time.Time, err error) {
		var response struct {
			Flow struct {
				Time     time.Time
				NodeName string `json:"node_name"`
				L4       struct {
					UDP struct {
						SourcePort int `json:"source_port"`
					}
				}
			}
		}
		err = json.Unmarshal([]byte(line), &response)
		return seen{response.Flow.NodeName, fmt.Sprint(response.Flow.L4.UDP.SourcePort)}, response.Flow.Time, err
	}
	observe := []string{"observe", server, "--to-service", "default/nobody-home", "-o", "jsonpb"}
	observed := func() (list []seen) {
		t.Helper()
		out, complaints, err := run(append(observe, "--last", "1000")...)
		if err != nil {
			t.Fatalf("hubble observe: %v\n%s", err, complaints)
		}
		last := time.Time{}
		for line := range strings.Lines(out) {
			s, at, err := parse(line)
			if err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if at.IsZero() {
				continue
			}
			if at.Before(last) {
				t.Errorf("a flow of %s is after one of %s", at, last)
			}
			last = at
			list = append(list, s)
		}
		return list
	}
	// flows makes a flow on each node, in turn, and returns their nodes by port.
	flows := func(hosts ...string) map[seen]bool {
		made := make(map[seen]bool)
		for range 5 {
			for _, host := range hosts {
				node := map[string]string{"shell": "node-a", "web-2": "node-b", "third": "node-c"}[host]
				conn := c.Dial(host, "udp", e2etest.AnyPort, "10.96.0.40:53")
				if _, err := conn.Write([]byte("anybody?")); err != nil {
					t.Fatal(err)
				}
				c.Record("reject", "UDP", conn.LocalAddr(), conn.RemoteAddr())
				_, port, _ := strings.Cut(conn.LocalAddr().String(), ":")
				made[seen{node, port}] = true
			}
		}
		return made
	}
	expect := func(what string, want map[seen]bool) {
		t.Helper()
		have := make(map[seen]bool)
		for _, s := range observed() {
			have[s] = true
		}
		if !maps.Equal(want, have) {
			t.Errorf("%s: hubble observes the flows %v, want %v", what, have, want)
		}
	}
	// stream is hubble observe --follow, from here to the end of the test.
	stream := e2etest.StartDaemon(t, outside, exec.Command(hubble, append(observe, "--follow")...))
	streamed := func() map[seen]int {
		times := make(map[seen]int)
		for line := range strings.Lines(stream.Log()) {
			if s, at, err := parse(line); err == nil && !at.IsZero() {
				times[s]++
			}
		}
		return times
	}
	first := make(map[seen]bool)
	// follow has the stream of these hosts' nodes begin, which new flows show, and expects all flows from then on.
	follow := func(what string, hosts ...string) {
		t.Helper()
		made, latest := make(map[seen]bool), time.Time{}
		e2etest.Eventually(t, e2etest.Timeout, "the stream of each node: "+what, func() bool {
			if time.Since(latest) > time.Second { // the relay keeps flows as long, to sort them
				maps.Copy(made, flows(hosts...))
				latest = time.Now()
			}
			nodes := make(map[string]bool)
			for s := range streamed() {
				if made[s] {
					nodes[s.node] = true
				}
			}
			return len(nodes) == len(hosts)
		})
		maps.Copy(first, made)
		made = flows(hosts...)
		maps.Copy(first, made)
		e2etest.Eventually(t, e2etest.Timeout, "all flows in the stream: "+what, func() bool {
			have := streamed()
			for s := range made {
				if have[s] == 0 {
					return false
				}
			}
			return true
		})
	}
	follow("at first", "shell", "web-2", "third")
	expect("at first", first)

	c.Must(c.KillDaemon("node-b"))
	second.Stop(syscall.SIGKILL)
	waitFor("node-b is dead", strings.Replace(all, "172.21.0.3:4244 NODE_CONNECTED", "172.21.0.3:4244 NODE_UNAVAILABLE", 1))
	maps.DeleteFunc(first, func(s seen, _ bool) bool { return s.node == "node-b" })
	follow("node-b is dead", "shell", "third")
	expect("node-b is dead", first)

	c.Must(c.StartDaemon(t.Context(), "node-b"))
	export("node-b")
	waitFor("node-b is back", all)
	follow("node-b is back", "shell", "web-2", "third")
	expect("node-b is back", first)
	for s, times := range streamed() {
		if times != 1 {
			t.Errorf("hubble observe --follow has the flow %v %d times", s, times)
		}
	}

	// Others than clients with a certificate of the authority are refused.
	direct := []string{"list", "nodes", "--server", "172.21.0.3:4244", "--tls", "--tls-ca-cert-files", ca.file, "--tls-server-name", "node-b.default.hubble-grpc.cilium.io"}
	if out, _, err := run(direct...); err == nil {
		t.Errorf("without a certificate, hubble gets\n%s", out)
	}
	other := newAuthority(t)
	otherCert, otherKey := other.issue("other", nil)
	if out, _, err := run(append(direct, "--tls-client-cert-file", otherCert, "--tls-client-key-file", otherKey)...); err == nil {
		t.Errorf("with a certificate of another authority, hubble gets\n%s", out)
	}
	if out, complaints, err := run(append(direct, "--tls-client-cert-file", clientCert, "--tls-client-key-file", clientKey)...); err != nil || !strings.Contains(out, "node-b") {
		t.Errorf("with a certificate, hubble gets %v\n%s%s", err, out, complaints)
	}
}
