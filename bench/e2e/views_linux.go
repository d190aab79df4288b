package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// views runs the commands that show all nodes as one, from outside of the cluster.
func (c *checker) views(ctx context.Context) error {
	return errors.Join(c.viewStatus(ctx), c.viewFlows(ctx), c.viewWhy(ctx), c.viewDoctor(ctx))
}

func (c *checker) viewStatus(ctx context.Context) error {
	out, err := c.own(ctx, "status", "--cluster")
	if n := strings.Count(out, ": healthy\n"); err == nil && n != c.Nodes {
		err = fmt.Errorf("status: %d of %d nodes are healthy: %s", n, c.Nodes, out)
	}
	return err
}

// viewFlows wants decisions of all nodes, and connections that pass two.
func (c *checker) viewFlows(ctx context.Context) error {
	list := []string{"flows", "--cluster", "--service=" + loadNamespace + "/server", "--limit=5000"}
	out, err := c.own(ctx, append(list, "--output=jsonl")...)
	if err != nil {
		return err
	}
	seen := make(map[string]bool)
	if err := eachRecord(out, func(r *flow.Record) error { seen[r.Node] = true; return nil }); err != nil {
		return err
	}
	for i := range c.Nodes {
		if !seen[nodeName(i+1)] {
			err = errors.Join(err, fmt.Errorf("flows: none of %s to the servers", nodeName(i+1)))
		}
	}
	rows, listErr := c.own(ctx, list...)
	if name := nodeName(1); !regexp.MustCompile(name + ` → ` + nodeName(2)).MatchString(rows) {
		err = errors.Join(err, fmt.Errorf("flows: none from %s to %s: %s", name, nodeName(2), rows))
	}
	return errors.Join(err, listErr)
}

// eachRecord passes on the records that "flows --output jsonl" printed. An error has the line.
func eachRecord(printed string, each func(*flow.Record) error) error {
	for line := range strings.Lines(printed) {
		var r flow.Record
		err := json.Unmarshal([]byte(line), &r)
		if err == nil {
			err = each(&r)
		}
		if err != nil {
			return fmt.Errorf("flows: %w: %s", err, line)
		}
	}
	return nil
}

// viewWhy wants the connections of a client to be all right.
func (c *checker) viewWhy(ctx context.Context) error {
	pods, err := c.client.CoreV1().Pods(loadNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=client"})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		_, one := c.own(ctx, "why", "--cluster", loadNamespace+"/"+p.Name, loadNamespace+"/server:80")
		err = errors.Join(err, one)
	}
	return err
}

// viewDoctor wants no problem: of what the cluster has, all is as it should be.
func (c *checker) viewDoctor(ctx context.Context) error {
	_, err := c.own(ctx, "doctor", "--cluster")
	return err
}

// relaySecrets makes the certificates as docs/how-to/export-to-hubble.md does. $1 is kubectl with its configuration.
const relaySecrets = `set -e
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=Hubble" -keyout ca.key -out ca.crt
for name in nodes relay; do
  openssl req -x509 -CA ca.crt -CAkey ca.key -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 \
    -subj "/CN=$name" -addext "subjectAltName=DNS:*.default.hubble-grpc.cilium.io" -keyout $name.key -out $name.crt
done
"$1" --kubeconfig="$2" -n kube-system create secret generic nfqproxy-hubble --from-file=tls.crt=nodes.crt --from-file=tls.key=nodes.key --from-file=ca.crt
"$1" --kubeconfig="$2" -n kube-system create secret generic hubble-relay --from-file=tls.crt=relay.crt --from-file=tls.key=relay.key --from-file=ca.crt
`

// relay adds the component hubble-relay, follows the flows of all nodes through it, and removes it.
func (c *checker) relay(ctx context.Context) (err error) {
	dir := c.path("hubble-relay")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	kubectl, err := cluster.Binary(cluster.Kubectl)
	if err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err,
			c.kubectl(ctx, nil, "--namespace=kube-system", "delete", "--ignore-not-found", "deployment/hubble-relay", "service/hubble-peer"),
			c.deployOwn(ctx), c.rolledOut(ctx, "kube-system", "daemonset/nfqproxy"),
			c.kubectl(ctx, nil, "--namespace=kube-system", "delete", "--ignore-not-found", "secret/hubble-relay", "secret/nfqproxy-hubble"))
	}()
	secrets := exec.Command("sh", "-c", relaySecrets, "sh", kubectl, c.kubeconfig())
	secrets.Dir = dir
	if _, err := output(ctx, secrets); err != nil {
		return err
	}
	if err := c.relayOverlay(dir); err != nil {
		return err
	}
	if err := c.kubectl(ctx, nil, "apply", "--kustomize="+dir); err != nil {
		return err
	}
	if err := errors.Join(c.rolledOut(ctx, "kube-system", "daemonset/nfqproxy"), c.rolledOut(ctx, "kube-system", "deployment/hubble-relay")); err != nil {
		return err
	}
	return c.observeRelay(ctx, kubectl)
}

// relayOverlay writes the overlay that a user writes.
func (c *checker) relayOverlay(dir string) error {
	root, err := repository()
	if err != nil {
		return err
	}
	from, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	manifests, err := filepath.Rel(from, filepath.Join(root, "deploy", "kubernetes"))
	if err != nil {
		return err
	}
	text := fmt.Sprintf("resources: [%[1]s/overlays/kubeadm]\ncomponents: [%[1]s/components/view, %[1]s/components/hubble-relay]\n", manifests)
	return os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644)
}

// observeTime is enough for all nodes' flows: there are a hundred a second on each.
const observeTime = time.Minute

// observeRelay follows the relay until there was a flow of each node.
func (c *checker) observeRelay(ctx context.Context, kubectl string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, observeTime, fmt.Errorf("not within %s", observeTime))
	defer cancel()
	forward, err := lines(ctx, exec.Command(kubectl, "--kubeconfig="+c.kubeconfig(), "--namespace=kube-system", "port-forward", "deployment/hubble-relay", ":4245"))
	if err != nil {
		return err
	}
	port := ""
	if _, err := fmt.Sscanf(<-forward, "Forwarding from 127.0.0.1:%s -> 4245", &port); err != nil {
		return fmt.Errorf("kubectl port-forward: %w", err)
	}
	hubble, err := cluster.Binary(cluster.Hubble)
	if err != nil {
		return err
	}
	flows, err := lines(ctx, exec.Command(hubble, "observe", "--server=127.0.0.1:"+port, "--follow", "--to-service="+loadNamespace+"/server", "--output=jsonpb"))
	if err != nil {
		return err
	}
	missing := make(map[string]bool)
	for i := range c.Nodes {
		missing[nodeName(i+1)] = true
	}
	for len(missing) > 0 {
		line, ok := <-flows
		if !ok {
			return fmt.Errorf("hubble observe ended without a flow of %d nodes (%v): %w", len(missing), missing, context.Cause(ctx))
		}
		var response struct {
			Flow struct {
				NodeName string `json:"node_name"`
			}
		}
		if err := json.Unmarshal([]byte(line), &response); err != nil {
			return fmt.Errorf("hubble observe: %w: %s", err, line)
		}
		delete(missing, response.Flow.NodeName)
	}
	return nil
}

// lines starts a program, which ctx ends, and returns the lines that it writes. Its messages go to standard error.
func lines(ctx context.Context, cmd *exec.Cmd) (<-chan string, error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	c := make(chan string)
	go func() {
		defer close(c)
		for s := bufio.NewScanner(out); s.Scan(); {
			select {
			case c <- s.Text():
			case <-ctx.Done():
				_, _ = io.Copy(io.Discard, out)
			}
		}
		_ = cmd.Wait()
	}()
	return c, nil
}
