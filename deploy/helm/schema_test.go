package helm

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// TestSchemaOfConfiguration: the value config has exactly the fields of a KubeProxyConfiguration.
func TestSchemaOfConfiguration(t *testing.T) {
	text, err := os.ReadFile(chart + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct{ Config map[string]any }
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	want := schemaOf(t, reflect.TypeFor[v1alpha1.KubeProxyConfiguration]())
	fields := want["properties"].(map[string]any)
	// What cannot be changed, because the pod mounts it there.
	fields["apiVersion"], fields["kind"] = map[string]any{"const": v1alpha1.SchemeGroupVersion.String()}, map[string]any{"const": "KubeProxyConfiguration"}
	fields["clientConnection"].(map[string]any)["properties"].(map[string]any)["kubeconfig"] = map[string]any{"enum": []any{"", "/var/lib/kube-proxy/kubeconfig.conf"}}
	if diff := cmp.Diff(want, schema.Properties.Config); diff != "" {
		wanted, _ := json.MarshalIndent(want, "    ", "  ")
		t.Errorf("values.schema.json, config: %s\nwant: %s", diff, wanted)
	}
}

// schemaOf is the JSON schema of a type of the configuration. A field may be null, as kubeadm writes
// those that are not set.
func schemaOf(t *testing.T, typ reflect.Type) map[string]any {
	kinds := func(names ...any) map[string]any { return map[string]any{"type": append(names, "null")} }
	switch typ {
	case reflect.TypeFor[metav1.Duration]():
		return kinds("string")
	case reflect.TypeFor[resource.QuantityValue](), reflect.TypeFor[logsapi.TimeOrMetaDuration]():
		return kinds("string", "integer")
	case reflect.TypeFor[logsapi.VModuleConfiguration]():
		return kinds("array")
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return schemaOf(t, typ.Elem())
	case reflect.String:
		return kinds("string")
	case reflect.Bool:
		return kinds("boolean")
	case reflect.Int32, reflect.Uint32:
		return kinds("integer")
	case reflect.Float32:
		return kinds("number")
	case reflect.Slice:
		s := kinds("array")
		s["items"] = map[string]any{"type": "string"}
		return s
	case reflect.Map:
		s := kinds("object")
		s["additionalProperties"] = map[string]any{"type": "boolean"}
		return s
	case reflect.Struct:
		s := kinds("object")
		s["additionalProperties"] = false
		properties := make(map[string]any)
		s["properties"] = properties
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name == "-":
			case name == "" && f.Anonymous:
				for key, value := range schemaOf(t, f.Type)["properties"].(map[string]any) {
					properties[key] = value
				}
			default:
				properties[name] = schemaOf(t, f.Type)
			}
		}
		return s
	}
	t.Fatalf("no schema of type %s", typ)
	return nil
}
