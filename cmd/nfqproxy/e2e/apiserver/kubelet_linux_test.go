package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	controlplane "github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

// kubelets run the pods of kube-system on the nodes of a site: the real kube-proxy and the nfqproxy command, each in
// its node's namespace. They bind pods of DaemonSets to their nodes as the scheduler does, start, probe, restart and
// end processes, and write the status of pods. A container's mounts are directories of the test, whose paths
// replace those in its arguments.
type kubelets struct {
	*testing.T
	*site
	mode  string
	nodes map[string]*siteNode
	dirs  map[string]string // of the nodes, for their pods
	// deaf are the nodes whose probes do not reach their pods.
	deaf sync.Map

	mu      sync.Mutex
	running map[types.UID]*kubeletPod
	all     sync.WaitGroup
}

// kubeletPod is a pod with its process.
type kubeletPod struct {
	*kubelets
	*corev1.Pod
	node     *siteNode
	end      chan struct{} // closed when the pod is to end
	restarts int32
	log      syncBuffer
	status   string // as it was last written
}

// kubeletPeriod is the time between two looks at pods and probes.
const kubeletPeriod = 50 * time.Millisecond

// startKubelets runs until the test ends.
func startKubelets(t *testing.T, s *site, mode string, nodes []*siteNode) *kubelets {
	k := &kubelets{T: t, site: s, mode: mode, nodes: make(map[string]*siteNode), dirs: make(map[string]string), running: make(map[types.UID]*kubeletPod)}
	for _, n := range nodes {
		dir, err := os.MkdirTemp("", "nfqproxy") // shorter than the test's: a socket's path is limited
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		k.nodes[n.name], k.dirs[n.name] = n, dir
		k.forward(n)
	}
	// The processes end before their namespaces: cleanups come in reverse order.
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		k.all.Wait()
	})
	k.all.Go(func() {
		for ctx.Err() == nil {
			k.look(ctx)
			pause(ctx)
		}
	})
	return k
}

// forward forwards ports of the node's pods, as kubectl port-forward requests it.
func (k *kubelets) forward(n *siteNode) {
	k.Helper()
	address := "198.51.100." + hostPart(n)
	e2etest.StartDaemon(k, n.ns, exec.Command(clustertest.RequireProgram(k, controlplane.PortForward), address+":10250"))
	patch := []byte(`{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}}}}`)
	if _, err := k.Client().CoreV1().Nodes().Patch(k.Context(), n.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		k.Fatal(err)
	}
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(kubeletPeriod):
	}
}

// look starts and ends pods as their objects have it.
func (k *kubelets) look(ctx context.Context) {
	list, err := k.Client().CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{})
	if err != nil {
		return // the next time
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	there := make(map[types.UID]bool)
	for i := range list.Items {
		p := &list.Items[i]
		there[p.UID] = true
		known := k.running[p.UID]
		switch node := k.nodes[p.Spec.NodeName]; {
		case p.Spec.NodeName == "":
			k.bind(ctx, p)
		case known != nil && p.DeletionTimestamp != nil:
			known.stop()
		case known == nil && node != nil && p.DeletionTimestamp == nil:
			pod := &kubeletPod{kubelets: k, Pod: p, node: node, end: make(chan struct{})}
			k.running[p.UID] = pod
			k.all.Go(func() {
				pod.run(ctx)
				if k.Failed() {
					k.Logf("%s on %s:\n%s", p.Name, pod.node.name, pod.log.String())
				}
			})
		case known == nil && p.DeletionTimestamp != nil:
			k.forget(p)
		}
	}
	for uid, pod := range k.running {
		if !there[uid] {
			pod.stop()
			delete(k.running, uid)
		}
	}
}

func (p *kubeletPod) stop() {
	select {
	case <-p.end:
	default:
		close(p.end)
	}
}

// bind gives a pod of a DaemonSet its node.
func (k *kubelets) bind(ctx context.Context, p *corev1.Pod) {
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil {
		k.Errorf("pod %s is of no DaemonSet and has no node", p.Name)
		return
	}
	name := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
	_ = k.Client().CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: name},
	}, metav1.CreateOptions{}) // the next time
}

// forget confirms the end of a pod.
func (k *kubelets) forget(p *corev1.Pod) {
	options := metav1.NewDeleteOptions(0)
	options.Preconditions = metav1.NewUIDPreconditions(string(p.UID))
	_ = k.Client().CoreV1().Pods(p.Namespace).Delete(context.Background(), p.Name, *options)
}

// run runs the pod's process until the pod ends, and starts it again when it exits.
func (p *kubeletPod) run(ctx context.Context) {
	for {
		code, err := p.live(ctx)
		if err != nil {
			p.report(corev1.PodPending, false, nil, err.Error())
		}
		ended := p.isEnding(ctx)
		if err == nil && !ended && p.Spec.RestartPolicy == corev1.RestartPolicyNever {
			phase := corev1.PodSucceeded
			if code != 0 {
				phase = corev1.PodFailed
			}
			p.report(phase, false, &code, p.log.String())
			<-anyOf(ctx.Done(), p.end)
			ended = true
		}
		if ended {
			p.forget(p.Pod)
			return
		}
		if err == nil {
			p.restarts++
			p.report(corev1.PodRunning, false, &code, p.log.String())
		}
		pause(ctx)
	}
}

func anyOf(a, b <-chan struct{}) <-chan struct{} {
	either := make(chan struct{})
	go func() {
		defer close(either)
		select {
		case <-a:
		case <-b:
		}
	}()
	return either
}

func (p *kubeletPod) isEnding(ctx context.Context) bool {
	select {
	case <-p.end:
		return true
	default:
		return ctx.Err() != nil
	}
}

// live runs the process once, and returns its exit code.
func (p *kubeletPod) live(ctx context.Context) (code int32, err error) {
	cmd, err := p.command(ctx)
	if err != nil {
		return 0, err
	}
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.node.ns.Start(cmd); err != nil {
		return 0, err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	for {
		select {
		case <-exited:
			return int32(cmd.ProcessState.ExitCode()), nil
		case <-p.end:
			_ = cmd.Process.Signal(syscall.SIGTERM)
			select {
			case <-exited:
			case <-time.After(e2etest.Timeout):
				p.Errorf("pod %s does not end", p.Name)
				_ = cmd.Process.Kill()
				<-exited
			}
			return 0, nil
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			<-exited
			return 0, nil
		case <-time.After(kubeletPeriod):
			p.report(corev1.PodRunning, p.probe(ctx), nil, "")
		}
	}
}

// probe is the readiness probe. A container without one is ready when it runs.
func (p *kubeletPod) probe(ctx context.Context) bool {
	probe := p.Spec.Containers[0].ReadinessProbe
	if probe == nil {
		return true
	}
	if _, deaf := p.deaf.Load(p.node.name); deaf {
		return false
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+probe.HTTPGet.Port.String()+probe.HTTPGet.Path, nil)
	if err != nil {
		return false
	}
	response, err := e2etest.HTTPClient(p.node.ns).Do(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

// report writes the status of the pod, if it has changed.
func (p *kubeletPod) report(phase corev1.PodPhase, ready bool, exit *int32, message string) {
	text := fmt.Sprint(phase, ready, exit != nil, p.restarts)
	if text == p.status || p.isEnding(context.Background()) {
		return
	}
	is := corev1.ConditionFalse
	if ready {
		is = corev1.ConditionTrue
	}
	container := corev1.ContainerStatus{Name: p.Spec.Containers[0].Name, Ready: ready, RestartCount: p.restarts}
	switch {
	case exit != nil && phase == corev1.PodRunning:
		container.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: *exit, Message: message}
		container.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
	case exit != nil:
		container.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: *exit, Message: message}
	case phase == corev1.PodRunning:
		container.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.Now()}
	default:
		container.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating", Message: message}
	}
	object := p.DeepCopy()
	object.ResourceVersion = "" // what others have changed is no obstacle
	object.Status = corev1.PodStatus{
		Phase: phase, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: is, LastTransitionTime: metav1.Now()}},
		ContainerStatuses: []corev1.ContainerStatus{container},
	}
	_, err := p.Client().CoreV1().Pods(p.Namespace).UpdateStatus(context.Background(), object, metav1.UpdateOptions{})
	switch {
	case err == nil:
		p.status = text
	case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
		p.Logf("status of pod %s: %v", p.Name, err)
	}
}

// command is the process of the pod.
func (p *kubeletPod) command(ctx context.Context) (*exec.Cmd, error) {
	c := p.Spec.Containers[0]
	if c.Name == "kube-proxy" {
		kubeconfig, err := p.KubeconfigFor(ctx, "kube-system", "kube-proxy", serverAddress)
		if err != nil {
			return nil, err
		}
		return controlplane.KubeProxyCommand(kubeconfig, p.node.name, p.mode, "--cluster-cidr=10.244.0.0/16")
	}
	args := slices.Clone(c.Args)
	mounts, err := p.mounts(ctx)
	if err != nil {
		return nil, err
	}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$(NODE_NAME)", p.node.name)
		for path, dir := range mounts {
			args[i] = strings.ReplaceAll(args[i], path, dir)
		}
	}
	if slices.Equal(c.Command, []string{"/nfqproxyd"}) {
		// On a busy machine a daemon may not run for a second.
		args = append(args, "--queues=1", "--queue-timeout=1m")
		if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--flow-api=") }) {
			args = append(args, "--flow-api=unix:"+mounts["/run/nfqproxy"]+"/flows.sock")
		}
		return e2etest.DaemonCommand(args...), nil
	}
	return e2etest.Command(args...), nil
}

// mounts are the pod's directories, by their paths in the container: the ConfigMap's files, with a kubeconfig of the
// pod's account, and directories of the node.
func (p *kubeletPod) mounts(ctx context.Context) (map[string]string, error) {
	mounts := make(map[string]string)
	for _, m := range p.Spec.Containers[0].VolumeMounts {
		i := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		switch v := p.Spec.Volumes[i]; {
		case v.ConfigMap != nil:
			dir := p.TempDir()
			mounts[m.MountPath] = dir
			config, err := p.Client().CoreV1().ConfigMaps(p.Namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			kubeconfig, err := p.KubeconfigFor(ctx, p.Namespace, p.Spec.ServiceAccountName, serverAddress)
			if err != nil {
				return nil, err
			}
			text := strings.ReplaceAll(config.Data["config.conf"], m.MountPath, dir)
			if err := errors.Join(os.WriteFile(filepath.Join(dir, "config.conf"), []byte(text), 0o600), os.Rename(kubeconfig, filepath.Join(dir, "kubeconfig.conf"))); err != nil {
				return nil, err
			}
		case v.HostPath != nil && strings.HasSuffix(m.MountPath, "/nfqproxy"):
			dir := filepath.Join(p.dirs[p.node.name], filepath.Base(filepath.Dir(m.MountPath)))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, err
			}
			mounts[m.MountPath] = dir
		}
	}
	return mounts, nil
}

// syncBuffer is a buffer for the output of a process.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
