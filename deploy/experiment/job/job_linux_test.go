package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

const testTimeout = time.Minute

// world is a real API server with the real controllers of Jobs and of garbage, and one node: a kubelet that runs the part of a pod
// itself, and serves its log.
type world struct {
	*testing.T
	*cluster.Cluster

	mu      sync.Mutex
	logs    map[string][]byte              // by namespace/pod
	how     map[string]func(p *corev1.Pod) // what becomes of the pods of a namespace; without: they run
	refused map[string]int                 // requests for logs of a namespace that are refused at first
}

func newWorld(t *testing.T) *world {
	netnstest.Require(t)
	clustertest.Require(t)
	for _, name := range []string{"https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"} {
		t.Setenv(name, "http://192.0.2.9:1") // the API server is at a loopback address
	}
	c, err := cluster.Start(t.Context(), cluster.Config{Dir: t.TempDir(), Controllers: []string{"job-controller", "garbage-collector-controller"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	w := &world{T: t, Cluster: c, logs: make(map[string][]byte), how: make(map[string]func(*corev1.Pod)), refused: map[string]int{"whole": 2}}
	kubelet := httptest.NewTLSServer(http.HandlerFunc(w.serveLog))
	t.Cleanup(kubelet.Close)
	port := kubelet.Listener.Addr().(*net.TCPAddr).Port
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}, Status: corev1.NodeStatus{
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
	}}
	if _, err := c.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.kubelet(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return w
}

// serveLog is /containerLogs/NAMESPACE/POD/CONTAINER of a kubelet.
func (w *world) serveLog(to http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	w.mu.Lock()
	defer w.mu.Unlock()
	if path[0] != "containerLogs" || len(path) != 4 {
		http.NotFound(to, r)
		return
	}
	text, ok := w.logs[path[1]+"/"+path[2]]
	if w.refused[path[1]] > 0 {
		w.refused[path[1]]--
		ok = false
	}
	if !ok {
		http.Error(to, "not now", http.StatusInternalServerError)
		return
	}
	_, _ = to.Write(text)
}

// kubelet binds pods to the node and runs them.
func (w *world) kubelet(ctx context.Context) {
	for ctx.Err() == nil {
		pods, err := w.Client().CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			pods = new(corev1.PodList) // the API server is away
		}
		for i := range pods.Items {
			if err := w.pod(ctx, &pods.Items[i]); err != nil && ctx.Err() == nil {
				w.Logf("pod %s: %v", pods.Items[i].Name, err) // it was changed meanwhile
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (w *world) pod(ctx context.Context, p *corev1.Pod) error {
	client := w.Client().CoreV1().Pods(p.Namespace)
	switch {
	case p.DeletionTimestamp != nil:
		return client.Delete(ctx, p.Name, *metav1.NewDeleteOptions(0))
	case p.Status.Phase != corev1.PodPending:
		return nil
	case p.Spec.NodeName == "":
		return client.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: "worker"}}, metav1.CreateOptions{})
	}
	w.mu.Lock()
	how := w.how[p.Namespace]
	w.mu.Unlock()
	if how == nil {
		how = w.runPod
	}
	if how(p); p.Status.Phase == corev1.PodPending && len(p.Status.ContainerStatuses) == 0 {
		return nil
	}
	_, err := client.UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return err
}

// runPod runs what a pod is to run, with its arguments.
func (w *world) runPod(p *corev1.Pod) {
	args := p.Spec.Containers[0].Args
	index, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || !slices.Equal(args, []string{"experiment", "part", "/experiment/experiment.tar.gz", "--index=$(JOB_COMPLETION_INDEX)"}) {
		w.end(p, ExitFailed, fmt.Sprintf("arguments %q, %v\n", args, err))
		return
	}
	// The API server keeps the ConfigMap for the pod: here it is the volume.
	m, err := w.Client().CoreV1().ConfigMaps(p.Namespace).Get(w.Context(), p.Spec.Volumes[0].ConfigMap.Name, metav1.GetOptions{})
	if err != nil {
		return // it is mounted later
	}
	worker := experiment.Worker{Backend: experiment.Simulate{}, Version: "test"}
	part, err := worker.Run(w.Context(), m.BinaryData[archive], index)
	if err != nil {
		w.end(p, ExitFailed, err.Error()+"\n")
		return
	}
	text, err := part.Encode()
	if err != nil {
		w.end(p, ExitFailed, err.Error()+"\n")
		return
	}
	w.end(p, 0, "messages\n"+string(text))
}

// end ends a pod with an exit code and a log.
func (w *world) end(p *corev1.Pod, code int32, log string) {
	w.mu.Lock()
	w.logs[p.Namespace+"/"+p.Name] = []byte(log)
	w.mu.Unlock()
	p.Status.Phase = corev1.PodSucceeded
	if code != 0 {
		p.Status.Phase = corev1.PodFailed
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}}
}

// set sets what becomes of the pods of a namespace.
func (w *world) set(namespace string, how func(p *corev1.Pod)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.how[namespace] = how
}

// swept has a parameter and a script.
const swept = `apiVersion: nfqproxy.io/v1alpha1
kind: Experiment
metadata: {name: swept}
cluster:
  nodes: 1
  services: [{name: web, endpoints: 3}]
workload:
  arrivals: {process: poisson, load: 0.5}
  work: {distribution: exponential, mean: 5ms}
sweep:
- {field: workload.arrivals.load, values: [0.3, 0.6]}
duration: 2s
algorithms: [random, script:first.star]
seeds: 2
`

const first = `
def pick(candidates, flow, state):
    return 0
`

// useCase is a namespace with an experiment.
type useCase struct {
	*testing.T
	w         *world
	namespace string
	x         *experiment.Experiment
	dir       string
	options   Options
	timing    timing
	notes     []string
	onNote    func()
}

func (w *world) newCase(t *testing.T, name, text string) *useCase {
	t.Helper()
	// No pod may have any privilege.
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if _, err := w.Client().CoreV1().Namespaces().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for file, text := range map[string]string{"x.yaml": text, "first.star": first} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	x, err := experiment.Load(filepath.Join(dir, "x.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c := &useCase{T: t, w: w, namespace: name, x: x, dir: filepath.Join(dir, "results"), timing: timing{20 * time.Millisecond, testTimeout}}
	c.options = Options{
		Config: w.RESTConfig(), Namespace: name, Image: "nfqproxy:test", Version: "test", Parallel: 3, Each: 1,
		CPU: resource.MustParse("1"), Memory: resource.MustParse("64Mi"),
		Note: func(text string) {
			c.notes = append(c.notes, text)
			if c.onNote != nil {
				c.onNote()
			}
		},
	}
	return c
}

func (c *useCase) run(ctx context.Context, progress func(float64, int)) error {
	c.Helper()
	elsewhere, err := New(c.options)
	if err != nil {
		c.Fatal(err)
	}
	elsewhere.timing = c.timing
	r := experiment.Runner{Experiment: c.x, Backend: experiment.Simulate{}, Elsewhere: elsewhere, Dir: c.dir, Version: "test", Progress: progress}
	_, err = r.Run(ctx)
	return err
}

// jobs are the names of the Jobs in the namespace.
func (c *useCase) jobs() (names []string) {
	c.Helper()
	list, err := c.w.Client().BatchV1().Jobs(c.namespace).List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// finishes runs the experiment to its end: the results have the bytes of a local run, and nothing is left on the cluster.
func (c *useCase) finishes() {
	c.Helper()
	if err := c.run(c.Context(), nil); err != nil {
		c.Fatalf("%v\n%q", err, c.notes)
	}
	local := c.TempDir()
	r := experiment.Runner{Experiment: c.x, Backend: experiment.Simulate{Cells: 2}, Dir: local, Version: "test"}
	if _, err := r.Run(c.Context()); err != nil {
		c.Fatal(err)
	}
	files := 0
	err := filepath.WalkDir(local, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		files++
		name, _ := filepath.Rel(local, path)
		want, err := os.ReadFile(path)
		got, err2 := os.ReadFile(filepath.Join(c.dir, name))
		if err == nil && !bytes.Equal(got, want) {
			c.Errorf("%s is another one: %v", name, err2)
		}
		return err
	})
	if err != nil || files < 12 {
		c.Errorf("%d files: %v", files, err)
	}
	c.await("objects to be removed", func() bool {
		maps, err := c.w.Client().CoreV1().ConfigMaps(c.namespace).List(c.Context(), metav1.ListOptions{LabelSelector: Label})
		pods, err2 := c.w.Client().CoreV1().Pods(c.namespace).List(c.Context(), metav1.ListOptions{})
		if err := errors.Join(err, err2); err != nil {
			c.Fatal(err)
		}
		return len(c.jobs())+len(maps.Items)+len(pods.Items) == 0
	})
}

func (c *useCase) await(what string, is func() bool) {
	c.Helper()
	for end := time.Now().Add(testTimeout); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("waited %s for %s", testTimeout, what)
		}
	}
}

// fails runs the experiment, which fails with an error.
func (c *useCase) fails(want ...string) {
	c.Helper()
	err := c.run(c.Context(), nil)
	for _, text := range want {
		if err == nil || !strings.Contains(err.Error(), text) {
			c.Errorf("error %v, want %q", err, text)
		}
	}
}

func (c *useCase) noted(want string) {
	c.Helper()
	if !slices.ContainsFunc(c.notes, func(text string) bool { return strings.Contains(text, want) }) {
		c.Errorf("no %q in %q", want, c.notes)
	}
}

func TestJob(t *testing.T) {
	w := newWorld(t)
	t.Run("cases", func(t *testing.T) {
		for name, test := range map[string]func(*useCase){
			"whole": (*useCase).testWhole, "until": (*useCase).testUntil, "interrupted": (*useCase).testInterrupted, "away": (*useCase).testAway, "drained": (*useCase).testDrained,
			"failed": (*useCase).testFailed, "image": (*useCase).testImage, "deleted": (*useCase).testDeleted, "refused": (*useCase).testRefused,
			"rights": (*useCase).testRights, "idle": (*useCase).testIdle, "suspended": (*useCase).testSuspended,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				text := swept
				if name == "until" {
					text = strings.Replace(swept, "seeds: 2\n", "seeds: 3\nuntil: {metric: response_mean, half: 5%, max: 6}\n", 1)
				}
				test(w.newCase(t, name, text))
			})
		}
	})
	t.Run("outage", func(t *testing.T) { w.newCase(t, "outage", swept).testOutage() })
}

// testOutage: the API server goes away, and the command ends. The Job continues when it is back, and so does the command.
func (c *useCase) testOutage() {
	c.timing.patience = 200 * time.Millisecond
	c.w.set(c.namespace, func(p *corev1.Pod) {
		if p.Annotations[batchv1.JobCompletionIndexAnnotation] < "2" {
			c.w.runPod(p)
		}
	})
	err := c.run(c.Context(), func(done float64, _ int) {
		if done >= 2 {
			if err := c.w.APIServer.Kill(); err != nil {
				c.Error(err)
			}
		}
	})
	if err == nil || !strings.HasPrefix(err.Error(), "the Job outage/swept-") || !strings.HasSuffix(err.Error(), "connection refused; the same command continues") {
		c.Errorf("error %v", err)
	}
	if err := c.w.APIServer.Start(c.Context()); err != nil {
		c.Fatal(err)
	}
	c.w.set(c.namespace, nil)
	c.timing.patience = testTimeout
	c.finishes()
	c.noted("continues: 2 of 8 pods are done")
}

// testWhole: a run with several runs in a pod, of which the last has fewer. A log that cannot be read is read again.
func (c *useCase) testWhole() {
	c.options.Each = 3
	c.finishes()
	c.noted("8 runs in 3 pods, 3 at a time")
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if n := c.w.refused[c.namespace]; n != 0 {
		c.Errorf("logs were not refused: %d", n)
	}
}

// testUntil: further seeds are in further Jobs.
func (c *useCase) testUntil() {
	c.finishes()
	if len(c.notes) < 2 {
		c.Errorf("notes %q, want several Jobs", c.notes)
	}
}

// testInterrupted: the Job goes on, and the next run continues with it.
func (c *useCase) testInterrupted() {
	var held sync.Map
	c.w.set(c.namespace, func(p *corev1.Pod) {
		if i, _ := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation]); i >= 2 {
			held.Store(i, true)
			return
		}
		c.w.runPod(p)
	})
	ctx, cancel := context.WithCancel(c.Context())
	err := c.run(ctx, func(done float64, _ int) {
		if done >= 2 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || len(c.jobs()) != 1 {
		c.Fatalf("%v, Jobs %q", err, c.jobs())
	}
	c.noted(" keeps running; the same command continues with it")
	if cells, _ := filepath.Glob(filepath.Join(c.dir, "cells", "*[0-9].json")); len(cells) != 2 {
		c.Errorf("%d runs are done, want 2", len(cells))
	}
	c.w.set(c.namespace, nil)
	c.options.Memory = resource.MustParse("1Gi")
	c.finishes()
	c.noted("continues: 2 of 8 pods are done")
	c.noted("it keeps its image, resources and volume; to start over with others: kubectl --namespace interrupted delete job swept-")
	if n := len(slices.DeleteFunc(c.notes, func(text string) bool { return !strings.Contains(text, "at a time") })); n != 1 {
		c.Errorf("%d Jobs were made", n)
	}
}

// testAway: the Job ends while nobody waits. Results whose pods are gone are made again, and only they.
func (c *useCase) testAway() {
	ctx, cancel := context.WithCancel(c.Context())
	c.onNote = cancel // when the Job is there
	if err := c.run(ctx, nil); !errors.Is(err, context.Canceled) {
		c.Fatal(err)
	}
	c.onNote = nil
	name := c.jobs()[0]
	c.await("the Job to end", func() bool {
		j, err := c.w.Client().BatchV1().Jobs(c.namespace).Get(c.Context(), name, metav1.GetOptions{})
		if err != nil {
			c.Fatal(err)
		}
		return isFinished(j)
	})
	pods, err := c.w.Client().CoreV1().Pods(c.namespace).List(c.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 8 {
		c.Fatalf("%v, %d pods", err, len(pods.Items))
	}
	// A node is removed with its pods, and the log of another pod was cut off.
	for _, p := range pods.Items[:3] {
		if err := c.w.Client().CoreV1().Pods(c.namespace).Delete(c.Context(), p.Name, *metav1.NewDeleteOptions(0)); err != nil {
			c.Fatal(err)
		}
	}
	c.w.mu.Lock()
	cut := c.namespace + "/" + pods.Items[3].Name
	c.w.logs[cut] = c.w.logs[cut][:500]
	c.w.mu.Unlock()
	c.finishes()
	c.noted("the log has no complete part")
	c.noted("4 runs in 4 pods")
}

// testDrained: pods that have ended are deleted before their logs are read. Their runs are in a further Job.
func (c *useCase) testDrained() {
	client := c.w.Client().CoreV1().Pods(c.namespace)
	drained := false
	c.w.set(c.namespace, func(p *corev1.Pod) {
		index := p.Annotations[batchv1.JobCompletionIndexAnnotation]
		if c.w.runPod(p); drained || p.Status.Phase != corev1.PodSucceeded || index != "3" {
			return
		}
		// The node's kubelet has ended, the Job counts the pod, and it is gone.
		c.w.mu.Lock()
		delete(c.w.logs, p.Namespace+"/"+p.Name)
		c.w.mu.Unlock()
		if _, err := client.UpdateStatus(c.Context(), p, metav1.UpdateOptions{}); err != nil {
			return
		}
		drained = true
		if err := client.Delete(c.Context(), p.Name, *metav1.NewDeleteOptions(0)); err != nil {
			c.Error(err)
		}
	})
	c.finishes()
	c.noted("the results of 1 pod are gone with their pods: these runs are run again")
	c.noted("1 run in 1 pod")
}

// testFailed: a run that fails is named with the end of its log. The other runs are there, and the same command makes what is missing.
func (c *useCase) testFailed() {
	c.w.set(c.namespace, func(p *corev1.Pod) {
		if p.Annotations[batchv1.JobCompletionIndexAnnotation] == "6" {
			c.w.end(p, ExitFailed, "one line\nnfqproxy: it does not work\n")
			return
		}
		c.w.runPod(p)
	})
	c.fails("has ended (FailedIndexes) without the results of 1 of 8 pods", "random at load=0.6 with seed 2 (index 6) failed in pod swept-", " on node worker: exit code 3\n  one line\n  nfqproxy: it does not work")
	c.noted("(index 6) failed in pod")
	if cells, _ := filepath.Glob(filepath.Join(c.dir, "cells", "*[0-9].json")); len(cells) != 7 {
		c.Errorf("%d runs are done, want 7", len(cells))
	}
	if _, err := os.Stat(filepath.Join(c.dir, experiment.FileRuns)); !errors.Is(err, os.ErrNotExist) {
		c.Errorf("there are results of some runs: %v", err)
	}
	c.w.set(c.namespace, nil)
	c.finishes()
	c.noted("1 run in 1 pod")
}

// testImage: an image that no node can pull is an error, and the Job is gone.
func (c *useCase) testImage() {
	c.timing.patience = 200 * time.Millisecond
	c.w.set(c.namespace, func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container, Image: "nfqproxy:test", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off"}}}}
	})
	const want = "node worker cannot pull the image nfqproxy:test (ImagePullBackOff: Back-off): give one with --image"
	c.fails("no pod of Job image/swept-", "can start, so it was deleted: "+want)
	c.noted(want)
	c.w.set(c.namespace, nil)
	c.timing.patience = testTimeout
	c.finishes()
}

// testIdle: a Job whose pods are refused says why, and continues once they are not.
func (c *useCase) testIdle() {
	ranges := c.w.Client().CoreV1().LimitRanges(c.namespace)
	small := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "small"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Mi")}},
	}}}
	if _, err := ranges.Create(c.Context(), small, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	c.timing.patience = time.Second // an explanation comes after a sixth of it
	c.onNote = func() {
		if strings.Contains(c.notes[len(c.notes)-1], "has no pods") {
			if err := ranges.Delete(c.Context(), "small", metav1.DeleteOptions{}); err != nil {
				c.Error(err)
			}
		}
	}
	c.finishes()
	c.noted(" has no pods: FailedCreate: ")
}

// testSuspended: a Job that somebody suspends waits, and continues when it is resumed.
func (c *useCase) testSuspended() {
	suspend := func(is bool) {
		patch := fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, is)
		if _, err := c.w.Client().BatchV1().Jobs(c.namespace).Patch(c.Context(), c.jobs()[0], types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			c.Error(err)
		}
	}
	c.w.set(c.namespace, func(*corev1.Pod) {})
	c.onNote = func() {
		switch {
		case len(c.notes) == 1:
			suspend(true)
		case strings.HasSuffix(c.notes[len(c.notes)-1], " is suspended"):
			c.w.set(c.namespace, nil)
			suspend(false)
		}
	}
	c.finishes()
	c.noted(" is suspended")
}

// testDeleted: somebody deletes the Job.
func (c *useCase) testDeleted() {
	c.w.set(c.namespace, func(*corev1.Pod) {})
	c.onNote = func() {
		if err := c.w.Client().BatchV1().Jobs(c.namespace).Delete(c.Context(), c.jobs()[0], metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}); err != nil {
			c.Error(err)
		}
	}
	c.fails("was deleted: the same command creates a new one")
}

// testRefused: what cannot run, before there is anything on the cluster.
func (c *useCase) testRefused() {
	c.options.Volume = "results"
	c.fails(`volume: persistentvolumeclaims "results" not found`)
	c.options.Volume = ""
	c.options.Config = &rest.Config{Host: "https://127.0.0.1:1"}
	c.fails("API server https://127.0.0.1:1: check permissions: ", "connection refused")
	c.options.Config = c.w.RESTConfig()
	// Another text is another experiment.
	c.finishes()
	changed, err := experiment.Parse("x.yaml", filepath.Dir(c.dir), append(bytes.Clone(c.x.File), "# changed\n"...))
	if err != nil {
		c.Fatal(err)
	}
	c.x = changed
	c.fails("has the results of another experiment, or of another version of this one")
	if names := c.jobs(); len(names) > 0 {
		c.Errorf("there are Jobs: %q", names)
	}
}

// testRights: a user has the Role of the page, and without it all missing rights are named.
func (c *useCase) testRights() {
	client := c.w.Client()
	path, err := c.w.UserKubeconfig("jane", nil, netip.Addr{})
	if err != nil {
		c.Fatal(err)
	}
	if c.options.Config, err = clientcmd.BuildConfigFromFlags("", path); err != nil {
		c.Fatal(err)
	}
	c.fails("permissions are missing in namespace rights: create jobs, delete jobs, get jobs, list jobs, create configmaps, get configmaps, list pods, get pods/log (")
	page, err := os.ReadFile("../../../docs/how-to/run-on-a-cluster.md")
	if err != nil {
		c.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	role := new(rbacv1.Role)
	if err := yaml.UnmarshalStrict([]byte(text), role); err != nil || len(role.Rules) < 4 {
		c.Fatalf("%v in the page's Role:\n%s", err, text)
	}
	role.Namespace = ""
	_, err1 := client.RbacV1().Roles(c.namespace).Create(c.Context(), role, metav1.CreateOptions{})
	_, err2 := client.RbacV1().RoleBindings(c.namespace).Create(c.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "jane"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "jane"}},
	}, metav1.CreateOptions{})
	if err := errors.Join(err1, err2); err != nil {
		c.Fatal(err)
	}
	// The authorizer learns of roles by watching.
	c.await("the rights", func() bool {
		cluster, err := New(c.options)
		return err == nil && cluster.prepare(c.Context()) == nil
	})
	c.finishes()
}

// TestObjects: objects name what cannot be in them, and the label is that of the experiment and the version.
func TestObjects(t *testing.T) {
	t.Parallel()
	make := func(x *experiment.Experiment, version string) (*corev1.ConfigMap, *batchv1.Job, error) {
		c, err := New(Options{Namespace: "lab", Image: "i", Version: version, Parallel: 3, Each: 2, CPU: resource.MustParse("1"), Memory: resource.MustParse("1Gi")})
		if err != nil {
			t.Fatal(err)
		}
		return c.Objects(x, x.Cells())
	}
	load := func(name string) *experiment.Experiment {
		x, err := experiment.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	one, job, err := make(load("heavy-tail"), "v1")
	if err != nil {
		t.Fatal(err)
	}
	again, _, err1 := make(load("heavy-tail"), "v1")
	newer, _, err2 := make(load("heavy-tail"), "v2")
	other, _, err3 := make(load("herding"), "v1")
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	if a := one.Labels[Label]; a != again.Labels[Label] || a == newer.Labels[Label] || a == other.Labels[Label] || a != job.Spec.Template.Labels[Label] {
		t.Errorf("labels %q, %q, %q, %q", a, again.Labels, newer.Labels, other.Labels)
	}
	if one.Name == again.Name || one.Name != job.Name || *job.Spec.Completions != 15 || *job.Spec.Parallelism != 3 {
		t.Errorf("names %q, %q, %q, %d parts", one.Name, again.Name, job.Name, *job.Spec.Completions)
	}
	if _, err := labels.Parse(Label + "=" + one.Labels[Label]); err != nil {
		t.Error(err)
	}
	dir := t.TempDir()
	var times strings.Builder
	for i := uint64(1); times.Len() < 4<<20; i++ {
		fmt.Fprintf(&times, "%dns\n", i*0x9e3779b97f4a7c15>>20)
	}
	text := strings.Replace(strings.Replace(swept, "distribution: exponential, mean: 5ms", "distribution: empirical, file: times", 1), ", script:first.star", "", 1)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "times"), []byte(times.String()), 0o600), os.WriteFile(filepath.Join(dir, "x.yaml"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := make(load(filepath.Join(dir, "x.yaml")), "v1"); err == nil || !strings.Contains(err.Error(), "swept: the experiment's files have ") || !strings.Contains(err.Error(), "but a ConfigMap holds at most 1044480") {
		t.Error(err)
	}
}

func TestIndexes(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{"": "[]", "3": "[3]", "0,2-4,7": "[0 2 3 4 7]", "x,5": "[5]", "1-999999999": "[]"} {
		var got []int
		for i := range maxParts {
			if indexes(list)[i] {
				got = append(got, i)
			}
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%q: %v, want %s", list, got, want)
		}
	}
}
