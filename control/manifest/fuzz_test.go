package manifest

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
)

// FuzzLoad looks for files that make the reader panic, or accept what it did not
// understand.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		"", "---\n", "null", "[]", "{}", "a: &a [*a]", "\xff\xfe",
		webService, webSlice, workerNode, webPod,
		stream(webService, webSlice, workerNode, webPod),
		"apiVersion: v1\nkind: List\nitems:\n" + items(webService, webPod),
		`{"apiVersion":"v1","kind":"ServiceList","items":[{"metadata":{"name":"a"},"spec":{"ports":[{"port":1}]}}]}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","name":"b"},"spec":{"clusterIPs":["::1",""]}}`,
		"apiVersion: v1\nkind: Service\nmetadata: {<<: {name: a}, managedFields: [{fieldsV1: {a: 1}}]}\nspec: {sessionAffinity: ClientIP}\n",
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nendpoints: [null]\nports: [null, {}]\n",
		bomb(2),
		"$ kubectl describe svc,ep web\nName:  web\nNamespace:  shop\nLabels:  app=web\nAnnotations:  example.com/a: b\nType:  NodePort\nIP:  10.96.1.2\nPort:  http  80/TCP\nTargetPort:  8080/TCP\n" +
			"NodePort:  http  30080/TCP\nEndpoints:  10.244.1.2:8080,fd00::2:8080\nSession Affinity:  None\n\n\nName:  web\nNamespace:  shop\nSubsets:\n  Addresses:  10.244.1.2\n" +
			"  NotReadyAddresses:  <none>\n  Ports:\n    Name  Port  Protocol\n    ----  ----  --------\n    http  8080  TCP\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range []string{"f.yaml", "f.json"} {
			o, err := loadBytes(name, data)
			sameInParts(t, name, data, o, err)
			if (o == nil) == (err == nil) {
				t.Fatalf("objects %v and error %v", o, err)
			}
			if err != nil {
				if errs, ok := errors.AsType[Errors](err); !ok || len(errs) == 0 || err.Error() == "" {
					t.Fatalf("error of type %T: %q", err, err)
				}
				continue
			}
			// What is accepted has what the table is built from.
			for _, s := range o.Services {
				if s.Name == "" || s.Namespace == "" || (len(s.Spec.ClusterIPs) > 0) != (s.Spec.ClusterIP != "") {
					t.Errorf("service %+v", s)
				}
				for _, p := range s.Spec.Ports {
					if p.Port < 1 || p.Port > 65535 || p.NodePort < 0 || p.NodePort > 65535 || p.Protocol == "" {
						t.Errorf("port %+v", p)
					}
				}
			}
			for _, s := range o.EndpointSlices {
				for _, e := range s.Endpoints {
					if len(e.Addresses) == 0 || s.AddressType != "FQDN" && !parses(e.Addresses) {
						t.Errorf("endpoint %+v", e)
					}
				}
			}
		}
	})
}

func parses(addresses []string) bool {
	for _, a := range addresses {
		if _, err := kubeaddr.Parse(a); err != nil {
			return false
		}
	}
	return true
}

// sameInParts checks that Lists are understood in the same way if their items are parsed
// one by one.
func sameInParts(t *testing.T, name string, data []byte, whole *Objects, wholeErr error) {
	t.Helper()
	l := newLoader(Options{})
	l.large = 0
	l.take(file{name: name, data: data})
	parts, err := l.result()
	if diff := cmp.Diff(whole, parts); diff != "" {
		t.Errorf("in parts: %s", diff)
	}
	if (err == nil) != (wholeErr == nil) || err != nil && err.Error() != wholeErr.Error() {
		t.Errorf("error in parts: %v; as a whole: %v", err, wholeErr)
	}
}

// FuzzDocuments looks for texts that are other values in parts.
func FuzzDocuments(f *testing.F) {
	for _, seed := range []string{
		"items:\n- a: 1\n- b\n", "x: 1\nitems: # all\n- a\n", "items:\n  - a: \"b\n  - c\"\n", "items:\n- &a x\n- *a\n", "items:\n- |\n  - a\n- b\nkind: c\nitems:\n- d\n",
		"items:\n-\n  a: 1\n- b\n", `{"items":[{"a":1},2,"x"],"b":null}`, `{"items":[1],"items":[2]}`, "items:\n- a\n# c\n  # d\n- b\n---\nitems:\n- c\n", "items:\n- a:\n  - b\n - c\n", "items:\n- a\n - b\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range []string{"f.yaml", "f.json"} {
			whole := slices.Collect(parse(name, data, len(data)+1))
			parts := slices.Collect(parse(name, data, 0))
			if len(whole) != len(parts) {
				t.Fatalf("%d documents in parts, %d as a whole", len(parts), len(whole))
			}
			for i, d := range parts {
				if m, ok := d.Value.(map[string]any); d.list != nil {
					if !ok {
						continue // the loader falls back
					}
					var items []any
					for _, text := range d.list.items {
						v, ok := d.list.parse(text)
						if !ok {
							items = nil
							break
						}
						items = append(items, v)
					}
					if items == nil || len(d.Duplicates) > 0 {
						continue
					}
					m["items"] = items
				}
				if diff := cmp.Diff(whole[i].Value, d.Value); diff != "" {
					t.Errorf("document %d: %s", i, diff)
				}
			}
		}
	})
}
