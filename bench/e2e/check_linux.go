package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nfqproxy/nfqproxy/bench/e2e/load"
	"github.com/nfqproxy/nfqproxy/bench/e2e/node"
)

// check is a change of the cluster under load.
type check struct {
	name, what string
	do         func(*checker, context.Context) error
	// fails judges the counts.
	fails func(*load.Counts) bool
	// fits are the clusters that the check is for.
	fits func(*settings) bool
	// before prepares the cluster for the check, and after ends that; nil: nothing to do.
	before, after func(*checker, context.Context) error
	// rate is the number of new connections per second of all clients; 0: 100 of each.
	rate int
}

var checks = []check{
	{name: "update", what: "rolling update of the service proxy's DaemonSet", do: (*checker).update, fails: anyFailure, fits: anyCluster},
	{name: "kill", what: "the service proxy is killed on every node", do: (*checker).kill, fails: anyFailure, fits: anyCluster},
	{name: "kubelet", what: "kubelet restarts on every node", do: (*checker).restartKubelets, fails: anyFailure, fits: anyCluster},
	{name: "endpoints", what: "rolling update of the servers", do: (*checker).updateServers, fails: newFailure, fits: anyCluster},
	{name: "abrupt", what: "rolling update of servers that exit at once", do: (*checker).updateServers, fails: noFailure, fits: anyCluster,
		before: (*checker).abruptServers, after: (*checker).patientServers, rate: 1000},
	{name: "second-chance", what: "the same, with --second-chance", do: (*checker).updateServers, fails: refusal, fits: ownCluster,
		before: (*checker).secondChance, after: (*checker).noSecondChance, rate: 1000},
	{name: "drain", what: "a node is drained and joins again", do: (*checker).drain, fails: newFailure, fits: anyCluster},
	{name: "views", what: "status, flows, why and doctor with --cluster", do: (*checker).views, fails: anyFailure, fits: ownCluster},
	{name: "experiment", what: "nfqproxy experiment run --on kubernetes", do: (*checker).experiment, fails: anyFailure, fits: anyCluster},
	{name: "relay", what: "hubble-relay is installed, observed and removed", do: (*checker).relay, fails: anyFailure, fits: kustomizeCluster},
	{name: "observe", what: "nfqproxy observes beside kube-proxy, and is removed", do: (*checker).observe, fails: anyFailure, fits: otherCluster},
	{name: "install", what: "nfqproxy install --cluster", do: (*checker).install, fails: anyFailure, fits: kubeProxyCluster},
	{name: "uninstall", what: "nfqproxy uninstall --cluster, after install", do: (*checker).uninstall, fails: anyFailure, fits: kubeProxyCluster},
}

func anyFailure(c *load.Counts) bool { return c.Failed > 0 || c.Broken > 0 }

// newFailure is for changes that end servers, and with them the connections that are held.
func newFailure(c *load.Counts) bool { return c.Failed > 0 }

// refusal is for servers that exit at once: connections that they have accepted end, too.
func refusal(c *load.Counts) bool { return c.Refused > 0 }

// noFailure is for a change whose failures are counted only, for comparison.
func noFailure(*load.Counts) bool { return false }

func anyCluster(*settings) bool         { return true }
func ownCluster(s *settings) bool       { return s.Proxy == "nfqproxy" }
func kustomizeCluster(s *settings) bool { return ownCluster(s) && s.Deploy == "kustomize" }
func otherCluster(s *settings) bool     { return !ownCluster(s) }
func kubeProxyCluster(s *settings) bool { return s.Proxy == "kube-proxy" }

func checkNames() string {
	var names []string
	for _, c := range checks {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ")
}

func knownChecks(names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(checks, func(c check) bool { return c.name == name }) {
			return fmt.Errorf("no check %q: want some of %s", name, checkNames())
		}
	}
	return nil
}

// checker carries checks out, in the network of the nodes.
type checker struct {
	*settings
	client kubernetes.Interface
}

func newChecker(s *settings) (*checker, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig())
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	return &checker{s, client}, err
}

// loadNamespace is that of manifests/servers.yaml.
const loadNamespace = "load"

// runChecks carries out the named checks; without names, all. A check that fails is an error.
func runChecks(ctx context.Context, s *settings, names []string) error {
	if err := knownChecks(names); err != nil {
		return err
	}
	c, err := newChecker(s)
	if err != nil {
		return err
	}
	if err := c.patientServers(ctx); err != nil {
		return err
	}
	var failed []string
	for _, check := range checks {
		if len(names) > 0 && !slices.Contains(names, check.name) || len(names) == 0 && !check.fits(s) {
			continue
		}
		counts, err := c.run(ctx, check)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		verdict := "passed"
		if err != nil {
			verdict = "FAILED"
			failed = append(failed, check.name)
		}
		fmt.Printf("%s %s (%s): %d connections, %d failed (%d refused), %d slow; %d datagrams, %d lost; %d connections held, %d broken\n",
			verdict, check.name, check.what, counts.TCP, counts.Failed, counts.Refused, counts.Slow, counts.UDP, counts.Lost, counts.Held, counts.Broken)
		if !counts.First.IsZero() {
			fmt.Printf("  disturbed from %s to %s\n", counts.First.Format(milliseconds), counts.Last.Format(milliseconds))
		}
		if err != nil {
			fmt.Printf("  %v\n", err)
		}
	}
	if err := c.kubectl(ctx, nil, "delete", "namespace", loadNamespace); err != nil {
		return err
	}
	if len(failed) > 0 {
		return fmt.Errorf("checks failed with %s: %s", s.Proxy, strings.Join(failed, ", "))
	}
	return nil
}

const milliseconds = "15:04:05.000"

// settle is the time of load before and after a change.
const settle = 3 * time.Second

// run carries out one check, with a client in a pod on each node that connects to the ClusterIP, and
// clients outside that connect to the NodePort of each node.
func (c *checker) run(ctx context.Context, what check) (sum load.Counts, err error) {
	if what.after != nil {
		defer func() { err = errors.Join(err, what.after(c, context.WithoutCancel(ctx))) }()
	}
	if what.before != nil {
		if err := what.before(c, ctx); err != nil {
			return sum, err
		}
	}
	period := 10 * time.Millisecond
	if what.rate > 0 { // of a client in a pod and one outside for each node
		period = time.Second * time.Duration(2*c.Nodes) / time.Duration(what.rate)
	}
	service, err := c.client.CoreV1().Services(loadNamespace).Get(ctx, "server", metav1.GetOptions{})
	if err != nil {
		return sum, err
	}
	target := net.JoinHostPort(service.Spec.ClusterIP, "80")
	if err := c.apply(ctx, "clients.yaml", map[string]any{"PeerImage": peerImage, "Target": target, "Period": period}); err != nil {
		return sum, err
	}
	defer func() {
		err = errors.Join(err, c.kubectl(context.WithoutCancel(ctx), nil, "--namespace="+loadNamespace, "delete", "daemonset", "client", "--wait"))
	}()
	if err := c.rolledOut(ctx, loadNamespace, "daemonset/client"); err != nil {
		return sum, err
	}
	outside, stop := context.WithCancel(ctx)
	defer stop()
	results := make(chan load.Counts, c.Nodes)
	for i := range c.Nodes {
		at := net.JoinHostPort(c.families()[0].node(i+1).String(), strconv.Itoa(int(service.Spec.Ports[0].NodePort)))
		go func() { results <- load.Load{Target: at, Period: period, Held: load.Held}.Run(outside) }()
	}
	err = errors.Join(sleep(ctx, settle), what.do(c, ctx), sleep(ctx, settle))
	stop()
	for range c.Nodes {
		sum.Add(<-results)
	}
	counted, stopErr := c.stopClients(ctx)
	sum.Add(counted)
	if err := errors.Join(err, stopErr); err != nil {
		return sum, err
	}
	switch {
	case sum.TCP == 0 || sum.UDP == 0:
		return sum, errors.New("there was no load")
	case what.fails(&sum):
		return sum, fmt.Errorf("%s", strings.Join(sum.Errors, "; "))
	}
	return sum, nil
}

// stopClients ends the load of the pods and gives the sum of their counts.
func (c *checker) stopClients(ctx context.Context) (sum load.Counts, err error) {
	pods, err := c.client.CoreV1().Pods(loadNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=client"})
	if err != nil {
		return sum, err
	}
	if len(pods.Items) != c.Nodes {
		return sum, fmt.Errorf("%d clients, want one on each of %d nodes", len(pods.Items), c.Nodes)
	}
	for _, p := range pods.Items {
		for _, s := range p.Status.ContainerStatuses {
			if s.RestartCount > 0 {
				return sum, fmt.Errorf("the client on %s was restarted: its counts are lost", p.Spec.NodeName)
			}
		}
		counts, err := stopClient(ctx, p.Status.PodIP)
		if err != nil {
			return sum, fmt.Errorf("the client on %s: %w", p.Spec.NodeName, err)
		}
		sum.Add(counts)
	}
	return sum, nil
}

func stopClient(ctx context.Context, pod string) (counts load.Counts, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(pod, "8081")+"/stop", nil)
	if err != nil {
		return counts, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return counts, err
	}
	defer response.Body.Close()
	return counts, json.NewDecoder(response.Body).Decode(&counts)
}

// rolledOut waits until the pods of a workload are those that it wants.
func (s *settings) rolledOut(ctx context.Context, namespace, what string) error {
	return s.kubectl(ctx, nil, "--namespace="+namespace, "rollout", "status", what, "--timeout=5m")
}

func (c *checker) restart(ctx context.Context, namespace, what string) error {
	if err := c.kubectl(ctx, nil, "--namespace="+namespace, "rollout", "restart", what); err != nil {
		return err
	}
	return c.rolledOut(ctx, namespace, what)
}

func (c *checker) update(ctx context.Context) error {
	return c.restart(ctx, metav1.NamespaceSystem, "daemonset/"+proxies[c.Proxy].label)
}

// patientServers are servers that go on until all nodes have removed their endpoints.
func (c *checker) patientServers(ctx context.Context) error { return c.servers(ctx, 15) }

// abruptServers are servers that exit as soon as their pods are deleted.
func (c *checker) abruptServers(ctx context.Context) error { return c.servers(ctx, 0) }

// servers deploys servers that go on for some seconds when they are to end.
func (c *checker) servers(ctx context.Context, seconds int) error {
	if err := c.apply(ctx, "servers.yaml", map[string]any{"PeerImage": peerImage, "Servers": 2 * c.Nodes, "Stop": seconds}); err != nil {
		return err
	}
	return c.rolledOut(ctx, loadNamespace, "deployment/server")
}

func (c *checker) secondChance(ctx context.Context) error {
	const flag = `[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--second-chance"}]`
	if err := c.kubectl(ctx, nil, "--namespace=kube-system", "patch", "daemonset/nfqproxy", "--type=json", "--patch="+flag); err != nil {
		return err
	}
	return errors.Join(c.rolledOut(ctx, metav1.NamespaceSystem, "daemonset/nfqproxy"), c.abruptServers(ctx))
}

func (c *checker) noSecondChance(ctx context.Context) error {
	if err := c.kubectl(ctx, nil, "--namespace=kube-system", "rollout", "undo", "daemonset/nfqproxy"); err != nil {
		return err
	}
	return errors.Join(c.rolledOut(ctx, metav1.NamespaceSystem, "daemonset/nfqproxy"), c.patientServers(ctx))
}

func (c *checker) updateServers(ctx context.Context) error {
	if err := c.restart(ctx, loadNamespace, "deployment/server"); err != nil {
		return err
	}
	return c.await(ctx, "the old servers to end", func() error { return c.onlyServers(ctx, "") })
}

// onlyServers wants all servers to run, none of them on a node, which may be empty.
func (c *checker) onlyServers(ctx context.Context, notOn string) error {
	pods, err := c.client.CoreV1().Pods(loadNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=server"})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp != nil || p.Spec.NodeName == notOn {
			return fmt.Errorf("pod %s is still on %s", p.Name, p.Spec.NodeName)
		}
	}
	return nil
}

func (c *checker) kill(ctx context.Context) error {
	before, err := c.restarts(ctx)
	if err != nil {
		return err
	}
	for i := range c.Nodes {
		if err := c.onNode(ctx, i+1, "sh", "-c", "kill -KILL $(pidof "+proxies[c.Proxy].program+")"); err != nil {
			return err
		}
	}
	return c.await(ctx, "the service proxies to be ready again", func() error {
		after, err := c.restarts(ctx)
		if err == nil && after < before+c.Nodes {
			err = fmt.Errorf("%d restarts, had been %d", after, before)
		}
		return err
	})
}

// restarts is the number of restarts of the service proxy's pods. It is an error if one is not ready.
func (c *checker) restarts(ctx context.Context) (n int, err error) {
	pods, err := c.client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=" + proxies[c.Proxy].label})
	if err != nil {
		return 0, err
	}
	for _, p := range pods.Items {
		for _, s := range p.Status.ContainerStatuses {
			if !s.Ready {
				return n, fmt.Errorf("pod %s is not ready", p.Name)
			}
			n += int(s.RestartCount)
		}
	}
	return n, nil
}

func (c *checker) restartKubelets(ctx context.Context) error {
	for i := range c.Nodes {
		if err := c.onNode(ctx, i+1, "sh", "-c", "kill $(cat "+node.KubeletPID+")"); err != nil {
			return err
		}
	}
	killed := time.Now()
	return c.await(ctx, "the kubelets to report", func() error {
		for i := range c.Nodes {
			n, err := c.client.CoreV1().Nodes().Get(ctx, nodeName(i+1), metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, condition := range n.Status.Conditions {
				if condition.Type == corev1.NodeReady && (condition.Status != corev1.ConditionTrue || condition.LastHeartbeatTime.Time.Before(killed)) {
					return fmt.Errorf("%s is %s since %s", n.Name, condition.Status, condition.LastHeartbeatTime)
				}
			}
		}
		return nil
	})
}

func (c *checker) drain(ctx context.Context) error {
	name := nodeName(c.Nodes)
	err := c.kubectl(ctx, nil, "drain", name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=5m")
	if err == nil {
		err = c.onlyServers(ctx, name)
	}
	return errors.Join(err, c.kubectl(context.WithoutCancel(ctx), nil, "uncordon", name), c.rolledOut(ctx, loadNamespace, "deployment/server"))
}

// install switches all nodes to nfqproxy, and uninstall back to kube-proxy.
func (c *checker) install(ctx context.Context) error {
	_, err := c.own(ctx, "install", "--cluster", "--image=nfqproxy:dev")
	return err
}

func (c *checker) uninstall(ctx context.Context) error {
	_, err := c.own(ctx, "uninstall", "--cluster")
	return err
}

// own runs nfqproxy.
func (c *checker) own(ctx context.Context, args ...string) (string, error) {
	cmd := exec.Command(c.Program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig())
	return output(ctx, cmd)
}

func (c *checker) await(ctx context.Context, what string, try func() error) error {
	return await(ctx, what, try, nil)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
