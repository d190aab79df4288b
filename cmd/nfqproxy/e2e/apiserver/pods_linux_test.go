package apiserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// Ports of all pods.
const tcpPort, udpPort = 8080, 5353

func targetPort(port int) intstr.IntOrString { return intstr.FromInt32(int32(port)) }

// pod is a Pod object and the servers that answer at its addresses.
type pod struct {
	c         *apiCluster
	name      string // with the namespace
	object    *corev1.Pod
	addresses []netip.Addr // IPv4, IPv6
	serving   sync.WaitGroup
	sockets   []interface{ Close() error }
}

// at is a port of the pod in one family.
func (p *pod) at(f decision.Family, port uint16) string {
	for _, a := range p.addresses {
		if decision.FamilyOf(a) == f {
			return netip.AddrPortFrom(a, port).String()
		}
	}
	return ""
}

// farms are the lab's pods that have the addresses of all others on their node.
var farms = map[string]string{"node-a": "farm-a", "node-b": "farm-b"}

// pod makes a pod that serves and is ready.
func (c *apiCluster) pod(name, app, node string) *pod {
	c.T.Helper()
	return c.podOf(name, app, node, node)
}

// podOf makes one that is on one node, and of another one as its object says.
func (c *apiCluster) podOf(name, app, node, says string) *pod {
	c.T.Helper()
	p := &pod{c: c, name: "default/" + name, addresses: c.newAddresses(node)}
	p.serve(c.Host(farms[node]))
	c.T.Cleanup(p.close)
	pods := c.control.Client().CoreV1().Pods("default")
	var err error
	p.object, err = pods.Create(c.T.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: says, Containers: []corev1.Container{{Name: "server", Image: "server"}}},
	}, metav1.CreateOptions{})
	c.Must(err)
	p.object.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		}},
		PodIP: p.addresses[0].String(), PodIPs: []corev1.PodIP{{IP: p.addresses[0].String()}, {IP: p.addresses[1].String()}},
	}
	p.object, err = pods.UpdateStatus(c.T.Context(), p.object, metav1.UpdateOptions{})
	c.Must(err)
	return p
}

// newAddresses gives a node's farm two addresses that no pod had before.
func (c *apiCluster) newAddresses(node string) []netip.Addr {
	c.T.Helper()
	farm := farms[node]
	c.made[node]++
	n := c.made[node]
	if n > 100 { // they would run out
		c.T.Fatalf("too many pods on %s", node)
	}
	var addresses []netip.Addr
	for _, f := range bothFamilies {
		b := c.AddressOf(farm, f).AsSlice()
		b[len(b)-1] = byte(100 + n)
		a, _ := netip.AddrFromSlice(b)
		single := netip.PrefixFrom(a, a.BitLen())
		c.Must(
			c.Host(farm).AddAddress("eth0", single),
			c.Host(node).AddRoute(netns.Route{Destination: single, Link: farm}),
		)
		addresses = append(addresses, a)
	}
	return addresses
}

// serve opens the pod's ports. Each connection and datagram is answered with one line.
func (p *pod) serve(ns *netns.Namespace) {
	ctx := p.c.T.Context()
	for _, a := range p.addresses {
		l, err1 := ns.Listen(ctx, netip.AddrPortFrom(a, tcpPort))
		u, err2 := ns.ListenPacket(ctx, netip.AddrPortFrom(a, udpPort))
		p.c.Must(err1, err2)
		p.sockets = append(p.sockets, l, u)
		p.serving.Go(func() { p.serveTCP(l) })
		p.serving.Go(func() { p.serveUDP(u) })
	}
}

func (p *pod) serveTCP(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		p.serving.Go(func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(e2etest.Timeout))
			if _, err := bufio.NewReader(conn).ReadBytes('\n'); err == nil {
				_, _ = conn.Write(p.answer(conn.RemoteAddr()))
			}
		})
	}
}

func (p *pod) serveUDP(conn net.PacketConn) {
	b := make([]byte, 1500)
	for {
		_, from, err := conn.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = conn.WriteTo(p.answer(from), from)
		}
	}
}

func (p *pod) answer(client net.Addr) []byte {
	line, _ := json.Marshal(lab.Answer{Pod: p.name, Client: client.String()}) // of strings: it cannot fail
	return append(line, '\n')
}

// close ends the servers.
func (p *pod) close() {
	for _, s := range p.sockets {
		_ = s.Close()
	}
	p.serving.Wait()
}

// terminate begins the pod's graceful end: it serves on, but is not to get new flows.
func (p *pod) terminate() {
	p.c.T.Helper()
	p.c.Must(p.c.control.Client().CoreV1().Pods("default").Delete(p.c.T.Context(), p.object.Name, metav1.DeleteOptions{}))
}

// delete ends the pod at once, object first, and then its servers.
func (p *pod) delete() {
	p.c.T.Helper()
	p.c.Must(p.c.control.Client().CoreV1().Pods("default").Delete(p.c.T.Context(), p.object.Name, *metav1.NewDeleteOptions(0)))
	p.close()
}

// setReady says of the pod whether it is ready.
func (p *pod) setReady(ready bool) {
	p.c.T.Helper()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.c.await("the pod's new status", func(ctx context.Context) error {
		pods := p.c.control.Client().CoreV1().Pods("default")
		object, err := pods.Get(ctx, p.object.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		object.Status.Conditions[0].Status = status
		if p.object, err = pods.UpdateStatus(ctx, object, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
			return fmt.Errorf("changed by another: %w", err)
		}
		return err
	})
}
