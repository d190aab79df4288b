package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// TestAPIServer has the objects of two nodes' daemons come from a real API server, and
// the EndpointSlices from the real controller, while real traffic runs. The control plane
// is one for all cases; each leaves it as it found it.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	c := newAPICluster(t)
	c.run(t, "started before there is anything", c.testStart)
	if t.Failed() {
		return // no daemon runs
	}
	c.run(t, "service through its life", c.testServiceLife)
	c.run(t, "service with another cluster IP", c.testNewClusterIP)
	c.run(t, "service that the kernel decides", c.testDecide)
	c.run(t, "metrics", c.testMetrics)
	c.run(t, "health check node port", c.testHealthCheckNodePort)
	c.run(t, "flows by kubectl port-forward", c.testPortForward)
	c.run(t, "node about to be deleted", c.testNodeEligibility)
	c.run(t, "zone of the node", c.testZone)
	c.run(t, "prefer the same node", c.testSameNode)
	c.run(t, "addresses of the node", c.testNodeIPs)
	c.run(t, "rolling update", c.testRollingUpdate)
	c.run(t, "outages", c.testOutages)
}

// testStart starts the daemon of node-a when neither the API server nor its Node object
// is there. While it waits it says for what, and leaves the node's traffic alone.
func (c *apiCluster) testStart() {
	c.Must(c.control.APIServer.Kill())
	started := make(chan error, 1)
	go func() { started <- c.StartDaemon(context.Background(), "node-a") }()
	c.waitsFor("the API server\n")

	c.Must(c.control.APIServer.Start(c.T.Context()))
	c.waitsFor("addresses in the Node object node-a\n")
	c.makeNode("node-a", "zone-1")
	c.waitsFor("pod CIDRs in the Node object node-a\n")
	select {
	case err := <-started:
		c.T.Fatalf("began to serve without a pod CIDR (%v)", err)
	default:
	}
	c.setPodCIDRs("node-a")
	c.Must(<-started)

	c.makeNode("node-b", "zone-2")
	c.setPodCIDRs("node-b")
	c.Must(c.StartDaemon(c.T.Context(), "node-b"))
	for _, node := range []string{"node-a", "node-b"} {
		for _, path := range []string{"/healthz", "/livez", "/readyz"} {
			if code, body := c.Get(node, e2etest.HealthPort, path); code != http.StatusOK {
				c.T.Errorf("%s%s: %d %s", node, path, code, body)
			}
		}
	}
	// What is a pod of the node was learnt from the Node object.
	svc := c.service("first", "first")
	p := c.pod("first-1", "first", "node-b")
	records := c.reaches(fronts(svc), p)
	if a, b := records["node-a"], records["node-b"]; a.Masquerade || !b.Masquerade {
		c.T.Errorf("masqueraded: from a pod of node-a %t, from node-b itself %t; want the latter only", a.Masquerade, b.Masquerade)
	}
	p.delete()
	c.deleteService(svc.Name)
}

// waitsFor waits until the daemon on node-a says what it waits for, and makes sure that
// it has put nothing into the kernel.
func (c *apiCluster) waitsFor(what string) {
	c.T.Helper()
	c.await("node-a to wait for "+what, func(context.Context) error {
		if code, body, err := c.TryGet("node-a", e2etest.HealthPort, "/readyz"); err != nil || code != http.StatusServiceUnavailable || body != "waiting for "+what {
			return fmt.Errorf("/readyz: %d %q, %v", code, body, err)
		}
		return nil
	})
	c.Must(c.Host("node-a").Do(func() error {
		tables, err := e2etest.Tables()
		if slices.Contains(tables, "nfqproxy") {
			c.T.Error("rules in the kernel of a node that is not served yet")
		}
		return err
	}))
	if code, body := c.Get("node-a", e2etest.HealthPort, "/livez"); code != http.StatusOK {
		c.T.Errorf("/livez: %d %s; want 200: to start it again would not help", code, body)
	}
}

// testServiceLife takes a service from its creation through all that happens to
// endpoints. At each step new flows have to follow, on both nodes, and conversations
// whose endpoint went away.
func (c *apiCluster) testServiceLife() {
	svc := c.service("web", "web", withNodePort)
	clusterIPs := fronts(svc)
	all := append(clusterIPs, nodePort(svc, c.AddressOf("node-a", v4)), nodePort(svc, c.AddressOf("node-b", v4)))
	c.refuses(clusterIPs)
	conversations := c.conversations(clusterIPs)
	for _, v := range conversations {
		if who, err := v.next(); err == nil {
			c.T.Errorf("%s answers, and there is no endpoint", who)
		}
	}

	one := c.pod("web-1", "web", "node-a")
	began := c.reaches(all, one)
	for _, v := range conversations {
		v.movesTo(one)
	}

	two, three := c.pod("web-2", "web", "node-b"), c.pod("web-3", "web", "node-b")
	scaled := c.reaches(all, one, two, three)
	for _, node := range []string{"node-a", "node-b"} {
		if b, s := began[node], scaled[node]; s.Generation <= b.Generation || s.TableAge <= 0 {
			c.T.Errorf("%s: table %d of %g s after %d; want a newer one with its age", node, s.Generation, s.TableAge, b.Generation)
		}
	}
	for _, v := range conversations {
		v.movesTo(one) // or rather, stays
	}

	three.setReady(false)
	c.reaches(all, one, two)
	one.terminate()
	c.reaches(all, two)
	for _, v := range conversations {
		v.movesTo(one) // stays: it serves to the end
	}
	one.delete()
	for _, v := range conversations {
		v.movesTo(two)
	}
	two.terminate()
	c.reaches(all, two) // better one that is about to go than none
	three.setReady(true)
	c.reaches(all, three)
	two.delete()
	three.delete()
	c.refuses(clusterIPs)
	for _, v := range conversations {
		c.await("the conversation to be refused", func(context.Context) error {
			if who, err := v.next(); !isRefused(err) {
				return fmt.Errorf("answered by %q, %v", who, err)
			}
			return nil
		})
	}
	c.deleteService(svc.Name)
	c.ignores(all)
}

// testNewClusterIP deletes a service and makes it again with addresses at which a client
// has been trying already.
func (c *apiCluster) testNewClusterIP() {
	svc := c.service("moving", "moving")
	p := c.pod("moving-1", "moving", "node-b")
	before := fronts(svc)
	c.reaches(before, p)

	const newIPv4, newIPv6 = "10.96.77.7", "fd00:10:96::777"
	conversations := c.conversations(fronts(&corev1.Service{Spec: corev1.ServiceSpec{ClusterIPs: []string{newIPv4, newIPv6}}}))
	for _, v := range conversations {
		if who, err := v.next(); err == nil {
			c.T.Errorf("%s answers at an address that no service has", who)
		}
	}
	c.deleteService(svc.Name)
	svc = c.service("moving", "moving", func(s *corev1.ServiceSpec) {
		s.ClusterIP, s.ClusterIPs = newIPv4, []string{newIPv4, newIPv6}
	})
	c.reaches(fronts(svc), p)
	for _, v := range conversations {
		v.movesTo(p)
	}
	c.ignores(before)
	p.delete()
	c.deleteService(svc.Name)
}

// testDecide annotates a service, so that the kernel's copy decides its flows.
func (c *apiCluster) testDecide() {
	svc := c.service("annotated", "annotated")
	p := c.pod("annotated-1", "annotated", "node-a")
	c.reaches(fronts(svc), p)
	const patch = `{"metadata":{"annotations":{"` + servicetable.AnnotationDecide + `":"kernel"}}}`
	_, err := c.control.Client().CoreV1().Services(svc.Namespace).Patch(c.T.Context(), svc.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	c.Must(err)
	c.awaitDecision(fronts(svc), func(_ front, a attempt) error {
		if a.record.Reason != "kernel-copy" || a.err != nil || a.pod != p.name || a.record.Pod != p.name {
			return fmt.Errorf("reason %s, endpoint %s, answered by %q (%v)", a.record.Reason, a.record.Pod, a.pod, a.err)
		}
		return nil
	})
	p.delete()
	c.deleteService(svc.Name)
}
