package manifest

import (
	"errors"
	"testing"
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
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range []string{"f.yaml", "f.json"} {
			o, err := loadBytes(name, data)
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
		if _, err := parseAddress(a); err != nil {
			return false
		}
	}
	return true
}
