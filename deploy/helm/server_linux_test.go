package helm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// podMonitors is Prometheus Operator's resource, without its schema.
const podMonitors = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: PodMonitor, listKind: PodMonitorList, plural: podmonitors, singular: podmonitor}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
`

// prometheusRules is the same for alert rules.
var prometheusRules = strings.NewReplacer("podmonitor", "prometheusrule", "PodMonitor", "PrometheusRule").Replace(podMonitors)

// server is a cluster without nodes.
type server struct {
	*testing.T
	*cluster.Cluster
	kubectl string
}

func newServer(t *testing.T) server {
	netnstest.Require(t)
	clustertest.Require(t)
	clustertest.RequireProgram(t, cluster.Helm)
	c, err := cluster.Start(t.Context(), cluster.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	t.Setenv("KUBECONFIG", c.Kubeconfig())
	return server{t, c, clustertest.RequireProgram(t, cluster.Kubectl)}
}

// create makes the objects of a stream. Warnings of the server are errors.
func (s server) create(stream string, flags ...string) (lines string) {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), s.kubectl, append([]string{"create", "--validate=strict", "-f", "-"}, flags...)...)
	cmd.Env = append(os.Environ(), "HOME="+s.TempDir())
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stream), &out, &errs
	if err := cmd.Run(); err != nil || errs.Len() > 0 {
		s.Errorf("kubectl create: %v\n%s", err, &errs)
	}
	return out.String()
}

// TestServerTakesManifests: whatever values there are, the API server takes the objects without a
// complaint, and so it does the pods that the DaemonSet makes.
func TestServerTakesManifests(t *testing.T) {
	s := newServer(t)
	s.create(podMonitors)
	s.create(prometheusRules)
	if out, err := exec.CommandContext(t.Context(), s.kubectl, "wait", "--for=condition=Established", "crd/podmonitors.monitoring.coreos.com", "crd/prometheusrules.monitoring.coreos.com").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, sets := valueSets(t)
	documents := make(map[string]bool) // most are the same whatever the values are
	for _, set := range append(sets, valueSet{name: "required"}) {
		for name, text := range render(t, required, set.values) {
			for document := range strings.SplitSeq(text, "---\n") {
				if documents[document] {
					continue
				}
				documents[document] = true
				if name == "daemonset.yaml" {
					s.takesPod(set.name, document)
				}
			}
		}
	}
	out := s.create(strings.Join(slices.Collect(maps.Keys(documents)), "---\n"), "--dry-run=server")
	if strings.Count(out, " created (server dry run)\n") != len(documents) {
		t.Errorf("want %d objects:\n%s", len(documents), out)
	}
}

// takesPod checks that the server takes the pods of a DaemonSet.
func (s server) takesPod(values, text string) {
	s.Helper()
	daemon := new(appsv1.DaemonSet)
	if err := yaml.UnmarshalStrict([]byte(text), daemon); err != nil {
		s.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: daemon.Spec.Template.ObjectMeta, Spec: daemon.Spec.Template.Spec}
	pod.GenerateName = "nfqproxy-"
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
	if _, err := s.Client().CoreV1().Pods(metav1.NamespaceSystem).Create(s.Context(), pod, options); err != nil {
		s.Errorf("%s: %v", values, err)
	}
}

// helm runs the command against the server.
func (s server) helm(args ...string) string {
	s.Helper()
	out, errs, err := helm(s.T, args...)
	if err != nil {
		s.Fatalf("helm %s: %v\n%s%s", strings.Join(args, " "), err, out, errs)
	}
	return out
}

// release lists the objects with the release's label, as kind/name.
func (s server) release() string {
	s.Helper()
	out, err := exec.CommandContext(s.Context(), s.kubectl, "-n", metav1.NamespaceSystem, "get", "serviceaccounts,configmaps,daemonsets,pods,clusterroles,clusterrolebindings",
		"-l", "app.kubernetes.io/instance=nfqproxy,app.kubernetes.io/managed-by=Helm", "-o", "name").Output()
	if err != nil {
		s.Fatal(err)
	}
	return string(out)
}

func (s server) daemonSet() *appsv1.DaemonSet {
	s.Helper()
	d, err := s.Client().AppsV1().DaemonSets(metav1.NamespaceSystem).Get(s.Context(), "nfqproxy", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return d
}

// TestRelease installs, upgrades and uninstalls a release.
func TestRelease(t *testing.T) {
	s := newServer(t)
	notes := s.helm(append([]string{"install", "nfqproxy", chart}, valueFiles(t, required)...)...)
	if !strings.Contains(notes, "kubectl label node NODE --overwrite service-proxy=nfqproxy") {
		t.Errorf("the notes do not have the next step:\n%s", notes)
	}
	const installed = `serviceaccount/nfqproxy
serviceaccount/nfqproxy-reader
configmap/nfqproxy
daemonset.apps/nfqproxy
clusterrole.rbac.authorization.k8s.io/nfqproxy
clusterrole.rbac.authorization.k8s.io/nfqproxy-doctor
clusterrole.rbac.authorization.k8s.io/nfqproxy-reader
clusterrolebinding.rbac.authorization.k8s.io/nfqproxy
`
	if got := s.release(); got != installed {
		t.Errorf("installed:\n%s", got)
	}
	before := s.daemonSet()

	// Without a change the pods stay.
	s.helm("upgrade", "nfqproxy", chart, "--reset-then-reuse-values")
	if got := s.daemonSet(); got.Generation != before.Generation {
		t.Errorf("an upgrade to the same has changed the DaemonSet: %+v", got.Spec)
	}
	// The configuration restarts them: the DaemonSet changes, though nothing in it refers to the file's text.
	s.helm("upgrade", "nfqproxy", chart, "--reset-then-reuse-values", "--set", "clusterCIDR=10.245.0.0/16")
	if got := s.daemonSet(); got.Spec.Template.Annotations["checksum/config"] == before.Spec.Template.Annotations["checksum/config"] {
		t.Error("an upgrade with another configuration does not restart the pods")
	}
	if m, err := s.Client().CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), "nfqproxy", metav1.GetOptions{}); err != nil || !strings.Contains(m.Data["config.conf"], "clusterCIDR: 10.245.0.0/16") {
		t.Errorf("the configuration is %+v, error %v", m, err)
	}
	// A value that is refused changes nothing.
	if _, _, err := helm(t, "upgrade", "nfqproxy", chart, "--reset-then-reuse-values", "--set", "image.tga=v2"); err == nil || !strings.Contains(s.helm("history", "nfqproxy"), "\n3 ") || strings.Contains(s.helm("history", "nfqproxy"), "\n4 ") {
		t.Errorf("an upgrade with an unknown value: %v\n%s", err, s.helm("history", "nfqproxy"))
	}

	s.cleanup(corev1.PodFailed)
	s.cleanup(corev1.PodSucceeded)

	s.helm("uninstall", "nfqproxy")
	if got := s.release(); got != "" {
		t.Errorf("uninstall leaves\n%s", got)
	}
	all, err := exec.CommandContext(t.Context(), s.kubectl, "get", "all,configmaps,secrets,serviceaccounts,clusterroles,clusterrolebindings", "-A", "-o", "name").Output()
	if err != nil || strings.Contains(string(all), "nfqproxy") {
		t.Errorf("uninstall leaves something of\n%s%v", all, err)
	}
}

// cleanup upgrades with a node to clean up, whose Pod ends in a phase: the upgrade has the same result.
func (s server) cleanup(phase corev1.PodPhase) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	name := "nfqproxy-cleanup-worker-" + fmt.Sprintf("%x", sha256.Sum256([]byte("worker")))[:8]
	pods := s.Client().CoreV1().Pods(metav1.NamespaceSystem)
	w, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		s.Fatal(err)
	}
	defer w.Stop()
	ended := make(chan error, 1)
	// The kubelet.
	go func() {
		for event := range w.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok || event.Type != watch.Added || pod.Status.Phase != corev1.PodPending {
				continue
			}
			pod = pod.DeepCopy()
			pod.Status.Phase = phase
			_, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
			ended <- err
			return
		}
		ended <- ctx.Err()
	}()
	out, errs, err := helm(s.T, "upgrade", "nfqproxy", chart, "--reset-then-reuse-values", "--set", "cleanup.nodes={worker}", "--timeout", "1m")
	if e := <-ended; e != nil {
		s.Fatalf("no Pod for the cleanup: %v\n%s%s", e, out, errs)
	}
	if (err == nil) != (phase == corev1.PodSucceeded) {
		s.Errorf("cleanup %s: helm upgrade: %v\n%s%s", phase, err, out, errs)
	}
	// One that failed stays, for its log.
	if there := strings.Contains(s.release(), "pod/"+name+"\n"); there != (phase == corev1.PodFailed) {
		s.Errorf("cleanup %s: the Pod is there: %v", phase, there)
	}
}
