package objecttext

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

const objects = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, "fd00:10:96::1"], externalIPs: [192.0.2.7], selector: {tier: front, app: web}, ports: [{name: http, port: 80, nodePort: 30080}, {name: dns, port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: other}
spec: {type: ExternalName, externalName: example.org}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}, {port: 53, protocol: UDP}]
endpoints:
- {addresses: [10.0.0.1], nodeName: a, targetRef: {kind: Pod, name: web-1}, conditions: {ready: true, serving: true, terminating: false}}
- {addresses: [10.0.0.2], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.0.0.3]}
- {addresses: [10.0.0.4], conditions: {ready: false}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-2, namespace: shop}
addressType: IPv6
endpoints: []
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {replicas: 3, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}}}
status: {readyReplicas: 2}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web, b: c}}
spec: {nodeName: a, containers: [{name: a}, {name: b}]}
status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-2, namespace: shop, deletionTimestamp: "2026-01-01T00:00:00Z"}
status: {phase: Running, podIP: 10.0.0.2, conditions: [{type: Ready, status: "False"}]}
---
apiVersion: v1
kind: Node
metadata: {name: a}
spec: {podCIDRs: [10.0.0.0/24, "fd00::/64"]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: Hostname, address: a}]}
---
apiVersion: v1
kind: Node
metadata: {name: b}
spec: {podCIDR: 10.0.1.0/24, unschedulable: true}
status: {conditions: [{type: Ready, status: Unknown}]}
`

const all = `NAMESPACE   NAME            TYPE           CLUSTER-IP                EXTERNAL-IP   PORT(S)           SELECTOR
default     service/other   ExternalName   <none>                    example.org   <none>            <none>
shop        service/web     NodePort       10.96.0.1,fd00:10:96::1   192.0.2.7     80:30080/TCP,53/UDP   app=web,tier=front

NAMESPACE   NAME                  SERVICE   PORTS                ADDRESS    READY   SERVING   TERMINATING   TARGET   NODE
shop        endpointslice/web-1   web       http:8080/TCP,53/UDP   10.0.0.1   true    true      false         web-1    a
shop        endpointslice/web-1   web       http:8080/TCP,53/UDP   10.0.0.2   false   true      true          <none>   <none>
shop        endpointslice/web-1   web       http:8080/TCP,53/UDP   10.0.0.3   true    true      false         <none>   <none>
shop        endpointslice/web-1   web       http:8080/TCP,53/UDP   10.0.0.4   false   false     false         <none>   <none>
shop        endpointslice/web-2   <none>    <none>               <none>

NAMESPACE   NAME             READY   SELECTOR
shop        deployment/web   2/3     app=web

NAMESPACE   NAME        READY   STATUS        IP                 NODE     LABELS
shop        pod/web-1   2/2     Running       10.0.0.1,fd00::1   a        app=web,b=c
shop        pod/web-2   0/1     Terminating   10.0.0.2           <none>   <none>

NAME     STATUS                        INTERNAL-IP   POD-CIDRS
node/a   Ready                         192.0.2.1     10.0.0.0/24,fd00::/64
node/b   NotReady,SchedulingDisabled   <none>        10.0.1.0/24
`

func load(t *testing.T, text string) *manifest.Objects {
	t.Helper()
	o, err := labfile.LoadApplied(strings.NewReader(text), []string{"-"})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func print(t *testing.T, o *manifest.Objects, s Selection, format string) string {
	t.Helper()
	selected, err := Select(o, s)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Write(&b, selected, format, s.Name != ""); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// cells are the words of each line: the widths of columns are text/tabwriter's.
func cells(text string) (all [][]string) {
	for line := range strings.Lines(text) {
		all = append(all, strings.Fields(line))
	}
	return all
}

func TestText(t *testing.T) {
	o := load(t, objects)
	if got := print(t, o, Selection{}, "text"); !slices.EqualFunc(cells(got), cells(all), slices.Equal) {
		t.Errorf("got\n%s\nwant\n%s", got, all)
	}
	const one = "NAMESPACE   NAME    READY   STATUS    IP                 NODE   LABELS\nshop        web-1   2/2     Running   10.0.0.1,fd00::1   a      app=web,b=c\n"
	for _, name := range []string{"web-1", "shop/web-1"} {
		if got := print(t, o, Selection{Kinds: []string{"Pod"}, Name: name}, "text"); got != one {
			t.Errorf("got\n%s\nwant\n%s", got, one)
		}
	}
	if got := print(t, o, Selection{Kinds: []string{"Pod"}, Namespace: "nowhere"}, "text"); got != "No objects found.\n" {
		t.Errorf("got %s", got)
	}
	if got := print(t, o, Selection{Kinds: []string{"Pod", "Node"}, Namespace: "shop"}, "name"); got != "pod/web-1\npod/web-2\nnode/a\nnode/b\n" {
		t.Errorf("names in a namespace, and of what has none:\n%s", got)
	}
	if _, err := Select(o, Selection{Kinds: []string{"Pod"}, Name: "wbe-1"}); err == nil || err.Error() != `no Pod "wbe-1" (did you mean "shop/web-1"?); there are: shop/web-1, shop/web-2` {
		t.Error(err)
	}
	if _, err := Select(o, Selection{Kinds: []string{"Pod"}, Namespace: "nowhere", Name: "web-1"}); err == nil || err.Error() != `no Pod "web-1": there are none` {
		t.Error(err)
	}
}

// TestAgain: what is printed as YAML and JSON is read as the same objects.
func TestAgain(t *testing.T) {
	o := load(t, objects)
	for _, format := range []string{"yaml", "json"} {
		text := print(t, o, Selection{}, format)
		if again := print(t, load(t, text), Selection{}, "text"); !slices.EqualFunc(cells(again), cells(all), slices.Equal) {
			t.Errorf("%s: got\n%s\nwant\n%s", format, again, all)
		}
		if one := print(t, o, Selection{Kinds: []string{"Service"}, Name: "web"}, format); strings.Contains(one, "items") || len(load(t, one).Services) != 1 {
			t.Errorf("one object as %s:\n%s", format, one)
		}
	}
}

func TestKinds(t *testing.T) {
	for text, want := range map[string]string{"svc": "Service", "Services": "Service", "ENDPOINTSLICE": "EndpointSlice", "endpoints": "EndpointSlice", "eps": "EndpointSlice", "po": "Pod", "nodes": "Node", "no": "Node", "deploy": "Deployment"} {
		if got, err := KindOf(text); got != want || err != nil {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	if _, err := KindOf("service s"); err == nil || !strings.Contains(err.Error(), `no kind "service s" (did you mean "services"?): want one of services,`) {
		t.Error(err)
	}
}
