package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/bundle"
)

// tops: top shows the rates of the services that different nodes have flows to, and the flows as they come.
func (v *viewed) tops() {
	p := e2etest.NewPane(v.T, v.control, nil, "140", "30", v.ofCluster([]string{"top"})...)
	p.Sees("nfqproxy top", "3 nodes", "SERVICE")
	p.Awaits("a rate of each service", func(screen string) bool {
		rates := make(map[string]float64)
		for line := range strings.Lines(screen) {
			if f := strings.Fields(strings.TrimPrefix(line, ">")); len(f) > 2 {
				rates[f[0]], _ = strconv.ParseFloat(f[1], 64)
			}
		}
		all := true
		for _, n := range v.nodes {
			n.serves()
			all = all && rates["default/web-"+n.name+":http"] > 0
		}
		return all
	})
	n := v.nodes[2]
	p.Press("/", "web-"+n.name, "Enter")
	p.Sees("> default/web-" + n.name + ":http")
	p.Press("Enter")
	p.Sees("services > default/web-"+n.name+":http", "> "+n.server.String())
	p.Press("f")
	p.Sees("services > default/web-" + n.name + ":http > flows")
	c, err := n.connect(n.client, e2etest.Timeout)
	if err != nil {
		v.Fatal(err)
	}
	p.Awaits("the flow of "+n.name, func(screen string) bool {
		for line := range strings.Lines(screen) {
			if strings.Contains(line, c.LocalAddr().String()) && strings.Contains(line, n.server.String()) && strings.Contains(line, n.name) {
				return true
			}
		}
		return false
	})
	_ = c.Close()
	p.Press("q")
	p.Sees("exit code 0")
}

// steps: a flow is held on its node, and no other one waits. It is stepped and released from beside the API server. One
// node does not allow it.
func (v *viewed) steps() {
	if code, _, stderr := v.run("step", "--port", "80", "--node", v.nodes[0].name); code != 2 || !strings.Contains(stderr, "the daemon requires --flow-api-holds") {
		v.Errorf("a node without holds: exit code %d, %s", code, stderr)
	}
	n := v.nodes[1]
	c := v.begin("step", "--service", "default/web-"+n.name)
	c.until("Waiting for a flow to service default/web-" + n.name)
	type result struct {
		net.Conn
		err error
	}
	connected := make(chan result, 1)
	go func() {
		conn, err := n.connect(n.client, longTimeout)
		connected <- result{conn, err}
	}()
	held := c.until("0 of ")
	for _, want := range []string{" " + n.name + "  TCP " + "10.244.", "=> KUBE-SERVICES", "default/web-" + n.name + ":http"} {
		if !strings.Contains(held, want) {
			v.Errorf("step shows no %q:\n%s", want, held)
		}
	}
	for _, other := range v.nodes {
		if other != n {
			other.serves()
		}
	}
	c.enter("n")
	if after := c.until(" steps taken"); !strings.Contains(after, "\n1 of ") {
		v.Errorf("after a step:\n%s", after)
	}
	select {
	case r := <-connected:
		v.Errorf("the flow is held, and has ended: %v", r.err)
	default:
	}
	c.enter("g")
	if r := <-connected; r.err != nil {
		v.Errorf("the flow that was released: %v", r.err)
	} else {
		_ = r.Close()
	}
	if code, rest := c.end(); code != 0 || !strings.Contains(rest, "\nThe flow was released") || !strings.Contains(rest, "\nState: ") {
		v.Errorf("exit code %d\n%s", code, rest)
	}
	n.serves() // the hold is over
}

// watches: watch-for waits for a flow of any node, and its bundle has what the nodes observe.
func (v *viewed) watches() {
	nobody, err := v.Client().CoreV1().Services("default").Create(v.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "nobody-home"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		v.Fatal(err)
	}
	n := v.nodes[2]
	file := filepath.Join(v.TempDir(), "flow.tgz")
	c := v.begin("watch-for", "--service", "nobody-home", "--timeout", longTimeout.String(), "--write", file)
	ended := make(chan struct{})
	var code int
	var out string
	go func() {
		defer close(ended)
		code, out = c.end()
	}()
	n.await("nfqproxy watch-for", func() bool { // it begins some time after its start
		ctx, cancel := context.WithTimeout(v.Context(), time.Second) // before the node knows the Service, nothing answers
		defer cancel()
		if conn, err := n.client.Dial(ctx, "tcp", e2etest.AnyPort, netip.AddrPortFrom(netip.MustParseAddr(nobody.Spec.ClusterIP), 80)); err == nil {
			v.Errorf("a Service without endpoints: connected to %s", conn.RemoteAddr())
			_ = conn.Close()
		}
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	if code != 0 || !strings.Contains(out, "default/nobody-home:80, decided on "+n.name+"\n") || !strings.Contains(out, "wrote "+file) {
		v.Fatalf("exit code %d\n%s", code, out)
	}
	code, stdout, stderr := e2etest.Run(v.T, nil, "show", file, "--utc")
	if code != 0 || !strings.Contains(stdout, "decided on node "+n.name) || !strings.Contains(stdout, "run nfqproxy watch-for on node "+n.name) {
		v.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	for _, name := range []string{bundle.TablesFile, bundle.StatusFile} {
		code, text, stderr := e2etest.Run(v.T, nil, "show", file, "--file", name)
		for _, n := range v.nodes {
			if !strings.Contains(text, fmt.Sprintf(`"node": %q`, n.name)) {
				v.Errorf("%s has nothing of %s: exit code %d\n%s%s", name, n.name, code, text, stderr)
			}
		}
	}
}
