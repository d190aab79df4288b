package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/e2e/node"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

//go:embed manifests
var manifests embed.FS

// settings are those of a cluster, also for commands that find it running.
type settings struct {
	Dir      string `json:"-"` // of the cluster's files
	Group    string // control group of all nodes
	Program  string // nfqproxy, with nfqproxyd beside it
	Image    string // archive of nfqproxy's image; empty: one with Program is made
	Proxy    string // see proxies
	Deploy   string // "kustomize" or "helm"
	Observe  bool   // nfqproxy observes during the tests; Proxy is another one
	Nodes    int
	IPv6Only bool
	// APIServer is the URL by which nodes and pods reach it.
	APIServer string
}

// Files in settings.Dir.
const (
	settingsFile  = "cluster.json"
	controlSocket = "socket"
	imagesFile    = "images.tar"
)

func (s *settings) path(names ...string) string {
	return filepath.Join(append([]string{s.Dir}, names...)...)
}

// kubeconfig has all rights, for programs in the network of the nodes.
func (s *settings) kubeconfig() string { return s.path("control", "admin.kubeconfig") }

func (s *settings) families() []family {
	if s.IPv6Only {
		return []family{ipv6}
	}
	return []family{ipv4, ipv6}
}

func (s *settings) podCIDRs() string {
	var all []string
	for _, f := range s.families() {
		all = append(all, f.pods.String())
	}
	return strings.Join(all, ",")
}

// running is a cluster in the namespaces of this process.
type running struct {
	*settings
	lan     *lan
	control *cluster.Cluster
	socket  net.Listener
	nodes   []*netns.Namespace
	ended   chan error // nodes that ended
	closing context.CancelFunc
}

// start starts the cluster up to the nodes being ready. It has no service proxy then.
func start(ctx context.Context, s *settings) (_ *running, err error) {
	r := &running{settings: s, ended: make(chan error, maxNodes)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if err := os.MkdirAll(s.path("control"), 0o755); err != nil {
		return nil, err
	}
	images := make(chan error, 1)
	go func() { images <- s.writeImages() }()
	current, err := netns.Current("lan")
	if err != nil {
		return nil, err
	}
	if r.lan, err = newLAN(current, s.families()); err != nil {
		return nil, err
	}
	if err := r.startControl(ctx); err != nil {
		return nil, err
	}
	if err := <-images; err != nil {
		return nil, fmt.Errorf("make images: %w", err)
	}
	if r.socket, err = node.Listen(s.path(controlSocket)); err != nil {
		return nil, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(s.path(settingsFile), text, 0o644); err != nil {
		return nil, err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for i := range s.Nodes {
		ns, err := r.lan.attach(i + 1)
		if err != nil {
			return nil, err
		}
		r.nodes = append(r.nodes, ns)
		group.Go(func() error { return r.startNode(groupCtx, ns, i+1) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	background, cancel := context.WithCancel(context.Background())
	r.closing = cancel
	go newBalancer(r.control.Client(), r.lan, s.Nodes).run(background, logError)
	return r, s.apply(ctx, "coredns.yaml", nil)
}

func (r *running) startControl(ctx context.Context) (err error) {
	var addresses []netip.Addr
	for _, f := range r.families() {
		addresses = append(addresses, f.control.Addr())
	}
	logf("starting the control plane")
	if r.control, err = cluster.Start(ctx, cluster.Config{
		Dir:          r.path("control"),
		Addresses:    addresses,
		ServiceCIDRs: r.lan.services(),
		Controllers:  []string{"*"},
		Kubelets:     true,
	}); err != nil {
		return err
	}
	r.APIServer = r.control.URL(addresses[0])
	return nil
}

// startNode starts a node, gives it the images, and waits until it is ready.
func (r *running) startNode(ctx context.Context, ns *netns.Namespace, i int) error {
	name := nodeName(i)
	if err := r.lan.route(ns, i, r.settings.Nodes); err != nil {
		return err
	}
	if err := r.createNode(ctx, i); err != nil {
		return err
	}
	config, err := r.nodeConfig(i)
	if err != nil {
		return err
	}
	process, err := config.Start(ns)
	if err != nil {
		return err
	}
	go func() {
		state, err := process.Wait()
		r.ended <- errors.Join(fmt.Errorf("%s ended: %v; see %s", name, state, config.Dir), err)
	}()
	if err := r.await(ctx, name+" to run containerd", func() error { return r.onNode(ctx, i, "ctr", "version") }); err != nil {
		return err
	}
	for _, file := range config.Images {
		if err := r.onNode(ctx, i, "ctr", "--namespace=k8s.io", "images", "import", node.ImagesDir+"/"+filepath.Base(file)); err != nil {
			return err
		}
	}
	return r.await(ctx, name+" to be ready", func() error {
		n, err := r.control.Client().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%s is not ready", name)
	})
}

// createNode makes the Node object, so that its ranges of pods are known in advance. The kubelet
// completes it.
func (r *running) createNode(ctx context.Context, i int) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: nodeName(i),
		Labels: map[string]string{
			corev1.LabelTopologyZone:   fmt.Sprintf("zone%d", (i-1)%3+1),
			corev1.LabelTopologyRegion: "here",
			corev1.LabelOSStable:       "linux",
		},
	}}
	// A cluster with kube-proxy has no such label at first.
	if label := proxies[r.Proxy].label; label != "kube-proxy" {
		n.Labels[proxyLabel] = label
	}
	for _, f := range r.families() {
		n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, f.podCIDR(i).String())
	}
	n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	_, err := r.control.Client().CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	return err
}

func (r *running) nodeConfig(i int) (*node.Config, error) {
	name := nodeName(i)
	c := &node.Config{
		Name:       name,
		Dir:        r.path(name),
		Group:      r.Group + "/" + name,
		ClusterDNS: r.families()[0].clusterDNS,
		Pause:      pauseImage,
		Authority:  r.control.Authority(),
		Images:     []string{r.path(imagesFile)},
	}
	if r.Image != "" {
		c.Images = append(c.Images, r.Image)
	}
	for _, f := range r.families() {
		c.Addresses = append(c.Addresses, f.node(i))
		c.PodCIDRs = append(c.PodCIDRs, f.podCIDR(i))
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, err
	}
	var err error
	if c.Kubeconfig, err = r.control.UserKubeconfig("system:node:"+name, []string{"system:nodes"}, r.families()[0].control.Addr()); err != nil {
		return nil, err
	}
	c.Programs, err = programs(cluster.Kubelet)
	return c, err
}

// onNode runs a program on a node. The error includes its output.
func (s *settings) onNode(ctx context.Context, i int, program string, args ...string) error {
	cmd, err := node.Command(s.path(nodeName(i), node.Socket), "", program, args...)
	if err != nil {
		return err
	}
	_, err = output(ctx, cmd)
	return err
}

// kubectl runs kubectl with an input.
func (s *settings) kubectl(ctx context.Context, input []byte, args ...string) error {
	path, err := cluster.Binary(cluster.Kubectl)
	if err != nil {
		return err
	}
	cmd := exec.Command(path, append([]string{"--kubeconfig=" + s.kubeconfig()}, args...)...)
	cmd.Stdin = bytes.NewReader(input)
	_, err = output(ctx, cmd)
	return err
}

// output runs a command until ctx ends it, and returns its output and messages.
func output(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), errors.Join(err, context.Cause(ctx)), &out)
	}
	return out.String(), nil
}

// apply applies a manifest of this program, in which values are set.
func (s *settings) apply(ctx context.Context, name string, more map[string]any) error {
	values := map[string]any{
		"CoreDNSImage":   coreDNSImage,
		"KubeProxyImage": kubeProxyImage,
		"ClusterDNS":     s.families()[0].clusterDNS,
		"PodCIDRs":       s.podCIDRs(),
		"APIServer":      s.APIServer,
	}
	maps.Copy(values, more)
	t, err := template.New(name).Option("missingkey=error").ParseFS(manifests, "manifests/"+name)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, values); err != nil {
		return err
	}
	return s.kubectl(ctx, text.Bytes(), "apply", "-f", "-")
}

// awaitTimeout bounds await: this machine may be busy.
const awaitTimeout = 5 * time.Minute

func (r *running) await(ctx context.Context, what string, try func() error) error {
	return await(ctx, what, try, r.ended)
}

// await waits until something is no error any more. An error of ended ends it.
func await(ctx context.Context, what string, try func() error, ended <-chan error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, awaitTimeout, fmt.Errorf("not within %s", awaitTimeout))
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %w", what, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// close ends all processes. Those of the nodes end with their first one, which ends with its
// network namespace.
func (r *running) close() error {
	if r.closing != nil {
		r.closing()
	}
	var errs []error
	for _, ns := range r.nodes {
		errs = append(errs, ns.Close())
	}
	if r.control != nil {
		errs = append(errs, r.control.Close())
	}
	if r.socket != nil {
		errs = append(errs, r.socket.Close())
	}
	return errors.Join(errs...)
}

func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

func logError(err error) { logf("%v", err) }
