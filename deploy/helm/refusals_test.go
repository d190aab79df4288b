package helm

import (
	"strings"
	"testing"
)

// TestRefusals: wrong values give one message that names the value, and no manifests.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct{ values, want string }{
		// What is required.
		{"", "apiServer: required"},
		{"clusterCIDR: 10.244.0.0/16", "apiServer: required"},
		{"apiServer: https://control-plane.example:6443", "clusterCIDR: required"},
		{"apiServer: https://control-plane.example:6443\nconfig: {detectLocalMode: ClusterCIDR}", "clusterCIDR: required"},
		// What excludes each other.
		{"kubeadm: true\napiServer: https://control-plane.example:6443", "apiServer: kubeadm: true uses"},
		{"kubeadm: true\nclusterCIDR: 10.244.0.0/16", "clusterCIDR: kubeadm: true uses"},
		{"kubeadm: true\nconfig: {mode: iptables}", "config: kubeadm: true uses"},
		{required + "config: {clusterCIDR: 10.245.0.0/16}", "clusterCIDR: 10.244.0.0/16, but config.clusterCIDR is 10.245.0.0/16"},
		{required + "flowAPI: {port: 0, tlsSecret: tls}", "flowAPI.tlsSecret: TLS is for a port"},
		{required + "metrics: {podMonitor: {enabled: true}}", "metrics.podMonitor: requires"},
		{required + "metrics: {bindAddress: '127.0.0.1:10249', podMonitor: {enabled: true}}", "metrics.podMonitor: requires"},
		{required + "metrics: {bindAddress: '[::1]:10249', podMonitor: {enabled: true}}", "metrics.podMonitor: requires"},
		{required + "observe: {accounting: true}", "observe.accounting: is for mode: observe"},
		{required + "history: {volume: {emptyDir: {}, hostPath: {path: /flows}}}", "at '/history/volume': maxProperties"},
		// A Service is unreachable without a proxy.
		{required + "apiServer: https://kubernetes.default.svc", "apiServer: https://kubernetes.default.svc is a Service"},
		{required + "apiServer: https://kubernetes.default.svc.cluster.local:443/", "is a Service"},
		{required + "apiServer: https://kubernetes", "is a Service"},
		// Unknown values.
		{required + "clusterCidr: 10.244.0.0/16", "at '': additional properties 'clusterCidr' not allowed"},
		{required + "image: {name: nfqproxy}", "at '/image': additional properties 'name' not allowed"},
		{required + "flowAPI: {enabled: true}", "at '/flowAPI': additional properties 'enabled' not allowed"},
		{required + "updateStrategy: {rollingUpdate: {surge: 1}}", "at '/updateStrategy/rollingUpdate': additional properties 'surge' not allowed"},
		{required + "config: {iptables: {masqueradeal: true}}", "at '/config/iptables': additional properties 'masqueradeal' not allowed"},
		{required + "config: {clientConnection: {kubeconfig: /etc/kubeconfig}}", "at '/config/clientConnection/kubeconfig': value must be one of"},
		{required + "config: {kind: KubeletConfiguration}", "at '/config/kind': value must be 'KubeProxyConfiguration'"},
		{required + "metrics: {podMonitor: {namespace: monitoring}}", "at '/metrics/podMonitor': additional properties 'namespace' not allowed"},
		{required + "cleanup: {node: worker}", "at '/cleanup': additional properties 'node' not allowed"},
		{required + "resources: {request: {cpu: 1}}", "at '/resources': additional properties 'request' not allowed"},
		{required + "tolerations: [{kye: a}]", "at '/tolerations/0': additional properties 'kye' not allowed"},
		{required + "image: {pullSecrets: [registry]}", "at '/image/pullSecrets/0': got string, want object"},
		// Wrong values.
		{required + "mode: watch", "at '/mode': value must be one of 'proxy', 'observe'"},
		{required + "history: {maxAge: 7d}", "at '/history/maxAge'"},
		{required + "history: {maxSize: 1 Gi}", "at '/history/maxSize'"},
		{required + "apiServer: 192.0.2.1:6443", "at '/apiServer': '192.0.2.1:6443' does not match pattern"},
		{required + "apiServer: http://192.0.2.1", "at '/apiServer'"},
		{required + "clusterCIDR: 10.244.0.0", "at '/clusterCIDR'"},
		{required + "clusterCIDR: [10.244.0.0/16]", "at '/clusterCIDR': got array, want string"},
		{required + "kubeadm: 'yes'", "at '/kubeadm': got string, want boolean"},
		{required + "image: {tag: 'a b'}", "at '/image/tag'"},
		{required + "image: {tag: 1.5}", "at '/image/tag': got number, want string"},
		{required + "image: {repository: ''}", "at '/image/repository'"},
		{required + "image: {digest: 0123}", "at '/image/digest'"},
		{required + "image: {pullPolicy: Sometimes}", "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'"},
		{required + "nodeSelector: {pool: true}", "at '/nodeSelector/pool': got boolean, want string"},
		{required + "flowAPI: {port: 65536}", "at '/flowAPI/port': maximum: got 65,536, want 65,535"},
		{required + "view: {hubble: {bindAddress: '0.0.0.0:4245'}}", "at '/view/hubble/bindAddress'"},
		{required + "view: {hubble: {tlsSecret: hubble}}", "at '/view/hubble/bindAddress'"},
		{required + "hubble: {bindAddress: '127.0.0.1:4245'}", "hubble"},
		{required + "metrics: {bindAddress: ':10249'}", "at '/metrics/bindAddress'"},
		{required + "metrics: {podMonitor: {interval: 30}}", "at '/metrics/podMonitor/interval'"},
		{required + "extraArgs: --decide=kernel", "at '/extraArgs': got string, want array"},
		{required + "extraEnv: [{name: NODE_NAME, value: worker}]", "at '/extraEnv/0/name'"},
		{required + "podLabels: {k8s-app: other}", "podLabels: the chart sets the label k8s-app itself"},
		{required + "labels: {app.kubernetes.io/name: other}", "labels: the chart sets the label app.kubernetes.io/name itself"},
		{required + "cleanup: {nodes: worker}", "at '/cleanup/nodes': got string, want array"},
		{required + "cleanup: {nodes: [Worker]}", "at '/cleanup/nodes/0'"},
		{required + "cleanup: {waitForKubeProxy: 120}", "at '/cleanup/waitForKubeProxy': got number, want string"},
		{required + "updateStrategy: {type: Recreate}", "at '/updateStrategy/type'"},
		{required + "plain: 1", "at '/plain'"},
	} {
		out, errs, err := helm(t, append([]string{"template", "nfqproxy", chart}, valueFiles(t, tt.values)...)...)
		if err == nil || out != "" || strings.Count(errs, tt.want) != 1 {
			t.Errorf("values:\n%s\nerror %v, message:\n%swant %q; %d bytes of manifests", tt.values, err, errs, tt.want, len(out))
		}
	}
	_, errs, err := helm(t, "template", "nfqproxy", chart, "--namespace", "proxies", "--set", "kubeadm=true")
	if err == nil || !strings.Contains(errs, "install with --namespace kube-system, not proxies") {
		t.Errorf("another namespace than that of kube-proxy's ConfigMap: error %v, message:\n%s", err, errs)
	}
}
