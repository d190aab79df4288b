package lab

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/view/objecttext"
	"github.com/nfqproxy/nfqproxy/deploy/lab/desired"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// apply applies manifests, as nfqproxy lab apply does.
func (l *livingLab) apply(text string) (string, error) {
	l.Helper()
	o, err := labfile.LoadApplied(strings.NewReader(text), []string{"-"})
	if err != nil {
		l.Fatal(err)
	}
	a, err := desired.Applicable(o, "the test")
	if err != nil {
		l.Fatal(err)
	}
	if text, err = a.Manifest(); err != nil {
		l.Fatal(err)
	}
	changes, err := l.Change(l.Context(), Change{Apply: text})
	return strings.Join(changes, "\n"), err
}

// get is the output of nfqproxy lab get.
func (l *livingLab) get(format, kinds, name string) string {
	l.Helper()
	o := l.Objects()
	var err error
	s := objecttext.Selection{Namespace: "shop", Name: name}
	for kind := range strings.SplitSeq(kinds, ",") {
		if kind, err = objecttext.KindOf(kind); err != nil {
			l.Fatal(err)
		}
		s.Kinds = append(s.Kinds, kind)
	}
	objects, err := objecttext.Select(o, s)
	if err != nil {
		l.Fatal(err)
	}
	var b strings.Builder
	if err := objecttext.Write(&b, objects, format, name != ""); err != nil {
		l.Fatal(err)
	}
	return b.String()
}

// TestApply: what is got can be edited and applied, and deleted.
func TestApply(t *testing.T) {
	t.Parallel()
	l := newLivingLab(t)
	lines := func(text string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !slices.Contains(strings.Split(text, "\n"), w) {
				t.Errorf("there is no line %q in:\n%s", w, text)
			}
		}
	}
	edit := func(text string, pairs ...string) string {
		t.Helper()
		if edited := strings.NewReplacer(pairs...).Replace(text); edited != text {
			return edited
		}
		t.Fatalf("nothing to replace by %q in:\n%s", pairs, text)
		return ""
	}
	must := func(text string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}

	// All unchanged: pods, deployments and endpoints stay.
	before := l.get("text", "eps,po,deploy", "")
	lines(must(l.apply(l.get("yaml", "svc,eps,deploy,po", ""))), "Service shop/web is replaced", "deployment shop/web is unchanged", "pod shop/web-1 is unchanged")
	if after := l.get("text", "eps,po,deploy", ""); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}

	// The number of pods, and then the port.
	deployment := l.get("json", "deploy", "web")
	lines(must(l.apply(edit(deployment, `"replicas": 3`, `"replicas": 1`))), "deployment shop/web is changed")
	l.expect("10.244.0.2")
	lines(must(l.apply(edit(deployment, `"replicas": 3`, `"replicas": 1`, "8080", "8081", `"image": "answer"`, `"image": "nginx:1.29"`))),
		"pod shop/web-1 is terminating, and ends in 0s", "deployment shop/web: container answer runs the built-in server, not the image nginx:1.29", "pod shop/web-4 is added on node-a with 10.244.0.4")
	l.answers("shell", "10.244.0.4:8081")

	// A pod that loses its deployment's labels is replaced, and lives on.
	lines(must(l.apply(edit(l.get("yaml", "po", "web-4"), "app: web", "app: debug"))),
		"pod shop/web-4 is changed", "pod shop/web-4 no longer has the labels of deployment shop/web, which replaces it", "pod shop/web-5 is added on node-a with 10.244.0.5")
	l.answers("shell", "10.244.0.4:8081")
	if got := l.get("text", "eps", ""); strings.Contains(got, "10.244.0.4 ") || !strings.Contains(got, "10.244.0.5 ") {
		t.Errorf("EndpointSlices:\n%s", got)
	}

	// A pod of its own, and a Service that selects nothing.
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: own, namespace: shop, labels: {app: own}}\nspec: {nodeName: %s, containers: [{name: a, ports: [{name: http, containerPort: %d}]}]}\n"
	lines(must(l.apply(fmt.Sprintf(pod, "node-b", 70))), "pod shop/own is added on node-b with 10.244.1.3")
	l.answers("shell", "10.244.1.3:70")
	lines(must(l.apply(fmt.Sprintf(pod, "node-b", 71))), "pod shop/own is changed")
	l.answers("shell", "10.244.1.3:71")
	for text, want := range map[string]string{
		fmt.Sprintf(pod, "node-a", 71):                                   "pod shop/own: spec.nodeName: it is on node-b, and pods do not move: delete it first",
		strings.Replace(fmt.Sprintf(pod, "node-c", 71), "own", "new", 2): `pod shop/new: no node "node-c" (did you mean "node-a"?); the lab has node-a, node-b`,
	} {
		if _, err := l.apply(text); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	must(l.apply("apiVersion: v1\nkind: Service\nmetadata: {name: empty, namespace: shop}\nspec: {selector: {app: nothing}, ports: [{port: 80}]}\n"))
	if got := l.get("text", "eps", ""); !regexp.MustCompile(` empty +<none> +<none>\n`).MatchString(got) {
		t.Errorf("EndpointSlices:\n%s", got)
	}
	if got := l.get("text", "svc", "empty"); !strings.Contains(got, "app=nothing") {
		t.Errorf("Service:\n%s", got)
	}

	// EndpointSlices that are made of pods cannot be written; those of a Service without a selector can.
	slice := l.get("yaml", "eps", "")
	if got := must(l.apply(slice)); strings.Count(got, "is left out: the lab makes it from the pods that Service ") != 2 {
		t.Errorf("%s", got)
	}
	const own = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: hand, namespace: shop, labels: {kubernetes.io/service-name: hand}}\naddressType: IPv4\nendpoints: [{addresses: [10.244.0.9]}]\n"
	lines(must(l.apply(own)), "EndpointSlice shop/hand is added")
	lines(must(l.apply(own)), "EndpointSlice shop/hand is replaced")

	for _, d := range []struct{ kind, name, want string }{
		{"Service", "empty", "Service shop/empty is deleted"},
		{"Service", "web", "Service shop/web is deleted"}, // of the file
		{"EndpointSlice", "shop/hand", "EndpointSlice shop/hand is deleted"},
		{"Pod", "own", "pod shop/own is terminating, and ends in 2s"},
		{"Pod", "web-5", "pod shop/web-6 is added on node-a with 10.244.0.6"},
		{"Deployment", "web", "deployment shop/web is removed"},
	} {
		lines(strings.Join(l.do(Change{Delete: &Deletion{Kind: d.kind, Name: d.name}}), "\n"), d.want)
	}
	if got := l.get("text", "svc,eps,deploy", ""); got != "No objects found.\n" {
		t.Errorf("after all is deleted:\n%s", got)
	}
	for _, d := range []struct{ kind, name, want string }{
		{"Service", "web", `no Service "web"`}, {"Pod", "own", "pod shop/own is already terminating"}, {"Deployment", "web", `no deployment "web": the lab has none`}, {"Node", "node-a", `"Node": want one of Service, EndpointSlice, Pod, Deployment`},
	} {
		if _, err := l.Change(t.Context(), Change{Delete: &Deletion{Kind: d.kind, Name: d.name}}); err == nil || !strings.Contains(err.Error(), d.want) {
			t.Errorf("%v: %v", d, err)
		}
	}
	// Of a Service that a command has deleted, the file's is in force again when it changes.
	l.save(strings.Replace(living, "port: 80,", "port: 82,", 1))
	l.await("Service shop/web is that of the file again")
	if got := l.get("text", "svc", "web"); !strings.Contains(got, "82/TCP") {
		t.Errorf("%s", got)
	}
}

// TestDeleteMadeSlice: an EndpointSlice that a Service's selector makes cannot be deleted.
func TestDeleteMadeSlice(t *testing.T) {
	t.Parallel()
	l := newLivingLab(t)
	name := l.Objects().EndpointSlices[0].Name
	if _, err := l.Change(t.Context(), Change{Delete: &Deletion{Kind: "EndpointSlice", Name: name}}); err == nil || !strings.Contains(err.Error(), "is made from the pods that a Service selects") {
		t.Error(err)
	}
}
