package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	controlplane "github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// testPortForward reads a node's flows from another machine, by the command of the docs through the
// API server, with the token.
func (c *apiCluster) testPortForward() {
	portForward := clustertest.RequireProgram(c.T, controlplane.PortForward)
	kubectl, err := controlplane.Binary(controlplane.Kubectl)
	c.Must(err)
	svc := c.service("forwarded", "forwarded")
	p := c.pod("forwarded-1", "forwarded", "node-b")
	c.reaches(fronts(svc), p)

	// The DaemonSet's pod on node-a, where a controller, a scheduler and a kubelet would put it.
	ctx, client := c.T.Context(), c.control.Client()
	var set appsv1.DaemonSet
	c.Must(yaml.UnmarshalStrict([]byte(e2etest.ReadFile(c.T, "../../../../deploy/kubernetes/base/daemonset.yaml")), &set))
	_, err = client.AppsV1().DaemonSets(set.Namespace).Create(ctx, &set, metav1.CreateOptions{})
	c.Must(err)
	pod := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
	pod.Name, pod.Spec.NodeName = "nfqproxy-abcde", "node-a"
	pods := client.CoreV1().Pods(set.Namespace)
	pod, err = pods.Create(ctx, pod, metav1.CreateOptions{})
	c.Must(err)
	pod.Status.Phase = corev1.PodRunning
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	c.Must(err)
	kubelet := netip.AddrPortFrom(c.AddressOf("node-a", v4), 10250)
	startOn(c.Cluster, "node-a", exec.Command(portForward, kubelet.String()))
	c.await("the kubelet's part", func(ctx context.Context) error {
		conn, err := c.Host("control").Dial(ctx, "tcp", e2etest.AnyPort, kubelet)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	c.patchNode("node-a", `{"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}}`, "status")

	c.Export("node-a", nil, "--page", "127.0.0.1:10254") // the container view of the pod
	forward := startOn(c.Cluster, "control", exec.Command(kubectl, "--kubeconfig", c.control.Kubeconfig(), "-n", "kube-system", "port-forward", "ds/nfqproxy", "10253", "10254"))
	if line := forward.line(); line != "Forwarding from 127.0.0.1:10253 -> 10253" {
		c.T.Fatalf("kubectl port-forward says %q", line)
	}
	flows := func(arguments ...string) *program {
		return startOn(c.Cluster, "control", e2etest.Command(append([]string{"flows", "--server", "http://127.0.0.1:10253", "--service", "default/forwarded", "--protocol", "tcp", "--limit", "1", "-o", "jsonl"}, arguments...)...))
	}
	if code, stdout, stderr := e2etest.Run(c.T, c.Host("control"), "flows", "--server", "http://127.0.0.1:10253"); code != 2 || stdout != "" || !strings.Contains(stderr, "missing token") || !strings.Contains(stderr, "--token-file") {
		c.T.Errorf("without a token: exit code %d, %q, %q", code, stdout, stderr)
	}
	record := func(from *program) (r flow.Record) {
		c.T.Helper()
		line := from.line()
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			c.T.Fatalf("nfqproxy flows says %q: %v", line, err)
		}
		if r.Service != "default/forwarded:http" || r.Node != "node-a" || r.Pod != p.name {
			c.T.Errorf("a flow to %s on %s, led to %s", r.Service, r.Node, r.Pod)
		}
		return r
	}
	record(flows("--token-file", c.token))
	follower := flows("--token-file", c.token, "--follow")
	past := record(follower)
	to := fronts(svc)[0]
	a := c.attempt("shell", to)
	c.Must(a.err)
	for r := past; r.ID == past.ID || r.Life == nil || r.Life.State != flow.Closed; {
		r = record(follower)
		if r.ID != past.ID && (r.Source != a.record.Source || r.Endpoint != p.at(decision.IPv4, tcpPort)) {
			c.T.Fatalf("followed through kubectl: %s > %s; want the flow from %s", r.Source, r.Endpoint, a.record.Source)
		}
	}
	code, header, page, err := c.Fetch("control", "http://127.0.0.1:10254/")
	if err != nil || code != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), "text/html") || !strings.Contains(page, "nfqproxy") {
		c.T.Errorf("the page: %d %v %v", code, header, err)
	}
	c.Must(
		pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}),
		client.AppsV1().DaemonSets(set.Namespace).Delete(ctx, set.Name, metav1.DeleteOptions{}),
	)
	p.delete()
	c.deleteService(svc.Name)
}

// program is a program that runs on a lab host until the test ends it.
type program struct {
	c          *e2etest.Cluster
	cmd        *exec.Cmd
	lines      chan string
	complaints bytes.Buffer // complete when lines is closed and the command has ended
}

// start starts a program, whose output is read line by line.
func startOn(c *e2etest.Cluster, host string, cmd *exec.Cmd) *program {
	c.T.Helper()
	p := &program{c: c, cmd: cmd, lines: make(chan string, 1000)}
	cmd.Stderr = &p.complaints
	out, err := cmd.StdoutPipe()
	c.Must(err, c.Host(host).Start(cmd))
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t := c.T
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-read
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s: %v %s", cmd.Path, cmd.ProcessState, &p.complaints)
		}
	})
	return p
}

// line waits for the next line; at the end of the output it is empty.
func (p *program) line() string {
	p.c.T.Helper()
	select {
	case line := <-p.lines:
		return line
	case <-time.After(longTimeout):
		p.c.T.Fatalf("%s: waited %s for a line", p.cmd.Path, longTimeout)
		return ""
	}
}
