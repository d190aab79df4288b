package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

const (
	webService = `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.20, ports: [{port: 80}]}
`
	webSlice = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-a, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.244.1.2]}]
ports: [{port: 8080}]
`
	workerNode = `apiVersion: v1
kind: Node
metadata: {name: worker}
status: {addresses: [{type: InternalIP, address: 172.20.0.2}, {type: Hostname, address: worker}]}
`
	webPod = `apiVersion: v1
kind: Pod
metadata: {name: web-0, creationTimestamp: "2024-04-17T18:14:59Z"}
spec:
  containers:
  - name: web
    image: nginx
    resources: {limits: {memory: 64Mi, cpu: 1}}
    livenessProbe: {httpGet: {port: http}}
status: {podIP: 10.244.1.2, podIPs: [{ip: 10.244.1.2}], hostIP: 172.20.0.2}
`
)

// loadBytes is Load for one file that is in memory.
func loadBytes(name string, data []byte) (*Objects, error) {
	l := newLoader(Options{})
	l.take(file{name: name, data: data})
	return l.result()
}

func stream(docs ...string) string { return strings.Join(docs, "---\n") }

// items makes documents the items of a YAML list.
func items(docs ...string) string {
	var b strings.Builder
	for _, d := range docs {
		lead := "- "
		for line := range strings.Lines(d) {
			b.WriteString(lead + line)
			lead = "  "
		}
	}
	return b.String()
}

// kept lists the names of the kept objects, in the order they are kept.
func kept(o *Objects) []string {
	var names []string
	for _, s := range o.Services {
		names = append(names, "Service "+s.Namespace+"/"+s.Name)
	}
	for _, s := range o.EndpointSlices {
		names = append(names, "EndpointSlice "+s.Namespace+"/"+s.Name)
	}
	for _, n := range o.Nodes {
		names = append(names, "Node "+n.Namespace+"/"+n.Name)
	}
	for _, p := range o.Pods {
		names = append(names, "Pod "+p.Namespace+"/"+p.Name)
	}
	return names
}

func mustLoad(t *testing.T, name, content string) *Objects {
	t.Helper()
	o, err := loadBytes(name, []byte(content))
	if err != nil {
		t.Fatalf("%v\nin:\n%s", err, content)
	}
	return o
}

// lineOf is the line in an error; TestErrorsNameThePlace has lines, and most other tests leave them out.
var lineOf = regexp.MustCompile(`(?m)^(a\.yaml|lab\.yaml):\d+: `)

// wantErrors checks all errors of one file, exactly, but for lines that none of them has.
func wantErrors(t *testing.T, name, content string, want ...string) {
	t.Helper()
	o, err := loadBytes(name, []byte(content))
	if err == nil {
		t.Fatalf("no error, but %v, in:\n%s", kept(o), content)
	}
	if o != nil {
		t.Errorf("objects beside an error: %v", kept(o))
	}
	text := err.Error()
	if !slices.ContainsFunc(want, lineOf.MatchString) {
		text = lineOf.ReplaceAllString(text, "$1: ")
	}
	if got := strings.Split(text, "\n"); !slices.Equal(got, want) {
		t.Errorf("errors:\n %s\nwant:\n %s\nin:\n%s", strings.Join(got, "\n "), strings.Join(want, "\n "), content)
	}
}

func TestKeptObjects(t *testing.T) {
	all := []string{"Service default/web", "EndpointSlice default/web-a", "Node /worker", "Pod default/web-0"}
	tests := []struct {
		name, file, content string
		want                []string
	}{
		{"documents of a YAML stream", "lab.yaml", stream(webService, webSlice, workerNode, webPod), all},
		{"order in the file does not matter", "lab.yaml", stream(webPod, workerNode, webSlice, webService), all},
		{"items of a v1 List", "lab.yaml",
			"apiVersion: v1\nkind: List\nmetadata: {resourceVersion: \"\", selfLink: \"\"}\nitems:\n" + items(webService, webSlice, workerNode, webPod), all},
		{"a ServiceList", "lab.yaml", "apiVersion: v1\nkind: ServiceList\nitems:\n" + items(webService), all[:1]},
		{"items of a typed list may leave out their type", "lab.yaml",
			"apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nmetadata: {resourceVersion: \"7\"}\nitems:\n- metadata: {name: web-a}\n  addressType: IPv4\n", all[1:2]},
		{"a NodeList", "lab.yaml", "apiVersion: v1\nkind: NodeList\nitems:\n" + items(workerNode), all[2:3]},
		{"a PodList", "lab.yaml", "apiVersion: v1\nkind: PodList\nitems:\n" + items(webPod), all[3:]},
		{"an empty List", "lab.yaml", "apiVersion: v1\nkind: List\nitems: []\n", nil},
		{"a List without items", "lab.yaml", "apiVersion: v1\nkind: List\n", nil},
		{"JSON", "lab.json", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"clusterIP":"10.96.0.20","ports":[{"port":80}]}}`, all[:1]},
		{"a JSON List with tabs", "lab.json",
			"{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"List\",\n\t\"items\": [\n\t\t{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"metadata\": {\"name\": \"worker\"}}\n\t]\n}\n", all[2:3]},
		{"JSON values one after the other, whatever the file's name", "lab.yaml",
			`{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}` + "\n" + `{"apiVersion":"v1","kind":"Node","metadata":{"name":"b"}}`,
			[]string{"Node /a", "Node /b"}},
		{"YAML with braces", "lab.yaml", "{apiVersion: v1, kind: Node, metadata: {name: worker}}\n---\n" + webService, []string{"Service default/web", "Node /worker"}},
		{"YAML in a file of another name", "lab", webService, all[:1]},
		{"anchors, aliases and merges", "lab.yaml",
			"apiVersion: v1\nkind: List\nitems:\n- metadata: {name: a, labels: &l {app: web}}\n  apiVersion: &version v1\n  kind: Node\n- {apiVersion: *version, kind: Node, metadata: {name: b, labels: {<<: *l, zone: c}}}\n",
			[]string{"Node /a", "Node /b"}},
		{"sorted by namespace and name", "lab.yaml",
			stream(strings.Replace(webService, "web", "zoo", 1), strings.Replace(webService, "{name: web}", "{name: web, namespace: shop}", 1), webService),
			[]string{"Service default/web", "Service default/zoo", "Service shop/web"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := mustLoad(t, tt.file, tt.content)
			if got := kept(o); !slices.Equal(got, tt.want) {
				t.Errorf("kept %v, want %v", got, tt.want)
			}
			if o.Empty() != (len(tt.want) == 0) {
				t.Errorf("Empty() = %t with %v", o.Empty(), tt.want)
			}
			if !slices.Equal(o.Files, []string{tt.file}) {
				t.Errorf("files %v", o.Files)
			}
		})
	}
}

func TestOtherKindsAreSkippedAndCounted(t *testing.T) {
	o := mustLoad(t, "lab.yaml", stream(
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nwhatever: {x: 1, x: 2}\n",
		webService,
		"apiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\n",
		"apiVersion: discovery.k8s.io/v1alpha1\nkind: EndpointSlice\nmetadata: {name: old}\naddressType: IP\n",
		"apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: web}\n",
		"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List, items: [{apiVersion: apps/v1, kind: Deployment}]}, {apiVersion: v1, kind: ConfigMap, data: {a: 1, a: 2}}]\n",
		"apiVersion: apps/v1\nkind: DaemonSetList\nitems: [{}]\n",
	))
	want := []Skipped{
		{"v1", "ConfigMap", 1},
		{"apps/v1", "DaemonSet", 1},
		{"apps/v1", "Deployment", 2},
		{"discovery.k8s.io/v1alpha1", "EndpointSlice", 1},
		{"serving.knative.dev/v1", "Service", 1},
	}
	if !reflect.DeepEqual(o.Skipped, want) {
		t.Errorf("skipped %v, want %v", o.Skipped, want)
	}
	if got := kept(o); !slices.Equal(got, []string{"Service default/web"}) {
		t.Errorf("kept %v", got)
	}
}

// TestEndpointSlicesOfBeta: those of v1beta1 are read as those of v1; the node and the zone of an endpoint were in its topology.
func TestEndpointSlicesOfBeta(t *testing.T) {
	const endpoints = "endpoints: [{addresses: [10.244.1.2], conditions: {ready: true}, topology: {kubernetes.io/hostname: node-a, topology.kubernetes.io/zone: z, topology.kubernetes.io/region: r}}, " +
		"{addresses: [10.244.2.2], nodeName: node-b, topology: {kubernetes.io/hostname: label-b}}, {addresses: [10.244.3.2]}]\n"
	slice := "metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{port: 80}]\n" + endpoints
	for name, text := range map[string]string{
		"alone":  "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\n" + slice,
		"listed": "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSliceList\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(slice), "\n", "\n  ") + "\n",
	} {
		o := mustLoad(t, "old.yaml", text)
		if len(o.EndpointSlices) != 1 || len(o.EndpointSlices[0].Endpoints) != 3 {
			t.Fatalf("%s: %+v", name, o)
		}
		e := o.EndpointSlices[0].Endpoints
		if e[0].NodeName == nil || *e[0].NodeName != "node-a" || e[0].Zone == nil || *e[0].Zone != "z" || e[1].NodeName == nil || *e[1].NodeName != "node-b" || e[1].Zone != nil || e[2].NodeName != nil {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

func TestNothingInAFileIsNoError(t *testing.T) {
	for _, content := range []string{"", "\n\n", "# only a comment\n", "---\n---\n# x\n---\n", "null\n", "\xef\xbb\xbf"} {
		if o := mustLoad(t, "lab.yaml", content); !o.Empty() || len(o.Files) != 1 {
			t.Errorf("%q: %+v", content, o)
		}
	}
}

func TestErrorsNameThePlace(t *testing.T) {
	slice := func(spec string) string {
		return "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: dns-a, namespace: kube-system}\n" + spec
	}
	service := func(spec string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec:\n" + spec
	}
	tests := []struct {
		name, content string
		want          []string
	}{
		{"bad address in the third document", stream(webService, workerNode, slice("addressType: IPv4\nendpoints: [{addresses: [10.0.0.300]}]\n")),
			[]string{`lab.yaml:15: document 3: EndpointSlice kube-system/dns-a: endpoints[0].addresses[0]: "10.0.0.300" is not an IPv4 address`}},
		{"item of a List", "# a comment\n---\napiVersion: v1\nkind: List\nitems:\n" + items(webService, service("  ports: [{port: 70000}]\n  clusterIP: 10.0.0.1\n")),
			[]string{"lab.yaml:14: document 1: items[1]: Service shop/web: spec.ports[0].port: 70000 is not a port number (1 to 65535)"}},
		{"unknown field", service("  ports: [{port: 80, prot: TCP}]\n"),
			[]string{"lab.yaml:5: document 1: Service shop/web: spec.ports[0].prot: unknown field"}},
		{"field in the wrong case", service("  clusterip: 10.0.0.1\n  ports: [{port: 80}]\n"),
			[]string{`lab.yaml: document 1: Service shop/web: spec.clusterip: unknown field, did you mean "clusterIP"?`}},
		{"metadata's fields are not fields of the object", "apiVersion: v1\nkind: Node\nname: a\nmetadata: {name: a}\n",
			[]string{"lab.yaml: document 1: Node a: name: unknown field"}},
		{"first field indented", "---\n\n apiVersion: v1\n\nkind: Service\nmetadata: {name: web}\n",
			[]string{"lab.yaml:5: document 1: a field is indented less than the first one: want all fields of an object in one column"}},
		{"duplicate key", service("  ports:\n  - port: 80\n    port: 81\n"),
			[]string{"lab.yaml: document 1: Service shop/web: spec.ports[0].port: given twice"}},
		{"duplicate key in an item", "apiVersion: v1\nkind: List\nitems:\n" + items(workerNode, service("  ports: [{port: 80}]\n  clusterIP: 10.0.0.1\n  clusterIP: 10.0.0.2\n")),
			[]string{"lab.yaml: document 1: items[1]: Service shop/web: spec.clusterIP: given twice"}},
		{"merged key that is given again", "apiVersion: v1\nkind: Node\nmetadata: {name: a, annotations: &a {x: one}, labels: {x: two, <<: *a}}\n",
			[]string{"lab.yaml: document 1: Node a: metadata.labels.x: given twice"}},
		{"duplicate key in a List", "apiVersion: v1\nkind: List\nkind: List\n",
			[]string{"lab.yaml: document 1: List: kind: given twice"}},
		{"duplicate key in JSON", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"a","name":"b"}}`,
			[]string{"lab.yaml: document 1: Node b: metadata.name: given twice"}},
		{"duplicate key in a JSON List", `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"},"spec":{},"spec":{}}]}`,
			[]string{"lab.yaml: document 1: items[0]: Node a: spec: given twice"}},
		{"number for a string", service("  ports: [{port: 80, name: 80}]\n"),
			[]string{"lab.yaml: document 1: Service shop/web: spec.ports[0].name: want a string, have 80: quote it"}},
		{"string for a number", service("  ports: [{port: http}]\n"),
			[]string{`lab.yaml: document 1: Service shop/web: spec.ports[0].port: want an integer, have the string "http"`}},
		{"fraction for a number", service("  ports: [{port: 80.5}]\n"),
			[]string{"lab.yaml: document 1: Service shop/web: spec.ports[0].port: want an integer, have 80.5"}},
		{"number beyond its type", service("  ports: [{port: 4294967376}]\n"), // 80 in 32 bits
			[]string{"lab.yaml: document 1: Service shop/web: spec.ports[0].port: 4294967376 is out of range"}},
		{"number beyond any type", service("  ports: [{port: 18446744073709551615}]\n"),
			[]string{"lab.yaml: document 1: Service shop/web: spec.ports[0].port: want an integer, have 1.8446744073709552e+19"}},
		{"object for a list", service("  ports: {port: 80}\n"),
			[]string{"lab.yaml: document 1: Service shop/web: spec.ports: want a list, have an object"}},
		{"string for an object", service("  ports: [http]\n"),
			[]string{`lab.yaml: document 1: Service shop/web: spec.ports[0]: want an object, have the string "http"`}},
		{"string for a boolean", slice("addressType: IPv4\nendpoints: [{addresses: [10.0.0.1], conditions: {ready: \"yes\"}}]\n"),
			[]string{`lab.yaml: document 1: EndpointSlice kube-system/dns-a: endpoints[0].conditions.ready: want true or false, have the string "yes"`}},
		{"number for a label", "apiVersion: v1\nkind: Node\nmetadata: {name: a, labels: {zone: 1}}\n",
			[]string{"lab.yaml: document 1: Node a: metadata.labels[zone]: want a string, have 1: quote it"}},
		{"a word that YAML takes for false", "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n",
			[]string{"lab.yaml: document 1: Node: metadata.name: want a string, have false: quote it"}},
		{"list for a string", "apiVersion: v1\nkind: Node\nmetadata: {name: []}\n",
			[]string{"lab.yaml: document 1: Node: metadata.name: want a string, have a list"}},
		{"time in a form of its own", "apiVersion: v1\nkind: Node\nmetadata: {name: a, creationTimestamp: yesterday}\n",
			[]string{`lab.yaml: document 1: Node a: metadata.creationTimestamp: parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006"`}},
		{"all errors of one object", service("  type: NodePorts\n  ports: [{port: 0, protocol: tcp}]\n"),
			[]string{
				`lab.yaml: document 1: Service shop/web: spec.type: "NodePorts" is none of ClusterIP, NodePort, LoadBalancer, ExternalName`,
				"lab.yaml: document 1: Service shop/web: spec.ports[0].port: 0 is not a port number (1 to 65535)",
				`lab.yaml: document 1: Service shop/web: spec.ports[0].protocol: "tcp" is none of TCP, UDP, SCTP`,
			}},
		{"errors of all documents", stream(service("  ports: [{port: 0}]\n"), "kind: [\n", webService, slice("addressType: IPv5\n")),
			[]string{
				"lab.yaml:5: document 1: Service shop/web: spec.ports[0].port: 0 is not a port number (1 to 65535)",
				"lab.yaml:7: document 2: did not find expected node content",
				`lab.yaml:17: document 4: EndpointSlice kube-system/dns-a: addressType: "IPv5" is none of IPv4, IPv6, FQDN`,
			}},
		{"no kind", "apiVersion: v1\n", []string{"lab.yaml: document 1: kind: missing: not a Kubernetes object"}},
		{"no apiVersion", "kind: Service\n", []string{"lab.yaml: document 1: apiVersion: missing: not a Kubernetes object"}},
		{"kind of another type", "apiVersion: v1\nkind: {}\n", []string{"lab.yaml: document 1: kind: want a string, have an object"}},
		{"misspelt kind", stream("apiVersion: v1\nkind: Servic\nmetadata: {name: web}\n", "apiVersion: discovery.k8s.io/v1\nkind: endpointslice\nmetadata: {name: web}\n"),
			[]string{`lab.yaml: document 1: kind: v1 has no kind "Servic" (did you mean "Service"?)`, `lab.yaml: document 2: kind: discovery.k8s.io/v1 has no kind "endpointslice" (did you mean "EndpointSlice"?)`}},
		{"item without kind", "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1}]\n",
			[]string{"lab.yaml: document 1: items[0]: kind: missing: not a Kubernetes object"}},
		{"item that is null", "apiVersion: v1\nkind: List\nitems: [null]\n",
			[]string{"lab.yaml: document 1: items[0]: not a Kubernetes object: want apiVersion, kind and so on, have nothing"}},
		{"items that are no list", "apiVersion: v1\nkind: List\nitems: {}\n",
			[]string{"lab.yaml: document 1: List: items: want a list, have an object"}},
		{"unknown field of a List", "apiVersion: v1\nkind: List\nitem: []\n",
			[]string{"lab.yaml: document 1: List: item: unknown field"}},
		{"List within a List", "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Node}], item: 1}]\n",
			[]string{"lab.yaml: document 1: items[0]: List: item: unknown field", "lab.yaml: document 1: items[0]: Node: metadata.name: missing"}},
		{"text", "hello\n", []string{`lab.yaml: document 1: not a Kubernetes object: want apiVersion, kind and so on, have the string "hello"`}},
		{"a list at the top", "- a\n", []string{"lab.yaml: document 1: not a Kubernetes object: want apiVersion, kind and so on, have a list"}},
		{"no name", "apiVersion: v1\nkind: Node\n", []string{"lab.yaml: document 1: Node: metadata.name: missing"}},
		{"defined twice", stream(webService, workerNode, webService),
			[]string{"lab.yaml: document 3: Service default/web: is already defined in lab.yaml: document 1"}},
		{"defined twice, once with the default namespace written down, once in a List",
			stream("apiVersion: v1\nkind: List\nitems:\n"+items(workerNode, webService), strings.Replace(webService, "{name: web}", "{name: web, namespace: default}", 1)),
			[]string{"lab.yaml: document 2: Service default/web: is already defined in lab.yaml: document 1: items[1]"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { wantErrors(t, "lab.yaml", tt.content, tt.want...) })
	}
}

func TestSameNameInAnotherNamespaceOrKindIsNoDuplicate(t *testing.T) {
	o := mustLoad(t, "lab.yaml", stream(webService,
		strings.Replace(webService, "{name: web}", "{name: web, namespace: shop}", 1),
		strings.Replace(workerNode, "worker", "web", 1)))
	if len(o.Services) != 2 || len(o.Nodes) != 1 {
		t.Errorf("kept %v", kept(o))
	}
}

func TestManyErrorsAreCut(t *testing.T) {
	var docs []string
	for i := range 25 {
		docs = append(docs, fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: n%d}\nx: 1\n", i))
	}
	_, err := loadBytes("lab.yaml", []byte(stream(docs...)))
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 21 || lines[19] != "lab.yaml:99: document 20: Node n19: x: unknown field" || lines[20] != "and 5 more" {
		t.Errorf("%d lines, the last: %q", len(lines), lines[len(lines)-1])
	}
	if errs, _ := errors.AsType[Errors](err); len(errs) != 25 || len(errs.Unwrap()) != 25 {
		t.Errorf("%d errors kept, want all 25", len(errs))
	}
}

// TestFieldsOfANewerAPIServerAreLeftOut: what kubectl prints is taken as it is, but for
// objects that were written by hand an unknown field is misspelt.
func TestFieldsOfANewerAPIServerAreLeftOut(t *testing.T) {
	const object = `apiVersion: v1
kind: Service
metadata: {name: %s, uid: 4c6f0a2e-0000-4000-8000-000000000001}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80, novelty: 1}], trafficNovelty: {a: b}}
`
	text := stream(fmt.Sprintf(object, "a"), fmt.Sprintf(object, "b"))
	o, err := loadBytes("a.yaml", []byte(text))
	if err != nil || len(o.Services) != 2 {
		t.Fatalf("%+v, %v", o, err)
	}
	want := []string{
		"a.yaml: document 1: Service default/a: spec.ports[0].novelty: unknown field, left out: the API server is newer than this program (and 1 times more)",
		"a.yaml: document 1: Service default/a: spec.trafficNovelty: unknown field, left out: the API server is newer than this program (and 1 times more)",
	}
	if !slices.Equal(o.Warnings, want) {
		t.Errorf("warnings %q, want %q", o.Warnings, want)
	}
	byHand := strings.Replace(fmt.Sprintf(object, "a"), ", uid: 4c6f0a2e-0000-4000-8000-000000000001", "", 1)
	if _, err := loadBytes("a.yaml", []byte(byHand)); err == nil || !strings.Contains(err.Error(), "spec.trafficNovelty: unknown field") {
		t.Errorf("by hand: %v", err)
	}
	misspelt := strings.Replace(text, "clusterIP", "clusterip", 1)
	if _, err := loadBytes("a.yaml", []byte(misspelt)); err == nil || !strings.Contains(err.Error(), `spec.clusterip: unknown field, did you mean "clusterIP"?`) {
		t.Errorf("misspelt: %v", err)
	}
}

// TestLoadText: a text is read as a file is.
func TestLoadText(t *testing.T) {
	o, err := Options{}.LoadText("the text", webService)
	if err != nil || len(o.Services) != 1 || !slices.Equal(o.Files, []string{"the text"}) {
		t.Fatalf("%+v, %v", o, err)
	}
	if _, err := (Options{}).LoadText("the text", "a: b"); err == nil || !strings.HasPrefix(err.Error(), "the text:1: document 1: ") {
		t.Errorf("no object: %v", err)
	}
}

// TestEncodings: files that PowerShell writes are read, and compressed ones are refused.
func TestEncodings(t *testing.T) {
	for name, order := range map[string]binary.AppendByteOrder{"little end first": binary.LittleEndian, "big end first": binary.BigEndian} {
		wide := order.AppendUint16(nil, 0xfeff)
		for _, u := range utf16.Encode([]rune("# ü €\n" + webService)) {
			wide = order.AppendUint16(wide, u)
		}
		if o, err := loadBytes("a.yaml", wide); err != nil || len(o.Services) != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantErrors(t, "a.yaml", "\x1f\x8b\x08\x00", "a.yaml: the file is compressed: want what gunzip makes of it")
}
