package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/e2e/node"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// observe installs nfqproxy beside kube-proxy, wants right records of the load, and removes it again: nothing on the nodes
// has changed.
func (c *checker) observe(ctx context.Context) (err error) {
	before, err := c.nodeStates(ctx)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, c.removeObserver(context.WithoutCancel(ctx)))
		after, stateErr := c.nodeStates(context.WithoutCancel(ctx))
		err = errors.Join(err, stateErr, unchanged(before, after))
	}()
	if err := c.installObserver(ctx); err != nil {
		return err
	}
	if err := c.viewStatus(ctx); err != nil {
		return err
	}
	if err := c.await(ctx, "records of all nodes and servers", func() error { return c.observedFlows(ctx) }); err != nil {
		return err
	}
	if c.Deploy == "helm" {
		if err := c.await(ctx, "a history of the flows of each node", func() error { return c.histories(ctx) }); err != nil {
			return err
		}
	}
	during, err := c.nodeStates(ctx)
	if err != nil {
		return err
	}
	return unchanged(before, during)
}

func (c *checker) installObserver(ctx context.Context) error {
	if c.Deploy == "helm" {
		if err := c.helm(ctx, "install", "nfqproxy", "--set=mode=observe,image.tag=dev,history.enabled=true"); err != nil {
			return err
		}
		return c.rolledOut(ctx, metav1.NamespaceSystem, "daemonset/nfqproxy")
	}
	_, err := c.own(ctx, "install", "--cluster", "--observe", "--image=nfqproxy:dev")
	return err
}

func (c *checker) removeObserver(ctx context.Context) (err error) {
	if c.Deploy == "helm" {
		err = c.helm(ctx, "uninstall", "nfqproxy")
	} else {
		_, err = c.own(ctx, "uninstall", "--cluster")
	}
	return errors.Join(err, c.kubectl(ctx, nil, "--namespace=kube-system", "wait", "--for=delete", "pod", "--selector=k8s-app=nfqproxy", "--timeout=2m"))
}

// observedFlows wants records of the load on each node, to all servers: each names a server and its pod, and the proxy.
func (c *checker) observedFlows(ctx context.Context) error {
	pods, err := c.client.CoreV1().Pods(loadNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=server"})
	if err != nil {
		return err
	}
	servers := make(map[string]string)
	missing := make(map[string]bool)
	for _, p := range pods.Items {
		for _, ip := range p.Status.PodIPs {
			servers[ip.IP] = p.Namespace + "/" + p.Name
		}
		for i := range c.Nodes {
			missing[nodeName(i+1)+" to "+p.Name] = true
		}
	}
	out, err := c.own(ctx, "flows", "--cluster", "--service="+loadNamespace+"/server", "--limit=5000", "--output=jsonl")
	if err != nil {
		return err
	}
	if err := eachRecord(out, func(r *flow.Record) error {
		endpoint, _ := netip.ParseAddrPort(r.Endpoint)
		server := servers[endpoint.Addr().String()]
		if r.Pod == "" || r.Pod != server || r.Proxy != "kube-proxy ("+proxies[c.Proxy].mode+")" || r.Reason != "service-proxy" {
			return fmt.Errorf("the record of a flow to %q is wrong", server)
		}
		delete(missing, r.Node+" to "+strings.TrimPrefix(r.Pod, loadNamespace+"/"))
		return nil
	}); err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("no flows of %v", missing)
	}
	return nil
}

// histories wants the container history of each node's pod to have files with the flows of its node, which its program reads.
func (c *checker) histories(ctx context.Context) error {
	kubectl, err := cluster.Binary(cluster.Kubectl)
	if err != nil {
		return err
	}
	pods, err := c.client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=nfqproxy"})
	if err != nil {
		return err
	}
	if len(pods.Items) != c.Nodes {
		return fmt.Errorf("%d pods of nfqproxy, want %d", len(pods.Items), c.Nodes)
	}
	for _, p := range pods.Items {
		var messages strings.Builder
		cmd := exec.CommandContext(ctx, kubectl, "--kubeconfig="+c.kubeconfig(), "--namespace="+p.Namespace, "exec", p.Name, "--container=history", "--",
			"/nfqproxy", "flows", "--history=/history", "--since=1h", "--service="+loadNamespace+"/server", "--limit=20", "--output=jsonl")
		cmd.Stderr = &messages
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("the history of pod %s: %w: %s", p.Name, err, messages.String())
		}
		if len(out) == 0 {
			return fmt.Errorf("the history of pod %s has no flows to the servers: %s", p.Name, messages.String())
		}
		if err := eachRecord(string(out), func(r *flow.Record) error {
			if r.Node != p.Spec.NodeName {
				return fmt.Errorf("a flow of %s", r.Node)
			}
			return nil
		}); err != nil {
			return fmt.Errorf("the history of pod %s on %s: %w", p.Name, p.Spec.NodeName, err)
		}
	}
	return nil
}

// nodeState prints what a service proxy could leave on a node.
const nodeState = `nft -s list ruleset; iptables-save; ip6tables-save; sysctl -a -r '^net[.]' 2>/dev/null
for f in /run/nfqproxy /var/lib/nfqproxy; do test -e $f && echo $f; done; true`

// counted is what changes by itself: comments with times, counters of chains, and what the kernel counts.
var counted = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]|^net\..*(nf_conntrack_count|\.random|udp_mem|tcp_mem).*\n`)

// nodeStates are the states of all nodes, without counters.
func (c *checker) nodeStates(ctx context.Context) ([]string, error) {
	var states []string
	for i := range c.Nodes {
		cmd, err := node.Command(c.path(nodeName(i+1), node.Socket), "", "sh", "-c", nodeState)
		if err != nil {
			return nil, err
		}
		out, err := output(ctx, cmd)
		if err != nil {
			return nil, err
		}
		states = append(states, counted.ReplaceAllString(out, ""))
	}
	return states, nil
}

// unchanged is an error with the first difference of a node.
func unchanged(before, after []string) error {
	for i := range min(len(before), len(after)) {
		a, b := strings.Split(before[i], "\n"), strings.Split(after[i], "\n")
		for k := range min(len(a), len(b)) {
			if a[k] != b[k] {
				return fmt.Errorf("%s has changed: %q was %q", nodeName(i+1), b[k], a[k])
			}
		}
		if len(a) != len(b) {
			return fmt.Errorf("%s has changed: %d lines, were %d", nodeName(i+1), len(b), len(a))
		}
	}
	return nil
}
