package labs

import (
	"fmt"
	"net"
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
		conn, err := dialBriefly(c, "shell", "10.96.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
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
	for deadline := time.Now().Add(e2etest.Patience); len(open["default/web-2"]) < before+10; {
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

// TestSecondChance: connections to a pod whose server has stopped are refused; with second chances none is, and the
// record has both decisions.
func TestSecondChance(t *testing.T) {
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
