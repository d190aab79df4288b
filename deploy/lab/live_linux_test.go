package lab

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/desired"
)

const living = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: living}
clusterCIDRs: [10.244.0.0/16]
networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}]
nodes:
- {name: node-a, addresses: [192.0.2.2], podCIDRs: [10.244.0.0/24]}
- {name: node-b, addresses: [192.0.2.3], podCIDRs: [10.244.1.0/24]}
pods:
- {name: shell, node: node-a, addresses: [10.244.0.9]}
deployments:
- {name: web, namespace: shop, replicas: 3, ports: [{name: http, port: 8080}], gracePeriodSeconds: 0}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
`

// livingLab is a lab of a file that changes, with its commands.
type livingLab struct {
	*testing.T
	*Lab
	path   string
	events *Subscription
}

func newLivingLab(t *testing.T) *livingLab {
	t.Helper()
	return newLivingLabOf(t, living)
}

func newLivingLabOf(t *testing.T, text string) *livingLab {
	t.Helper()
	l := &livingLab{T: t, path: filepath.Join(t.TempDir(), "lab.yaml")}
	l.save(text)
	l.Lab = upFile(t, l.path, func(*Spec) {})
	l.events = l.Subscribe(1000)
	return l
}

func (l *livingLab) save(text string) {
	l.Helper()
	if err := os.WriteFile(l.path, []byte(text), 0o644); err != nil {
		l.Fatal(err)
	}
}

func (l *livingLab) do(c Change) []string {
	l.Helper()
	changes, err := l.Change(l.Context(), c)
	if err != nil {
		l.Fatalf("%+v: %v", c, err)
	}
	return changes
}

// await waits for a line of changes.
func (l *livingLab) await(part string) {
	l.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case e := <-l.events.C:
			if slices.ContainsFunc(e.Changes, func(line string) bool { return strings.Contains(line, part) }) {
				return
			}
		case <-timeout:
			l.Fatalf("%q does not come", part)
		}
	}
}

// endpoints are those of shop/web, as the daemons read them: "address ready", and "terminating".
func (l *livingLab) endpoints() string {
	l.Helper()
	answer := httptest.NewRecorder()
	l.api.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/apis/discovery.k8s.io/v1/endpointslices", nil))
	var list discoveryv1.EndpointSliceList
	if err := json.Unmarshal(answer.Body.Bytes(), &list); err != nil {
		l.Fatal(err)
	}
	var all []string
	for _, s := range list.Items {
		if s.Labels[discoveryv1.LabelServiceName] != "web" {
			continue
		}
		for _, e := range s.Endpoints {
			text := e.Addresses[0]
			if !*e.Conditions.Ready {
				text += " not ready"
			}
			if *e.Conditions.Terminating {
				text += " terminating"
			}
			if *s.Ports[0].Port != 8080 {
				l.Errorf("port %d, want that with the name http", *s.Ports[0].Port)
			}
			all = append(all, text)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (l *livingLab) expect(want string) {
	l.Helper()
	if got := l.endpoints(); got != want {
		l.Errorf("endpoints %q, want %q", got, want)
	}
}

// answers wants the server of an address to answer, from a host.
func (l *livingLab) answers(host, address string) {
	l.Helper()
	ns, err := l.Namespace(host)
	if err != nil {
		l.Fatal(err)
	}
	c, err := ns.Dial(l.Context(), "tcp", netip.AddrPort{}, netip.MustParseAddrPort(address))
	if err != nil {
		l.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("\n")); err != nil {
		l.Fatal(err)
	}
	var a Answer
	if err := json.NewDecoder(c).Decode(&a); err != nil || a.Local != address {
		l.Errorf("%s: %+v, %v", address, a, err)
	}
}

func TestLive(t *testing.T) {
	t.Parallel()
	l := newLivingLab(t)
	l.expect("10.244.0.2, 10.244.0.3, 10.244.1.2")
	l.answers("shell", "10.244.1.2:8080")

	l.do(Change{Scale: &Scale{Deployment: "web", Replicas: 4}})
	l.expect("10.244.0.2, 10.244.0.3, 10.244.1.2, 10.244.1.3")
	l.answers("shell", "10.244.1.3:8080")
	if h := l.topology.find("shop/web-4"); h.Hostname() != "web-4" || !strings.Contains(h.File(hostsFile), "10.244.1.3\tweb-4\n") {
		t.Errorf("the new pod's hostname is %q, its hosts file:\n%s", h.Hostname(), h.File(hostsFile))
	}

	l.do(Change{Ready: &Readiness{Pod: "web-4"}})
	l.expect("10.244.0.2, 10.244.0.3, 10.244.1.2, 10.244.1.3 not ready")
	l.do(Change{Ready: &Readiness{Pod: "web-4", Ready: true}})
	l.expect("10.244.0.2, 10.244.0.3, 10.244.1.2, 10.244.1.3")

	// A terminating pod serves; its replacement is there at once.
	l.do(Change{RemovePod: &RemovePod{Pod: "shop/web-1", Grace: new(labapi.Duration(time.Hour))}})
	l.expect("10.244.0.2 not ready terminating, 10.244.0.3, 10.244.0.4, 10.244.1.2, 10.244.1.3")
	l.answers("shell", "10.244.0.2:8080")
	if _, err := l.Change(t.Context(), Change{RemovePod: &RemovePod{Pod: "web-1"}}); err == nil || !strings.Contains(err.Error(), "already terminating") {
		t.Errorf("a pod ends twice: %v", err)
	}
	l.do(Change{RemovePod: &RemovePod{Pod: "web-2", Grace: new(labapi.Duration(0))}})
	l.await("pod shop/web-2 has ended")
	if _, err := l.Namespace("web-2"); err == nil {
		t.Error("web-2 is still there")
	}

	l.do(Change{AddPod: &Pod{Name: "more", Namespace: "shop", Node: "node-b", Labels: map[string]string{"app": "web"}, Ports: []Port{{Name: "http", Port: 8080, Protocol: 6}}}})
	l.answers("shell", "10.244.1.4:8080")

	// A pod may have the name of a deployment.
	l.do(Change{AddPod: &Pod{Name: "web", Namespace: "shop"}})
	l.do(Change{RemovePod: &RemovePod{Pod: "shop/web", Grace: new(labapi.Duration(0))}})
	l.await("pod shop/web has ended")

	for _, wrong := range []struct {
		pod  Pod
		want string
	}{
		{Pod{Name: "x", Namespace: "shop", Node: "node-b", Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.3")}}, "pod shop/x: 10.244.1.3 is already used by pod shop/web-4"},
		{Pod{Name: "x", Namespace: "shop", Node: "node-b", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}, "pod shop/x: 192.0.2.9 is not in the podCIDRs of node node-b"},
		{Pod{Name: "shell", Namespace: "default"}, "pod default/shell already exists: choose another name, or remove it first"},
		{Pod{Name: "x", Namespace: "shop", Node: "node-c"}, `no node "node-c" (did you mean "node-a"?); the lab has node-a, node-b`},
	} {
		before := len(l.Spec().Pods)
		if _, err := l.Change(t.Context(), Change{AddPod: &wrong.pod}); err == nil || err.Error() != wrong.want || len(l.Spec().Pods) != before {
			t.Errorf("%+v: %v, want %s", wrong.pod, err, wrong.want)
		}
	}

	// A host that cannot be completed leaves nothing behind.
	if err := l.topology.find("node-b").AddBridge("half"); err != nil { // where the pod's link is to be
		t.Fatal(err)
	}
	half := Change{AddPod: &Pod{Name: "half", Namespace: "shop", Node: "node-b"}}
	if _, err := l.Change(t.Context(), half); err == nil || l.topology.find("shop/half") != nil || l.live.state.Pod("shop/half") != nil {
		t.Errorf("half a pod: %v, %v", err, l.topology.find("shop/half"))
	}

	// node-a has a terminating pod, and others; what is of no deployment stays.
	changes := strings.Join(l.do(Change{Node: &NodeEvent{Node: "node-a", Action: "drain"}}), "\n")
	if !strings.Contains(changes, "pod default/shell stays") || !strings.Contains(changes, "pod shop/web-3 is terminating") {
		t.Errorf("drain: %s", changes)
	}
	l.await("pod shop/web-3 has ended")
	for _, p := range l.Spec().Pods {
		if p.Deployment == "web" && p.Node != "node-b" {
			t.Errorf("after the drain %s is on %s", p.FullName(), p.Node)
		}
	}

	l.do(Change{Node: &NodeEvent{Node: "node-b", Action: "down"}})
	if got := l.endpoints(); strings.Count(got, "not ready") != strings.Count(got, ",")+1 {
		t.Errorf("with node-b down and node-a drained: %s", got)
	}
	var status strings.Builder
	l.fault(Fault{Kind: "loss", Host: "shell", Percent: 0.5})
	if err := l.Status().WriteText(&status); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`node-a +192.0.2.2 +10.244.0.0/24 +stopped, no new pods`, `node-b +192.0.2.3 +10.244.1.0/24 +stopped, no connection`, `default/shell +10.244.0.9 +node-a +ready`,
		`shop/web-1 +10.244.0.2 +node-a +terminating`, `shop/more +10.244.1.[0-9]+ +node-b +not ready`, `shop/web +0 of 4`, `1  loss on default/shell: 0.5% of the packets`,
	} {
		if !regexp.MustCompile("(?m)^" + want + "$").MatchString(status.String()) {
			t.Errorf("status has no %q:\n%s", want, status.String())
		}
	}
	if _, err := l.RemoveFault(t.Context(), 0); err != nil {
		t.Error(err)
	}
	l.do(Change{Node: &NodeEvent{Node: "node-b", Action: "up"}})
	l.answers("shell", "10.244.1.4:8080")

	applied := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "second"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 81, Protocol: corev1.ProtocolTCP}},
	}}
	l.do(Change{Apply: manifestOf(t, applied)})
	for _, s := range l.Objects().Services {
		if s.Name == "second" && (s.Spec.ClusterIP == "" || s.Spec.Ports[0].NodePort == 0) {
			t.Errorf("nothing is allocated for it: %+v", s.Spec)
		}
	}
}

// TestInvalidChanges: a mistake changes nothing, and the error names its field.
func TestInvalidChanges(t *testing.T) {
	t.Parallel()
	l := newLivingLab(t)
	secret := filepath.Join(t.TempDir(), "secret.yaml")
	if err := os.WriteFile(secret, []byte("secret: text"), 0o600); err != nil {
		t.Fatal(err)
	}
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.77, ports: [{port: 80}]}\n"
	before := l.state()
	for _, tt := range []struct {
		change      Change
		field, want string
	}{
		{Change{}, "", "0 changes: want one of apply, delete, scale, addPod, removePod, ready, server and node"},
		{Change{Apply: "a: b"}, "apply", "manifest:1: document 1: apiVersion: missing: not a Kubernetes object"},
		{Change{Apply: "kind: ["}, "apply", "manifest:1: document 1: "},
		{Change{Apply: service + "---\n" + service}, "apply", "manifest:6: document 2: Service shop/web: is already defined in manifest: document 1"},
		{Change{Apply: living}, "apply", "the manifest has a Lab: edit the running lab's own file instead"},
		{Change{Apply: strings.Replace(living, "metadata", "objects: ["+secret+"]\nmetadata", 1)}, "apply", "the manifest has a Lab: edit the running lab's own file instead"}, // whose objects are not read
		{Change{Apply: "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodeName: node-c}\n"}, "apply", `pod default/a: no node "node-c"`},
		{Change{Apply: "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {terminationGracePeriodSeconds: -1}\n"}, "apply", "manifest:4: document 1: Pod default/a: spec.terminationGracePeriodSeconds: -1: want a number from 0 to 3600"},
		{Change{Apply: "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n"}, "apply", "no Service, EndpointSlice, Deployment or Pod in the manifest"},
		{Change{Apply: strings.ReplaceAll(service, "10.96.0.77", "10.244.0.9")}, "", "spec.clusterIPs[0] of Service shop/web: 10.244.0.9 is the address of default/shell: change it, "},
		{Change{Apply: service + "---\n" + strings.Replace(service, "name: web", "name: other", 1)}, "", "two Services have the ClusterIP 10.96.0.77, shop/other and shop/web"},
		{Change{Delete: &Deletion{Kind: "Pod", Name: "none"}}, "delete.name", `no pod "none"`},
		{Change{Delete: &Deletion{Kind: "Node", Name: "node-a"}}, "delete.kind", `"Node": want one of Service, EndpointSlice, Pod, Deployment`},
		{Change{Scale: &Scale{Deployment: "wep", Replicas: 1}}, "scale.deployment", `no deployment "wep"`},
		{Change{Scale: &Scale{Deployment: "web", Replicas: 1001}}, "scale.replicas", "1001 replicas: want a number from 0 to 1000"},
		{Change{AddPod: &Pod{Name: "x", Node: "node-c"}}, "addPod.node", `no node "node-c"`},
		{Change{AddPod: &Pod{Name: "x", GracePeriodSeconds: new(uint16(3601))}}, "addPod.gracePeriodSeconds", "3601 seconds: want a number from 0 to 3600"},
		{Change{AddPod: &Pod{Name: "x", ReadinessProbe: new(corev1.Probe)}}, "addPod.readinessProbe", "readinessProbe: a lab supports httpGet and tcpSocket"},
		{Change{AddPod: &Pod{}}, "", "pod default/: "},
		{Change{AddPod: &Pod{Name: "x", Ports: []Port{{}}}}, "", "pod default/x: port 0: want a port from 1 to 65535"},
		{Change{AddPod: &Pod{Name: "x", Ports: []Port{{Port: 80, Protocol: decision.SCTP}}}}, "", "pod default/x: port 80/SCTP: the built-in server supports TCP and UDP"},
		{Change{AddPod: &Pod{Name: "x", Ports: []Port{{Port: 80, Server: "http"}}}}, "", `pod default/x: server "http": want dns`},
		{Change{RemovePod: &RemovePod{Pod: "none"}}, "removePod.pod", `no pod "none"`},
		{Change{RemovePod: &RemovePod{Pod: "shell", Grace: new(labapi.Duration(-1))}}, "removePod.grace", "-1ns: want a time from 0s to 1h0m0s"},
		{Change{Ready: &Readiness{Pod: "none"}}, "ready.pod", `no pod "none"`},
		{Change{Server: &Serving{Pod: "none"}}, "server.pod", `no pod "none"`},
		{Change{Node: &NodeEvent{Node: "none", Action: "up"}}, "node.node", `no node "none"`},
		{Change{Node: &NodeEvent{Node: "node-a", Action: "explode"}}, "node.action", `"explode": want one of down, up, drain, uncordon`},
	} {
		changes, err := l.Change(t.Context(), tt.change)
		e, ok := errors.AsType[*observe.Error](err)
		if !ok || e.Status != http.StatusBadRequest || e.Field != tt.field || !strings.HasPrefix(e.Message, tt.want) || !reflect.DeepEqual(l.state(), before) {
			t.Errorf("%+v: %q, %+v; want %s: %s", tt.change, changes, err, tt.field, tt.want)
		}
	}
	if _, err := l.RemoveFault(t.Context(), 5); !isStatus(err, http.StatusNotFound) {
		t.Errorf("a fault that is not there: %v", err)
	}
	if _, err := l.AddFault(t.Context(), Fault{Kind: "kill", Host: "node-a"}); !isStatus(err, http.StatusConflict) { // it has no daemon
		t.Errorf("a daemon that does not run is killed: %v", err)
	}
	// A manifest with other kinds is applied without these.
	if changes := l.do(Change{Apply: service + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\n"}); !slices.Equal(changes[:2], []string{"Service shop/web is replaced", "left out: 1 Secret"}) {
		t.Errorf("changes: %q", changes)
	}
}

func isStatus(err error, status int) bool {
	e, ok := errors.AsType[*observe.Error](err)
	return ok && e.Status == status
}

// manifestOf is the text of a Service.
func manifestOf(t *testing.T, s *corev1.Service) string {
	t.Helper()
	text, err := (&desired.Applied{Services: []*corev1.Service{s}}).Manifest()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestEdits: the file changes while the lab runs, also what commands have changed before.
func TestEdits(t *testing.T) {
	t.Parallel()
	l := newLivingLab(t)
	l.do(Change{Scale: &Scale{Deployment: "web", Replicas: 1}})
	edit := func(old, new, change string) {
		t.Helper()
		if !strings.Contains(living, old) {
			t.Fatalf("there is no %q", old)
		}
		l.save(strings.Replace(living, old, new, 1))
		l.await(change)
	}
	edit("pods:\n", "pods:\n- {name: new, node: node-b, addresses: [10.244.1.20], ports: [{port: 9, protocol: TCP}]}\n", "pod default/new is added on node-b with 10.244.1.20")
	l.expect("10.244.0.2") // the scale of the command stays
	l.answers("shell", "10.244.1.20:9")
	edit("pods:\n", "pods:\n- {name: new, node: node-b, addresses: [10.244.1.21], ports: [{port: 9}]}\n", "pod default/new is replaced")
	l.answers("shell", "10.244.1.21:9")
	// port is that of Service shop/web.
	port := func() int32 {
		for _, s := range l.Objects().Services {
			if s.Name == "web" {
				return s.Spec.Ports[0].Port
			}
		}
		return 0
	}
	web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 90, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("http")}},
	}}
	l.do(Change{Apply: manifestOf(t, web)})
	if port() != 90 {
		t.Errorf("the applied Service has port %d", port())
	}
	edit("port: 80, targetPort", "port: 81, targetPort", "Service shop/web is that of the file again")
	if port() != 81 {
		t.Errorf("after the edit the Service has port %d", port())
	}
	edit("replicas: 3", "replicas: 2", "deployment shop/web is changed")
	l.expect("10.244.0.2, 10.244.1.3") // 10.244.1.2 was an ended pod's
	l.await("pod default/new has ended")
	edit("{name: http, port: 8080}", "{name: http, port: 8080}, {port: 8081}", "deployment shop/web is changed")
	l.answers("shell", "10.244.0.4:8081")
	edit("deployments:\n- {name: web, namespace: shop", "clients:\n- {name: outside, addresses: [192.0.2.100], routesToPods: true}\ndeployments:\n- {name: web, namespace: shop", "client outside is added")
	address, _, _ := strings.Cut(l.endpoints(), ",")
	l.answers("outside", address+":8080")
	// A node that the file lacks stays, with its pods.
	edit("- {name: node-b, addresses: [192.0.2.3], podCIDRs: [10.244.1.0/24]}\npods:\n", "pods:\n- {name: last, node: node-a, addresses: [10.244.0.30]}\n", "pod default/last is added on node-a with 10.244.0.30")
}
