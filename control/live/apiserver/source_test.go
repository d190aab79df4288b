package apiserver

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nfqproxy/nfqproxy/control/live/apiserver/apiservertest"
	"github.com/nfqproxy/nfqproxy/control/live/saved"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

func service(name, version string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: version}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}}
}

func slice(name, version string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: version}}
}

func node(addresses ...corev1.NodeAddress) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}, Status: corev1.NodeStatus{Addresses: addresses}}
}

var internal = corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "172.20.0.2"}

// Changes that come while the last update is handled are one update.
func TestChangesGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(service("web", "1"), slice("web-x", "1"), node(internal))
		s := New(Config{Client: apiservertest.Client{Interface: client}, Node: "worker", NeedNodeIPs: true, Logger: quiet})
		updates, proceed := make(chan servicetable.Update), make(chan bool)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		began := time.Now()
		go func() {
			ended <- s.Run(ctx, func(u servicetable.Update) {
				updates <- u
				<-proceed
			})
		}()
		first := <-updates
		if !first.All || len(first.Services) != 1 || len(first.EndpointSlices) != 1 || len(first.Nodes) != 1 {
			t.Errorf("first update: %+v", first)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the first update waited for %s, though all objects were there", took)
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		services := client.CoreV1().Services("default")
		_, err := services.Create(ctx, service("api", "2"), metav1.CreateOptions{})
		must(err)
		_, err = services.Update(ctx, service("api", "3"), metav1.UpdateOptions{})
		must(err)
		must(services.Delete(ctx, "web", metav1.DeleteOptions{}))
		must(client.CoreV1().Nodes().Delete(ctx, "worker", metav1.DeleteOptions{}))
		proceed <- true
		second := <-updates
		if second.All || len(second.Services) != 2 || second.Services[key("api")].ResourceVersion != "3" || second.Services[key("web")] != nil || len(second.EndpointSlices) != 0 {
			t.Errorf("second update: %+v", second)
		}
		if len(second.Nodes) != 0 {
			t.Error("the node's own object was taken away while the node still runs")
		}
		proceed <- true
		synctest.Wait()
		select {
		case u := <-updates:
			t.Errorf("an update without changes: %+v", u)
		default:
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestAllNodes: other nodes come, change their addresses and go; other changes of theirs do not count, and
// only the own one is the node of the daemon.
func TestAllNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := node(corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "172.20.0.3"})
		other.Name, other.ResourceVersion = "other", "1"
		var changed []string
		client := fake.NewClientset(node(internal), other)
		s := New(Config{
			Client: apiservertest.Client{Interface: client}, Node: "worker", AllNodes: true, Logger: quiet, NodeChanged: func(n *corev1.Node) { changed = append(changed, n.Name) },
		})
		updates := make(chan servicetable.Update, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx, func(u servicetable.Update) { updates <- u }) }()
		if first := <-updates; len(first.Nodes) != 2 {
			t.Errorf("first update: %+v", first)
		}
		nodes := client.CoreV1().Nodes()
		update := func(change func(*corev1.Node)) {
			t.Helper()
			change(other)
			if _, err := nodes.Update(ctx, other, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		update(func(n *corev1.Node) { n.ResourceVersion, n.Status.NodeInfo.KernelVersion = "2", "7" })
		if len(updates) > 0 {
			t.Errorf("an update without a new address: %+v", <-updates)
		}
		update(func(n *corev1.Node) { n.ResourceVersion, n.Status.Addresses[0].Address = "3", "172.20.0.4" })
		if u := <-updates; len(u.Nodes) != 1 || u.Nodes["other"].Status.Addresses[0].Address != "172.20.0.4" {
			t.Errorf("after a new address: %+v", u)
		}
		if err := nodes.Delete(ctx, "other", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if u := <-updates; len(u.Nodes) != 1 || u.Nodes["other"] != nil {
			t.Errorf("after its end: %+v", u)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, name := range changed {
			if name != "worker" {
				t.Errorf("node %s counts as the daemon's own", name)
			}
		}
		if len(changed) == 0 {
			t.Error("the daemon's own node is not known")
		}
	})
}

func TestWaitsForTheNode(t *testing.T) {
	tests := []struct {
		name      string
		config    Config
		appears   *corev1.Node
		after     time.Duration
		published time.Duration // -1: never
		err       string
	}{
		{"addresses come", Config{NeedNodeIPs: true}, node(internal), 20 * time.Second, 20 * time.Second, ""},
		{"a host name is no address", Config{NeedNodeIPs: true}, node(corev1.NodeAddress{Type: corev1.NodeHostName, Address: "worker"}), time.Second, 30 * time.Second, ""},
		{"addresses never come", Config{NeedNodeIPs: true}, nil, 0, 30 * time.Second, ""},
		{"not needed", Config{}, nil, 0, 0, ""},
		{"pod CIDRs come", Config{NeedPodCIDRs: true}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}, Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24"}}, 4 * time.Minute, 4 * time.Minute, ""},
		{"pod CIDRs never come", Config{NeedPodCIDRs: true}, node(internal), time.Minute, -1, "node worker: no podCIDR after 5m0s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				tt.config.Client, tt.config.Node, tt.config.Logger = apiservertest.Client{Interface: client}, "worker", quiet
				var waiting atomic.Value
				tt.config.Waiting = func(what string) { waiting.Store(what) }
				s := New(tt.config)
				ctx, cancel := context.WithCancel(t.Context())
				began := time.Now()
				published := time.Duration(-1)
				ended := make(chan error, 1)
				go func() {
					ended <- s.Run(ctx, func(u servicetable.Update) {
						if u.All {
							published = time.Since(began)
						}
					})
				}()
				if tt.appears != nil {
					time.Sleep(tt.after)
					if _, err := client.CoreV1().Nodes().Create(ctx, tt.appears, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				// A moment before the end of the wait it reports its subject.
				if tt.published > 0 && tt.appears == nil {
					time.Sleep(tt.published - time.Millisecond)
					synctest.Wait()
					if want := "addresses in the Node object worker"; waiting.Load() != want {
						t.Errorf("reports that it waits for %q, want %q", waiting.Load(), want)
					}
				}
				time.Sleep(6 * time.Minute)
				synctest.Wait()
				if got := published.Truncate(time.Second); published >= 0 && got != tt.published || published < 0 && tt.published >= 0 {
					t.Errorf("published after %v, want %v", published, tt.published)
				}
				cancel()
				if err := <-ended; tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.err)) {
					t.Errorf("Run: %v, want %q", err, tt.err)
				}
			})
		})
	}
}

// TestSavedObjects: a source that ends saves the objects, and the next one publishes them if the API server
// does not answer, until it does.
func TestSavedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := &saved.File{Path: filepath.Join(t.TempDir(), "objects.yaml"), Node: "worker"}
		var away atomic.Bool
		client := fake.NewClientset(service("web", "1"), slice("web-x", "1"), node(internal))
		client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return away.Load(), nil, errors.New("no answer")
		})
		type published struct {
			servicetable.Update
			after time.Duration
			saved bool
		}
		run := func(disturb func()) (updates []published) {
			s := New(Config{Client: apiservertest.Client{Interface: client}, Node: "worker", Saved: file, Logger: quiet})
			ctx, cancel := context.WithCancel(t.Context())
			ended, began := make(chan error, 1), time.Now()
			go func() {
				ended <- s.Run(ctx, func(u servicetable.Update) {
					updates = append(updates, published{u, time.Since(began), s.Saved() != nil})
				})
			}()
			disturb()
			synctest.Wait()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			return updates
		}
		away.Store(true)
		if got := run(func() { time.Sleep(time.Minute) }); len(got) > 0 {
			t.Errorf("without a file and an API server: %+v", got)
		}
		away.Store(false)
		if got := run(func() { time.Sleep(time.Second) }); len(got) != 1 || got[0].after > 0 {
			t.Errorf("with an API server: %+v", got)
		}
		away.Store(true)
		got := run(func() {
			time.Sleep(10 * time.Second)
			if _, err := client.CoreV1().Services("default").Create(t.Context(), service("new", "2"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			away.Store(false)
			time.Sleep(time.Minute)
		})
		if len(got) != 2 {
			t.Fatalf("updates %+v, want those of the file and of the API server", got)
		}
		if u := got[0]; !u.saved || u.after != savedAfter || !u.All || len(u.Services) != 1 || len(u.EndpointSlices) != 1 || u.Nodes["worker"] == nil {
			t.Errorf("the first update: %+v", u)
		}
		if u := got[1]; u.saved || !u.All || len(u.Services) != 2 {
			t.Errorf("the second update: %+v", u)
		}
		// It has saved the new ones.
		if u, _, err := file.Read(time.Now()); err != nil || len(u.Services) != 2 {
			t.Errorf("saved: %+v, error %v", u, err)
		}
	})
}

// What the table does not depend on is not kept.
func TestTrim(t *testing.T) {
	name := "worker"
	full := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-x", ResourceVersion: "7", UID: "u", Generation: 3,
			Labels:          map[string]string{discoveryv1.LabelServiceName: "web", "app": "web"},
			Annotations:     map[string]string{corev1.EndpointsLastChangeTriggerTime: "2024-04-17T12:00:00Z", "other": "x"},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "m"}},
			OwnerReferences: []metav1.OwnerReference{{Name: "web"}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("p"), Port: new(int32(80)), AppProtocol: new("http")}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.0.0.1", "10.0.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true), Terminating: new(false)},
			Hostname: new("h"), Zone: new("z"), NodeName: &name,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-0", UID: "v"},
			Hints:     &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}},
		}},
	}
	got, err := trim(full.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	want := servicetable.NewEndpointSlice(full)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// client-go trims what comes by way of a list once more.
	if again, err := trim(got); err != nil || again != got {
		t.Errorf("trimmed again: %+v, %v", again, err)
	}
	if meta := (servicetable.Meta{Namespace: "default", Name: "web-x", ResourceVersion: "7"}); want.Meta != meta {
		t.Errorf("metadata %+v, want %+v", want.Meta, meta)
	}
}

func TestTrimService(t *testing.T) {
	full := service("web", "7")
	full.Labels = map[string]string{"app": "web"}
	full.Annotations = map[string]string{"other": "x", servicetable.AnnotationDecide: "kernel"}
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	full.Spec.Selector = map[string]string{"app": "web"}
	full.Spec.Ports = []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080, TargetPort: intstr.FromString("web"), AppProtocol: new("http")}}
	got, err := trim(full)
	if err != nil {
		t.Fatal(err)
	}
	want := service("web", "7")
	want.Annotations = map[string]string{servicetable.AnnotationDecide: "kernel"}
	want.Spec.Ports = []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}}
	if want := servicetable.NewService(want); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
