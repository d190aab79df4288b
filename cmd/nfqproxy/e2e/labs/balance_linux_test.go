package labs

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// balanced is the lab "changing" with an algorithm, three pods and options of the daemons.
func balanced(t *testing.T, algorithm, options string) *e2etest.Cluster {
	t.Helper()
	text := strings.NewReplacer("metadata: {name: web}", "metadata: {name: web, annotations: {nfqproxy.io/balance: "+algorithm+"}}",
		"replicas: 2", "replicas: 3", "clusterCIDRs:", "proxy: {"+options+"}\nclusterCIDRs:").Replace(changing)
	file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", []byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	return e2etest.Up(t, file, lab.Options{Arguments: []string{"-v"}})
}

// TestBalance: with lc, connections that stay open spread evenly, and an endpoint whose connections end gets the next ones;
// with another annotation the next flows are decided by that algorithm, and weights count.
func TestBalance(t *testing.T) {
	t.Parallel()
	c := balanced(t, "lc", "")
	open := make(map[string][]net.Conn)
	dial := func() string {
		t.Helper()
		conn := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.1:80")
		pod := c.Ask(conn).Pod
		open[pod] = append(open[pod], conn)
		return pod
	}
	for range 30 {
		dial()
	}
	for pod, connections := range open {
		if len(open) != 3 || len(connections) != 10 {
			t.Errorf("%s has %d of 30 connections, with %d pods", pod, len(connections), len(open))
		}
	}
	r := c.WaitRecord("of a flow by lc", func(r *flow.Record) bool { return r.Balance != nil })
	if r.Balance.Algorithm != "lc" || !strings.HasPrefix(r.Balance.Evidence, "fewest open connections: ") || r.Draw != nil || r.Balance.Probability != 1 {
		t.Errorf("record %+v", r.Balance)
	}
	for _, conn := range open["default/web-2"] {
		c.Must(conn.Close())
	}
	// The daemon hears of each end from the kernel. Until then, others get some; these are closed at once.
	before := len(open["default/web-2"])
	for deadline := time.Now().Add(e2etest.Timeout); len(open["default/web-2"]) < before+10; {
		if time.Now().After(deadline) {
			t.Fatalf("the pod whose connections have ended gets %d", len(open["default/web-2"])-before)
		}
		if pod := dial(); pod != "default/web-2" {
			last := len(open[pod]) - 1
			c.Must(open[pod][last].Close())
			open[pod] = open[pod][:last]
		}
	}
	change := func(algorithm string) {
		t.Helper()
		if _, err := c.Change(t.Context(), lab.Change{Apply: `apiVersion: v1
kind: Service
metadata: {name: web, annotations: {nfqproxy.io/balance: ` + algorithm + `}}
spec:
  clusterIP: 10.96.0.1
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
`}); err != nil {
			t.Fatal(err)
		}
	}
	change("rr")
	var turns []string
	for range 9 {
		turns = append(turns, dial())
	}
	for i := range 6 {
		if turns[i] != turns[i+3] || turns[i] == turns[i+1] {
			t.Errorf("rr: %s", turns)
			break
		}
	}
	change("best")
	c.Logged(`balancing algorithm \"best\": unknown`)
	dial() // as before, by kube-proxy's draw
}

// TestBalanceScript: a policy in Starlark decides, a new version counts as soon as it is saved, a version that cannot be
// compiled does not, and while a policy fails endpoints are drawn.
func TestBalanceScript(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	policy := filepath.Join(dir, "my.star")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	save := func(body string) {
		t.Helper()
		write(policy, ("def pick(candidates, flow, state):\n    " + body + "\n"))
	}
	save(`return 0, "the first"`)
	text := strings.NewReplacer("replicas: 2", "replicas: 3", "clusterCIDRs:", "proxy: {balance: script:my.star, scripts: [my.star]}\nclusterCIDRs:").Replace(changing)
	path := filepath.Join(dir, "lab.yaml")
	write(path, text)
	file, err := lab.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	c := e2etest.Up(t, file, lab.Options{Arguments: []string{"-v"}})
	dial := func() string {
		t.Helper()
		return c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.1:80")).Pod
	}
	evidence := func(text string) *flow.Record {
		t.Helper()
		return c.WaitRecord("of a flow with "+text, func(r *flow.Record) bool { return r.Balance != nil && strings.Contains(r.Balance.Evidence, text) })
	}
	// expect connects until the version of the policy that leads to a pod is in use.
	expect := func(pod, text string) {
		t.Helper()
		e2etest.Eventually(t, e2etest.Timeout, "flows to "+pod, func() bool { return dial() == pod })
		if r := evidence(text); r.Balance.Algorithm != "script:my.star" || r.Pod != pod {
			t.Errorf("%s: %+v to %s, want %s", text, r.Balance, r.Pod, pod)
		}
	}
	if pod := dial(); pod != "default/web-1" {
		t.Errorf("connected to %s, want default/web-1", pod)
	}
	evidence("the first")
	// The candidates are in the order of their addresses: web-3 is on node-a, as web-1 is.
	save(`return 2, "the last"`)
	expect("default/web-2", "the last")
	save(`return best`)
	c.Logged("cannot use the new version of a balancing script: the previous one stays in use")
	expect("default/web-2", "the last")
	save(`return candidates[7]`)
	e2etest.Eventually(t, e2etest.Timeout, "draws among all pods", func() bool { return dial() == "default/web-3" })
	evidence("script failed: my.star:2:22: list index 7 out of range [-3:2]: drawn among 3")
	c.Logged("balancing script failed: the endpoint is drawn at random")
	if n := c.Metric("node-a", `nfqproxy_balance_script_failures_total{script="my.star"}`); n == 0 {
		t.Error("no failure is counted")
	}
}

// TestSecondChanceInALab: connections to a pod whose server has stopped are refused; with second chances none is, and the
// record has both decisions.
func TestSecondChanceInALab(t *testing.T) {
	t.Parallel()
	for _, on := range []bool{false, true} {
		t.Run(fmt.Sprint("secondChance=", on), func(t *testing.T) {
			t.Parallel()
			c := balanced(t, "rr", fmt.Sprint("secondChance: ", on))
			if _, err := c.Change(t.Context(), lab.Change{Server: &lab.Serving{Pod: "web-2"}}); err != nil {
				t.Fatal(err)
			}
			refused := 0
			for range 9 {
				conn, err := c.TryDial("shell", "tcp", e2etest.AnyPort, "10.96.0.1:80")
				if err != nil {
					refused++
				} else if pod := c.Ask(conn).Pod; pod == "default/web-2" {
					t.Errorf("%s has no server, and has replied", pod)
				}
			}
			if want := map[bool]int{false: 3, true: 0}[on]; refused != want {
				t.Errorf("%d of 9 connections are refused, want %d", refused, want)
			}
			if !on {
				return
			}
			r := c.WaitRecord("of a flow with a second chance", func(r *flow.Record) bool { return len(r.Earlier) > 0 })
			if r.Earlier[0].Outcome != flow.Refused || r.Earlier[0].Endpoint == r.Endpoint || r.Conntrack != "created" {
				t.Errorf("record %+v", r)
			}
		})
	}
}
