package kubernetes_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/deploy/kubernetes"
)

// kustomization is what is used of one.
type kustomization struct {
	metav1.TypeMeta `json:",inline"`
	Namespace       string   `json:"namespace,omitempty"`
	Resources       []string `json:"resources,omitempty"`
	Components      []string `json:"components,omitempty"`
	Patches         []patch  `json:"patches,omitempty"`
}

// patch is a file: part of an object, or JSON patches (RFC 6902) of the target.
type patch struct {
	Path   string                       `json:"path"`
	Target *struct{ Kind, Name string } `json:"target,omitempty"`
}

// read decodes a file strictly.
func read[T any](t *testing.T, path string) *T {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	object := new(T)
	if err := yaml.UnmarshalStrict(text, object); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return object
}

// decodes checks that a manifest decodes as an object of its kind.
func decodes(t *testing.T, path string) {
	t.Helper()
	var meta metav1.PartialObjectMetadata
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &meta); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	switch meta.APIVersion + " " + meta.Kind {
	case "v1 ServiceAccount":
		read[corev1.ServiceAccount](t, path)
	case "v1 ConfigMap":
		read[corev1.ConfigMap](t, path)
	case "v1 Pod":
		read[corev1.Pod](t, path)
	case "v1 Service":
		read[corev1.Service](t, path)
	case "apps/v1 Deployment":
		read[appsv1.Deployment](t, path)
	case "apps/v1 DaemonSet":
		read[appsv1.DaemonSet](t, path)
	case "rbac.authorization.k8s.io/v1 ClusterRole":
		read[rbacv1.ClusterRole](t, path)
	case "rbac.authorization.k8s.io/v1 ClusterRoleBinding":
		read[rbacv1.ClusterRoleBinding](t, path)
	default:
		t.Fatalf("%s: %s of %s is not expected here", path, meta.Kind, meta.APIVersion)
	}
}

// TestManifests: each file is valid, and named by exactly the kustomization beside it.
func TestManifests(t *testing.T) {
	kustomizations, manifests := 0, 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "kustomization.yaml" {
			return err
		}
		kustomizations++
		k := read[kustomization](t, path)
		dir := filepath.Dir(path)
		for _, other := range append(slices.Clone(k.Resources), k.Components...) {
			if s, err := os.Stat(filepath.Join(dir, other)); err != nil {
				t.Errorf("%s: %v", path, err)
			} else if s.IsDir() {
				if _, err := os.Stat(filepath.Join(dir, other, "kustomization.yaml")); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
		named := slices.Clone(k.Resources)
		var changes []string // which only a server can check: see TestServerTakesOverlays
		for _, p := range k.Patches {
			named = append(named, p.Path)
			if p.Target != nil {
				changes = append(changes, p.Path)
			}
		}
		files, _ := filepath.Glob(filepath.Join(dir, "*.yaml"))
		for _, file := range files {
			if file == path {
				continue
			}
			manifests++
			if !slices.Contains(named, filepath.Base(file)) {
				t.Errorf("%s does not name %s", path, file)
			}
			if slices.Contains(changes, filepath.Base(file)) {
				continue
			}
			if text, _ := os.ReadFile(file); !strings.Contains(string(text), "$patch: delete") {
				decodes(t, file)
			}
		}
		return nil
	})
	if err != nil || kustomizations != 7 || manifests != 27 {
		t.Errorf("%d kustomizations with %d manifests, error %v", kustomizations, manifests, err)
	}
	decodes(t, "cleanup/pod.yaml")
}

// TestEmbedded: programs have the files of base, cleanup and observe as they are here.
func TestEmbedded(t *testing.T) {
	embedded := kubernetes.Manifests()
	var names []string
	for _, dir := range []string{"base", "cleanup", "observe"} {
		files, err := filepath.Glob(dir + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			names = append(names, file)
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := fs.ReadFile(embedded, file); err != nil || string(got) != string(want) {
				t.Errorf("%s is embedded with %d bytes, error %v; want %d bytes", file, len(got), err, len(want))
			}
		}
	}
	if err := fs.WalkDir(embedded, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !slices.Contains(names, path) {
			t.Errorf("%s is embedded", path)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestConfiguration: the daemon takes the ConfigMap's file without a warning.
func TestConfiguration(t *testing.T) {
	m := read[corev1.ConfigMap](t, "base/configmap.yaml")
	config, warnings, err := proxyconfig.Parse("config.conf", []byte(m.Data["config.conf"]))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("error %v, warnings %q", err, warnings)
	}
	pod := read[appsv1.DaemonSet](t, "base/daemonset.yaml").Spec.Template.Spec
	dir, file := filepath.Split(config.Kubeconfig)
	if m.Data[file] == "" {
		t.Errorf("the ConfigMap has no %s", file)
	}
	if mount := pod.Containers[0].VolumeMounts[0]; mount.MountPath != filepath.Clean(dir) || mount.Name != "config" {
		t.Errorf("the configuration is at %s, the kubeconfig is wanted at %s", mount.MountPath, config.Kubeconfig)
	}
	if want := "--config=" + dir + "config.conf"; !slices.Contains(pod.Containers[0].Args, want) {
		t.Errorf("no argument is %s", want)
	}
	for _, p := range []*corev1.Probe{pod.Containers[0].LivenessProbe, pod.Containers[0].ReadinessProbe} {
		if !strings.HasSuffix(config.HealthzBindAddress, ":"+p.HTTPGet.Port.String()) {
			t.Errorf("a probe goes to port %s, the server is at %s", p.HTTPGet.Port.String(), config.HealthzBindAddress)
		}
	}
}

// TestReferences: names that refer to each other are the same.
func TestReferences(t *testing.T) {
	account := read[corev1.ServiceAccount](t, "base/serviceaccount.yaml")
	daemon := read[appsv1.DaemonSet](t, "base/daemonset.yaml")
	pod := daemon.Spec.Template.Spec
	if pod.ServiceAccountName != account.Name || daemon.Namespace != account.Namespace {
		t.Errorf("the service account is %s/%s", daemon.Namespace, pod.ServiceAccountName)
	}
	if selector := labels.SelectorFromSet(daemon.Spec.Selector.MatchLabels); selector.String() != "k8s-app=nfqproxy" || !selector.Matches(labels.Set(daemon.Spec.Template.Labels)) {
		t.Errorf("the DaemonSet selects %s, its pods have %v", selector, daemon.Spec.Template.Labels)
	}
	for _, dir := range []string{"base", "components/pod-names"} {
		role := read[rbacv1.ClusterRole](t, dir+"/clusterrole.yaml")
		binding := read[rbacv1.ClusterRoleBinding](t, dir+"/clusterrolebinding.yaml")
		want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}
		if binding.RoleRef.Name != role.Name || !reflect.DeepEqual(binding.Subjects, want) {
			t.Errorf("%s: the role is not bound to the service account", dir)
		}
	}
	volumes := make(map[string]bool)
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	for _, m := range pod.Containers[0].VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("there is no volume %s", m.Name)
		}
		delete(volumes, m.Name)
	}
	if len(volumes) > 0 {
		t.Errorf("volumes %v are not mounted", volumes)
	}
	if !slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(flowapi.DefaultSocket) }) {
		t.Errorf("the root file system is read-only, and nothing is mounted for %s", flowapi.DefaultSocket)
	}
	// The flow API takes tokens of the account that the reader's role makes tokens of.
	reader := read[corev1.ServiceAccount](t, "base/reader-serviceaccount.yaml")
	role := read[rbacv1.ClusterRole](t, "base/reader-clusterrole.yaml")
	if !slices.Contains(pod.Containers[0].Args, "--flow-api-service-account="+reader.Namespace+"/"+reader.Name) || reader.AutomountServiceAccountToken == nil || *reader.AutomountServiceAccountToken {
		t.Errorf("the flow API takes no tokens of %s/%s, or pods get them", reader.Namespace, reader.Name)
	}
	for resource, name := range map[string]string{"serviceaccounts/token": reader.Name, "daemonsets": daemon.Name} {
		if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Equal(r.Resources, []string{resource}) && slices.Equal(r.ResourceNames, []string{name})
		}) {
			t.Errorf("the reader's role does not name %s %s", resource, name)
		}
	}
	if !slices.Contains(pod.Containers[0].Args, "--flow-api=unix:"+flowapi.DefaultSocket+",127.0.0.1:10253") {
		t.Errorf("no flow API for port-forward: %q", pod.Containers[0].Args)
	}
	cleanup := read[corev1.Pod](t, "cleanup/pod.yaml").Spec.Containers[0]
	if c := pod.Containers[0]; c.Image != cleanup.Image || !reflect.DeepEqual(c.SecurityContext, cleanup.SecurityContext) {
		t.Error("the cleanup has another image or security context than the daemon")
	}
	for _, overlay := range []string{"overlays/kubeadm/daemonset.yaml", "overlays/kind/daemonset.yaml"} {
		if patch := read[appsv1.DaemonSet](t, overlay); patch.Name != daemon.Name || patch.Namespace != daemon.Namespace {
			t.Errorf("%s patches %s/%s", overlay, patch.Namespace, patch.Name)
		}
	}
}

// TestSecurity: the pod has no more rights than README.md lists.
func TestSecurity(t *testing.T) {
	pod := read[appsv1.DaemonSet](t, "base/daemonset.yaml").Spec.Template.Spec
	s := pod.Containers[0].SecurityContext
	no, yes, root := false, true, int64(0)
	want := &corev1.SecurityContext{
		RunAsUser: &root, RunAsGroup: &root, Privileged: &no, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("the security context is %+v", s)
	}
	if pod.HostPID || pod.HostIPC || !pod.HostNetwork {
		t.Error("the pod shares something else than the host's network")
	}
	var paths []string
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			paths = append(paths, v.HostPath.Path)
		}
	}
	if want := []string{"/proc/sys/net", "/run/xtables.lock", "/var/lib/nfqproxy", "/run/nfqproxy"}; !slices.Equal(paths, want) {
		t.Errorf("of the host there are %q, want %q", paths, want)
	}
	granted := make(map[string]string)
	for _, r := range read[rbacv1.ClusterRole](t, "base/clusterrole.yaml").Rules {
		granted[r.APIGroups[0]+"/"+r.Resources[0]] = strings.Join(r.Verbs, " ")
		if len(r.APIGroups) != 1 || len(r.Resources) != 1 {
			t.Errorf("a rule for several things: %v", r)
		}
	}
	if want := map[string]string{"/services": "list watch", "discovery.k8s.io/endpointslices": "list watch", "/nodes": "list watch", "events.k8s.io/events": "create patch", "authentication.k8s.io/tokenreviews": "create"}; !reflect.DeepEqual(granted, want) {
		t.Errorf("granted is %v, want %v", granted, want)
	}
}

// TestObserverSecurity: the pod that observes mounts nothing of the host, and its account changes no objects.
func TestObserverSecurity(t *testing.T) {
	pod := read[appsv1.DaemonSet](t, "observe/daemonset.yaml").Spec.Template.Spec
	proxy := read[appsv1.DaemonSet](t, "base/daemonset.yaml").Spec.Template.Spec
	if !reflect.DeepEqual(pod.Containers[0].SecurityContext, proxy.Containers[0].SecurityContext) || pod.HostPID || pod.HostIPC {
		t.Errorf("the security context is %+v", pod.Containers[0].SecurityContext)
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			t.Errorf("volume %s is %s of the host", v.Name, v.HostPath.Path)
		}
	}
	for _, r := range read[rbacv1.ClusterRole](t, "observe/clusterrole.yaml").Rules {
		if !slices.Equal(r.Verbs, []string{"list", "watch"}) && !slices.Equal(r.Resources, []string{"tokenreviews"}) {
			t.Errorf("granted is %s of %s", r.Verbs, r.Resources)
		}
	}
}
