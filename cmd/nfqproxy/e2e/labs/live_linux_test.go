package labs

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

const changing = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: changing}
clusterCIDRs: [10.244.0.0/16]
networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}]
nodes:
- {name: node-a, addresses: [192.0.2.2], podCIDRs: [10.244.0.0/24]}
- {name: node-b, addresses: [192.0.2.3], podCIDRs: [10.244.1.0/24]}
pods:
- {name: shell, node: node-a, addresses: [10.244.0.9]}
deployments:
- {name: web, replicas: 2, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.1
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
`

// dialBriefly connects to an address that may lead to a pod that has just gone.
func dialBriefly(c *e2etest.Cluster, host, to string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(c.T.Context(), time.Second)
	defer cancel()
	conn, err := c.Host(host).Dial(ctx, "tcp", e2etest.AnyPort, netip.MustParseAddrPort(to))
	if err == nil {
		c.T.Cleanup(func() { _ = conn.Close() })
		err = conn.SetDeadline(time.Now().Add(e2etest.Timeout))
	}
	return conn, err
}

// TestLiveLab: connections go where the changes of a running lab send them.
func TestLiveLab(t *testing.T) {
	t.Parallel()
	file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", []byte(changing)))
	if err != nil {
		t.Fatal(err)
	}
	c := e2etest.Up(t, file, lab.Options{Arguments: []string{"-v"}})
	change := func(change lab.Change) {
		t.Helper()
		if _, err := c.Change(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
	// only waits until a number of connections in a row reach the wanted pods, and each of these is reached.
	only := func(want ...string) {
		t.Helper()
		last := ""
		for end := time.Now().Add(e2etest.Timeout); time.Now().Before(end); {
			seen := make(map[string]bool)
			other := false
			for range 40 { // with three endpoints, one is missed once in ten million runs
				conn, err := dialBriefly(c, "shell", "10.96.0.1:80")
				if err != nil {
					other, last = true, err.Error()
					break
				}
				last = c.Ask(conn).Pod
				seen[last] = true
			}
			for _, w := range want {
				other = other || !seen[w]
			}
			if !other && len(seen) == len(want) {
				return
			}
		}
		t.Fatalf("connections do not reach %s only; the last one: %s", strings.Join(want, ", "), last)
	}
	only("default/web-1", "default/web-2")
	// A change is in force when its command returns.
	const at = "10.96.0.2:80"
	if _, err := dialBriefly(c, "shell", at); err == nil {
		t.Fatal("there is a connection to a Service that is not there")
	}
	change(lab.Change{Apply: `apiVersion: v1
kind: Service
metadata: {name: second}
spec:
  clusterIP: 10.96.0.2
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`})
	if _, err := c.TryDial("shell", "tcp", e2etest.AnyPort, at); err != nil {
		t.Errorf("after its command has returned: %v", err)
	}
	change(lab.Change{Scale: &lab.Scale{Deployment: "web", Replicas: 3}})
	only("default/web-1", "default/web-2", "default/web-3")
	change(lab.Change{Ready: &lab.Readiness{Pod: "web-2"}})
	only("default/web-1", "default/web-3")
	change(lab.Change{RemovePod: &lab.RemovePod{Pod: "web-1", Grace: new(labapi.Duration(0))}})
	only("default/web-3", "default/web-4")
	change(lab.Change{Ready: &lab.Readiness{Pod: "web-2", Ready: true}})
	only("default/web-2", "default/web-3", "default/web-4")
	change(lab.Change{Node: &lab.NodeEvent{Node: "node-b", Action: "down"}}) // web-2 is there
	only("default/web-3", "default/web-4")
}
