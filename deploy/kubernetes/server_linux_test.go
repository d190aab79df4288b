package kubernetes_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// withEverything is a user's own overlay with everything in it.
const withEverything = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../kubeadm]
components: [../../components/pod-names, ../../components/view, ../../components/hubble-relay]
images: [{name: nfqproxy, newName: registry.example/nfqproxy, newTag: v1}]
`

// server is a cluster with a Node and with kube-proxy as kubeadm installs it, as far as
// it matters here.
type server struct {
	*testing.T
	*cluster.Cluster
	dir string // the repository's root, for commands
}

func newServer(t *testing.T) server {
	netnstest.Require(t)
	clustertest.Require(t)
	netnstest.RequireTool(t, "bash")
	c, err := cluster.Start(t.Context(), cluster.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	s := server{T: t, Cluster: c, dir: t.TempDir()}
	for _, dir := range []string{"kubernetes", "helm"} {
		if err := os.CopyFS(filepath.Join(s.dir, "deploy", dir), os.DirFS("../"+dir)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// shell runs a command line as a reader of the pages would.
func (s server) shell(line string) string {
	s.Helper()
	kubectl, err := cluster.Binary(cluster.Kubectl)
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.CommandContext(s.Context(), "bash", "-e", "-o", "pipefail", "-c", line)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig(), "HOME="+s.dir, "PATH="+filepath.Dir(kubectl)+":"+os.Getenv("PATH"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		s.Fatalf("%s: %v\n%s", line, err, &errs)
	}
	if errs.Len() > 0 {
		s.Errorf("%s: warns: %s", line, &errs)
	}
	return out.String()
}

// TestServerTakesOverlays: whatever kustomize builds here is taken without a complaint, and
// so are the pods that the DaemonSet makes of it.
func TestServerTakesOverlays(t *testing.T) {
	s := newServer(t)
	own := filepath.Join(s.dir, "deploy", "kubernetes", "overlays", "own")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "kustomization.yaml"), []byte(withEverything), 0o644); err != nil {
		t.Fatal(err)
	}
	const dryRun = " --dry-run=server --validate=strict"
	for _, tt := range []struct {
		dir, config, image string
		pull               corev1.PullPolicy
		objects            int
	}{
		{"base", "nfqproxy", "nfqproxy:dev", corev1.PullIfNotPresent, 8},
		{"observe", "nfqproxy", "nfqproxy:dev", corev1.PullIfNotPresent, 8},
		{"overlays/kubeadm", "kube-proxy", "nfqproxy:dev", corev1.PullIfNotPresent, 7},
		{"overlays/kind", "kube-proxy", "nfqproxy:dev", corev1.PullNever, 7},
		{"overlays/own", "kube-proxy", "registry.example/nfqproxy:v1", corev1.PullIfNotPresent, 11},
	} {
		out := s.shell("kubectl create -k deploy/kubernetes/" + tt.dir + dryRun)
		if n := strings.Count(out, "\n"); n != tt.objects {
			t.Errorf("%s: %d objects, want %d:\n%s", tt.dir, n, tt.objects, out)
		}
		daemon := new(appsv1.DaemonSet)
		for document := range strings.SplitSeq(s.shell("kubectl kustomize deploy/kubernetes/"+tt.dir), "\n---\n") {
			if strings.Contains(document, "kind: DaemonSet") {
				if err := yaml.UnmarshalStrict([]byte(document), daemon); err != nil {
					t.Fatal(err)
				}
			}
		}
		pod := &corev1.Pod{ObjectMeta: daemon.Spec.Template.ObjectMeta, Spec: daemon.Spec.Template.Spec}
		pod.GenerateName = "nfqproxy-"
		c := pod.Spec.Containers[0]
		containers := map[bool]int{false: 1, true: 2}[tt.dir == "overlays/own"] // with the component view
		configured := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == tt.config })
		if len(pod.Spec.Containers) != containers || !configured || c.Image != tt.image || c.ImagePullPolicy != tt.pull {
			t.Errorf("%s: the pod is %+v", tt.dir, pod.Spec)
		}
		if tt.dir == "overlays/own" {
			checkHubble(t, &pod.Spec)
		}
		options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
		if _, err := s.Client().CoreV1().Pods("kube-system").Create(t.Context(), pod, options); err != nil {
			t.Errorf("%s: %v", tt.dir, err)
		}
	}
	s.shell("sed s/NODE/worker/ deploy/kubernetes/cleanup/pod.yaml | kubectl create -f -" + dryRun)
}

// checkHubble checks what the component hubble-relay adds: the files of the Secret that docs/how-to/export-to-hubble.md makes.
func checkHubble(t *testing.T, pod *corev1.PodSpec) {
	t.Helper()
	c := pod.Containers[1]
	i := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "hubble-tls" && m.ReadOnly })
	k := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool {
		return v.Name == "hubble-tls" && v.Secret != nil && v.Secret.SecretName == "nfqproxy-hubble"
	})
	if i < 0 || k < 0 {
		t.Fatalf("no certificates for the Hubble API: %+v", pod)
	}
	for flag, file := range map[string]string{"cert": "tls.crt", "key": "tls.key", "client-ca": "ca.crt"} {
		if want := "--hubble-tls-" + flag + "=" + c.VolumeMounts[i].MountPath + "/" + file; !slices.Contains(c.Args, want) {
			t.Errorf("no argument is %s: %q", want, c.Args)
		}
	}
}

// elsewhere are commands that want more than an API server. (TestRelease of package helm has the cleanup.)
var elsewhere = regexp.MustCompile(`^(docker|kind|make|nfqproxy) |rollout status|\blogs\b|\bexec\b|port-forward|cleanup\.nodes`)

// TestReadme runs the commands of both pages in their order, from a cluster with kube-proxy
// and back to it.
func TestReadme(t *testing.T) {
	clustertest.RequireProgram(t, cluster.Helm)
	s := newServer(t)
	ctx, client := t.Context(), s.Client()
	if _, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubeProxy := read[appsv1.DaemonSet](t, "base/daemonset.yaml")
	kubeProxy.Name, kubeProxy.Spec.Template.Spec.NodeSelector = "kube-proxy", map[string]string{"kubernetes.io/os": "linux"}
	if _, err := client.AppsV1().DaemonSets("kube-system").Create(ctx, kubeProxy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Which proxy the node has, and whether both DaemonSets go by that.
	state := func() string {
		node, err := client.CoreV1().Nodes().Get(ctx, "worker", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		sets, err := client.AppsV1().DaemonSets("kube-system").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		label := node.Labels["service-proxy"]
		text := "label " + label
		for _, d := range sets.Items {
			if want, ok := d.Spec.Template.Spec.NodeSelector["service-proxy"]; !ok || want == label {
				text += ", " + d.Name
			}
		}
		return text
	}
	for _, page := range []struct {
		file string
		run  int               // commands
		want map[string]string // the state after a part
	}{
		{"README.md", 12, map[string]string{
			"Once": "label kube-proxy, kube-proxy", "To nfqproxy": "label nfqproxy, nfqproxy",
			"Back to kube-proxy": "label kube-proxy, kube-proxy", "Uninstall": "label , kube-proxy",
		}},
		{"../helm/README.md", 14, map[string]string{
			"Once": "label kube-proxy, kube-proxy", "Install": "label kube-proxy, kube-proxy", "To nfqproxy": "label nfqproxy, nfqproxy",
			"Update": "label nfqproxy, nfqproxy", "Back to kube-proxy": "label kube-proxy, kube-proxy", "Uninstall": "label , kube-proxy",
			"Observe": "label , kube-proxy",
		}},
	} {
		run := 0
		for _, part := range commands(t, page.file) {
			for _, line := range part.lines {
				if !elsewhere.MatchString(line) {
					s.shell(strings.NewReplacer("NODE --", "worker --", "name-of-the-node", "worker").Replace(line))
					run++
				}
			}
			if got := state(); got != page.want[part.title] && part.title != "" && len(part.lines) > 0 {
				t.Errorf("%s: after %q: %s, want %s", page.file, part.title, got, page.want[part.title])
			}
			delete(page.want, part.title)
		}
		if len(page.want) > 0 || run != page.run {
			t.Errorf("%s: %d commands were run, not seen: %v", page.file, run, page.want)
		}
	}
	if token, err := flowapi.ReadToken("token", filepath.Join(s.dir, "token")); err != nil || strings.Count(token, ".") != 2 {
		t.Errorf("the token of %d characters is no JWT, error %v", len(token), err)
	}
}

type part struct {
	title string // in bold, before the commands
	lines []string
}

// commands are the indented lines of a page.
func commands(t *testing.T, page string) (parts []part) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	parts = append(parts, part{})
	title := regexp.MustCompile(`^\*\*([^*]+)\*\*`)
	continued := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		p := &parts[len(parts)-1]
		if strings.HasPrefix(line, "#") {
			parts = append(parts, part{})
		} else if m := title.FindStringSubmatch(line); m != nil {
			parts = append(parts, part{title: m[1]})
		} else if command, ok := strings.CutPrefix(line, "    "); ok {
			if continued {
				p.lines[len(p.lines)-1] += command
			} else {
				p.lines = append(p.lines, command)
			}
			last := &p.lines[len(p.lines)-1]
			*last, continued = strings.CutSuffix(*last, `\`)
		}
	}
	return parts
}
