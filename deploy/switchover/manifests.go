package switchover

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/deploy/kubernetes"
)

// namespace is that of both proxies.
const namespace = metav1.NamespaceSystem

// Files of kube-proxy's ConfigMap, and where they are mounted.
const (
	configFile     = "config.conf"
	kubeconfigFile = "kubeconfig.conf"
	configDir      = "/var/lib/kube-proxy/"
)

// resources are the kinds of the manifests.
var resources = map[string]schema.GroupVersionResource{
	"ServiceAccount":     {Version: "v1", Resource: "serviceaccounts"},
	"ClusterRole":        {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding": {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	"ConfigMap":          {Version: "v1", Resource: "configmaps"},
	"DaemonSet":          {Group: "apps", Version: "v1", Resource: "daemonsets"},
}

// configuration is where the daemons' configuration comes from: kube-proxy's ConfigMap, or texts for one of our own.
type configuration struct {
	shared                 bool
	clusterCIDR, apiServer string
}

func (c configuration) String() string {
	if c.shared {
		return "ConfigMap kube-proxy"
	}
	return "ConfigMap nfqproxy"
}

// configuration chooses the ConfigMap: kube-proxy's, if it is as kubeadm writes it and no values are given.
func (s *Switch) configuration() (configuration, error) {
	own := configuration{clusterCIDR: s.ClusterCIDR, apiServer: s.APIServer}
	if s.ClusterCIDR == "" && s.APIServer == "" {
		why := checkShareable(s.state.configMap)
		if why == nil {
			return configuration{shared: true}, nil
		}
		return own, fmt.Errorf("%w: give --cluster-cidr and --api-server, for nfqproxy's own ConfigMap", why)
	}
	if s.ClusterCIDR == "" || s.APIServer == "" {
		return own, errors.New("--cluster-cidr and --api-server must be given together, for nfqproxy's own ConfigMap")
	}
	if u, err := url.Parse(s.APIServer); err != nil || u.Scheme != "https" || u.Host == "" || strings.ContainsAny(s.APIServer, " \n") {
		return own, fmt.Errorf("--api-server %q: want https://HOST:PORT, which does not depend on a service proxy", s.APIServer)
	}
	if strings.Contains(s.ClusterCIDR, "\n") {
		return own, fmt.Errorf("--cluster-cidr %q: want prefixes", s.ClusterCIDR)
	}
	const minimal = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: \n"
	if _, _, err := proxyconfig.Parse("--cluster-cidr", []byte(own.config(minimal))); err != nil {
		return own, err
	}
	return own, nil
}

// checkShareable returns why the daemons cannot use a ConfigMap.
func checkShareable(m *corev1.ConfigMap) error {
	if m == nil {
		return errors.New("no ConfigMap kube-proxy in kube-system")
	}
	for _, file := range []string{configFile, kubeconfigFile} {
		if m.Data[file] == "" {
			return fmt.Errorf("ConfigMap kube-proxy has no %s", file)
		}
	}
	config, _, err := proxyconfig.Parse("ConfigMap kube-proxy, "+configFile, []byte(m.Data[configFile]))
	switch {
	case err != nil:
		return err
	case config.Kubeconfig != configDir+kubeconfigFile:
		return fmt.Errorf("ConfigMap kube-proxy names the kubeconfig %q, not %s", config.Kubeconfig, configDir+kubeconfigFile)
	}
	return nil
}

var (
	clusterCIDRLine = regexp.MustCompile(`(?m)^clusterCIDR: .*$`)
	serverLine      = regexp.MustCompile(`(?m)^( *server: ).*$`)
)

// config is a KubeProxyConfiguration with our pod prefixes.
func (c configuration) config(text string) string {
	return clusterCIDRLine.ReplaceAllLiteralString(text, "clusterCIDR: "+c.clusterCIDR)
}

// kubeconfig is a kubeconfig with our API server.
func (c configuration) kubeconfig(text string) string {
	return serverLine.ReplaceAllString(text, "${1}"+strings.ReplaceAll(c.apiServer, "$", "$$"))
}

// modeOf is the mode of kube-proxy, by its ConfigMap or else by its command line.
func modeOf(d *appsv1.DaemonSet, m *corev1.ConfigMap) string {
	mode := ""
	for _, c := range d.Spec.Template.Spec.Containers {
		for _, arg := range append(c.Command, c.Args...) {
			if value, ok := strings.CutPrefix(arg, "--proxy-mode="); ok {
				mode = value
			}
		}
	}
	if m != nil {
		var config struct{ Mode string }
		if yaml.Unmarshal([]byte(m.Data[configFile]), &config) == nil && config.Mode != "" {
			mode = config.Mode
		}
	}
	return cmp.Or(mode, "iptables") // kube-proxy's default
}

// Directories of the manifests: of nfqproxy, and of one that only observes.
const (
	baseDir    = "base"
	observeDir = "observe"
)

// manifests are the objects of a directory, in their order, with the image and the configuration.
func (s *Switch) manifests(dir string, config configuration) ([]*unstructured.Unstructured, error) {
	var named struct{ Resources []string }
	if err := decode(path.Join(dir, "kustomization.yaml"), &named); err != nil {
		return nil, err
	}
	var list []*unstructured.Unstructured
	for _, file := range named.Resources {
		o := new(unstructured.Unstructured)
		if err := decode(path.Join(dir, file), &o.Object); err != nil {
			return nil, err
		}
		if config.shared && o.GetKind() == "ConfigMap" {
			continue
		}
		if err := s.complete(o, config); err != nil {
			return nil, fmt.Errorf("manifest %s: %w", file, err)
		}
		list = append(list, o)
	}
	return list, nil
}

// complete puts the image and the configuration into an object.
func (s *Switch) complete(o *unstructured.Unstructured, config configuration) error {
	switch o.GetKind() {
	case "ConfigMap":
		data, _, err := unstructured.NestedStringMap(o.Object, "data")
		if err != nil || config == (configuration{}) {
			return err
		}
		data[configFile], data[kubeconfigFile] = config.config(data[configFile]), config.kubeconfig(data[kubeconfigFile])
		return unstructured.SetNestedStringMap(o.Object, data, "data")
	case "DaemonSet":
		if err := setIn(o.Object, "containers", Nfqproxy, s.Image, "image"); err != nil || !config.shared {
			return err
		}
		return setIn(o.Object, "volumes", "config", KubeProxy, "configMap", "name")
	}
	return nil
}

// setIn sets a field of the element with a name in a list of the pod template.
func setIn(object map[string]any, list, name, value string, field ...string) error {
	in := []string{"spec", "template", "spec", list}
	elements, _, err := unstructured.NestedSlice(object, in...)
	if err != nil {
		return err
	}
	for _, e := range elements {
		if e, ok := e.(map[string]any); ok && e["name"] == name {
			if err := unstructured.SetNestedField(e, value, field...); err != nil {
				return err
			}
			return unstructured.SetNestedSlice(object, elements, in...)
		}
	}
	return fmt.Errorf("no %s in %s", name, list)
}

// decode reads a file of the manifests strictly.
func decode(file string, into any) error {
	text, err := fs.ReadFile(kubernetes.Manifests(), file)
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		return fmt.Errorf("manifest %s: %w", file, err)
	}
	return nil
}
