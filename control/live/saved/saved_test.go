package saved

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// objects has what a slice and a Service can have that the table depends on.
func objects() servicetable.Update {
	web := types.NamespacedName{Namespace: "default", Name: "web"}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-1", ResourceVersion: "7", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05.6Z"},
		},
		AddressType: discoveryv1.AddressTypeIPv6,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolSCTP), Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"fd00::1"}, NodeName: new("node-a"), TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-1"}},
			{
				Addresses: []string{"fd00::2"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false), Terminating: new(true)},
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "b"}}, ForNodes: []discoveryv1.ForNode{{Name: "node-b"}}},
			},
		},
	}
	return servicetable.Update{
		All: true,
		Services: map[types.NamespacedName]*servicetable.Service{web: servicetable.NewService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{"nfqproxy.io/decide": "kernel"}},
			Spec:       corev1.ServiceSpec{ClusterIP: "fd96::1", ClusterIPs: []string{"fd96::1"}, Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolSCTP, Port: 80}}},
		})},
		EndpointSlices: map[types.NamespacedName]*servicetable.EndpointSlice{{Namespace: "default", Name: "web-1"}: servicetable.NewEndpointSlice(slice)},
		Nodes: map[string]*corev1.Node{"node-a": {
			ObjectMeta: metav1.ObjectMeta{Name: "node-a"},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "fd20::2"}}},
		}},
	}
}

func write(t *testing.T) File {
	t.Helper()
	f := File{filepath.Join(t.TempDir(), "objects.yaml"), "node-a"}
	for range 2 { // the second time in the place of a file
		if err := f.Write(objects()); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestWriteAndRead: what is read is what was written, and other commands can read the file.
func TestWriteAndRead(t *testing.T) {
	f := write(t)
	got, last, err := f.Read(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	want := objects()
	for _, n := range want.Nodes {
		n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, want %+v", got, want)
	}
	if age := time.Since(last); age < -time.Second || age > time.Minute {
		t.Errorf("in force last at %v", last)
	}
	o, err := manifest.Load([]string{f.Path})
	if err != nil || len(o.Services) != 1 || len(o.EndpointSlices) != 1 || len(o.Nodes) != 1 {
		t.Errorf("as a manifest: %+v, error %v", o, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(f.Path)); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, error %v", entries, err)
	}
}

// TestUseless: files of which nothing is used.
func TestUseless(t *testing.T) {
	change := func(f File, change func([]byte) []byte) error {
		text, err := os.ReadFile(f.Path)
		if err != nil {
			return err
		}
		return os.WriteFile(f.Path, change(text), 0o600)
	}
	for _, tt := range []struct {
		name   string
		damage func(f *File) error
		want   string
	}{
		{"another node", func(f *File) error { f.Node = "node-b"; return nil }, "another node"},
		{"truncated", func(f *File) error { return change(*f, func(b []byte) []byte { return b[:len(b)/2] }) }, "incomplete"},
		{"empty", func(f *File) error { return change(*f, func([]byte) []byte { return nil }) }, "incomplete"},
		{"changed", func(f *File) error {
			return change(*f, func(b []byte) []byte { return bytes.Replace(b, []byte("fd96::1"), []byte("fd96::2"), 1) })
		}, "hash"},
		{"longer", func(f *File) error { return change(*f, func(b []byte) []byte { return append(b, "---\n{}\n"...) }) }, "hash"},
		{"stale", func(f *File) error {
			old := time.Now().Add(-MaxAge - time.Minute)
			return os.Chtimes(f.Path, old, old)
		}, ErrStale.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := write(t)
			if err := tt.damage(&f); err != nil {
				t.Fatal(err)
			}
			u, _, err := f.Read(time.Now())
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(u.Services) > 0 {
				t.Errorf("error %v, want %q; objects %+v", err, tt.want, u)
			}
		})
	}
	if _, _, err := (File{filepath.Join(t.TempDir(), "objects.yaml"), "node-a"}).Read(time.Now()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	f := write(t)
	old := time.Now().Add(-MaxAge - time.Minute)
	if err := errors.Join(os.Chtimes(f.Path, old, old), f.Touch()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Read(time.Now()); err != nil {
		t.Errorf("after Touch: %v", err)
	}
}

// TestUnwritable: the error leaves no other file.
func TestUnwritable(t *testing.T) {
	dir := t.TempDir()
	f := File{filepath.Join(dir, "objects.yaml"), "node-a"}
	if err := os.Mkdir(f.Path, 0o755); err != nil { // a file cannot replace it
		t.Fatal(err)
	}
	if err := f.Write(objects()); err == nil {
		t.Error("a directory was replaced")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, error %v", entries, err)
	}
}
