package servicetable

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

func TestControllerPublishesWhenBothInputsAreThere(t *testing.T) {
	for _, order := range []string{"objects first", "addresses first"} {
		t.Run(order, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startController(t, NodeConfig{Name: "worker", MasqueradeAll: true})
				first, second := func() { r.load(service()) }, func() { r.locate("172.20.0.2") }
				if order == "addresses first" {
					first, second = second, first
				}
				first()
				r.wantTables(0)
				second()
				r.wantTables(1)

				table := r.tables[0]
				if want := []*decision.ServicePort{entry("10.96.0.20")}; !reflect.DeepEqual(table.Services(), want) {
					t.Errorf("services %+v", describe(table.Services()))
				}
				if want := (&decision.Node{Name: "worker", MasqueradeAll: true, Addresses: addrs("172.20.0.2")}); !reflect.DeepEqual(table.Node(), want) {
					t.Errorf("node %+v", table.Node())
				}
				if !table.Built().Equal(time.Unix(1713377699, 0)) {
					t.Errorf("built %v", table.Built())
				}
				if err := r.stop(); err != nil {
					t.Error(err)
				}
				r.wantLog()
			})
		})
	}
}

func TestControllerPublishesEmptyTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startController(t, NodeConfig{})
		r.locate() // a node without addresses is known as such
		r.load()
		r.wantTables(1)
		r.load()
		r.wantTables(1)
		_ = r.stop()
	})
}

func TestControllerPublishesOnlyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startController(t, NodeConfig{})
		r.locate("172.20.0.2")
		r.load(service())
		r.wantTables(1)

		r.load(service())
		r.load(service(withLabel("app", "web"))) // nothing a table shows
		r.locate("172.20.0.2", "127.0.0.1")
		r.loadAll(&kube.Objects{Services: []*corev1.Service{service()}, Nodes: []*corev1.Node{node("a")}})
		r.wantTables(1)

		r.locate("172.20.0.2", "172.20.0.3")
		r.wantTables(2)
		r.loadAll(&kube.Objects{Services: []*corev1.Service{service()}, EndpointSlices: []*discoveryv1.EndpointSlice{v4(80, ready("10.0.0.1"))}})
		r.wantTables(3)
		// The same endpoints, but for another reason.
		r.loadAll(&kube.Objects{Services: []*corev1.Service{service()}, EndpointSlices: []*discoveryv1.EndpointSlice{v4(80, notReady("10.0.0.1"))}})
		r.wantTables(4)
		r.loadAll(&kube.Objects{Services: []*corev1.Service{service()}, EndpointSlices: []*discoveryv1.EndpointSlice{v4(80, stopping("10.0.0.1"))}})
		r.wantTables(5)
		r.load()
		r.wantTables(6)
		_ = r.stop()
	})
}

func TestControllerFollowsTheNodeObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startController(t, NodeConfig{Name: "a", Mode: NodeCIDR, PrimaryNodePorts: true})
		load := func(n *corev1.Node) {
			r.loadAll(&kube.Objects{Services: []*corev1.Service{service()}, Nodes: []*corev1.Node{n, node("b")}})
		}
		object := withAddresses("InternalIP=172.20.0.2")
		object.Spec.PodCIDRs = []string{"10.244.1.0/24"}
		r.locate("172.20.0.2")
		load(object)
		r.wantTables(1)

		object = object.DeepCopy()
		object.Labels = map[string]string{"kubernetes.io/os": "linux"} // nothing a table shows
		load(object)
		r.wantTables(1)

		object = object.DeepCopy()
		object.Labels[corev1.LabelTopologyZone] = "zone-a"
		load(object)
		r.wantTables(2)
		object = object.DeepCopy()
		object.Spec.PodCIDRs = []string{"10.244.2.0/24"}
		load(object)
		r.wantTables(3)
		object = object.DeepCopy()
		object.Status.Addresses[0].Address = "172.20.0.3"
		load(object)
		r.wantTables(4)

		want := decision.Node{
			Name: "a", Zone: "zone-a", IPs: addrs("172.20.0.3"), Addresses: addrs("172.20.0.2"), NodePortAddresses: prefixes("172.20.0.3/32"),
			Detector: decision.Detector{CIDRs: prefixes("10.244.2.0/24")},
		}
		if got := r.tables[3].Node(); !reflect.DeepEqual(*got, want) {
			t.Errorf("node %+v, want %+v", *got, want)
		}
		_ = r.stop()
		r.wantLog()
	})
}

func TestControllerEndsWhenASourceFails(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		name string
		end  func(*running)
		want string // empty: goes on
	}{
		{"objects fail", func(r *running) { r.load(service()); r.source.end <- broken }, "source of objects: broken"},
		{"addresses fail", func(r *running) { r.locate(); r.addressesEnd <- broken }, "source of addresses: broken"},
		{"no objects ever", func(r *running) { r.source.end <- nil }, "source of objects: ended without data"},
		{"no addresses ever", func(r *running) { r.addressesEnd <- nil }, "source of addresses: ended without data"},
		{"no more objects", func(r *running) { r.load(service()); r.source.end <- nil; r.locate() }, ""},
		{"no more addresses", func(r *running) { r.locate(); r.addressesEnd <- nil; r.load(service()) }, ""},
		{"no more of both", func(r *running) {
			r.locate()
			r.load(service())
			r.addressesEnd <- nil
			r.source.end <- nil
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startController(t, NodeConfig{})
				tt.end(r)
				synctest.Wait()
				select {
				case err := <-r.ended:
					if tt.want == "" || err == nil || err.Error() != tt.want {
						t.Errorf("Run: %v, want %q", err, tt.want)
					}
				default:
					if tt.want != "" {
						t.Errorf("Run goes on, want %q", tt.want)
					}
					r.wantTables(1)
					if err := r.stop(); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

func TestControllerStopsItsSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startController(t, NodeConfig{})
		if err := r.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if !r.source.stopped {
			t.Error("Run returned before its source")
		}
	})
}

func TestControllerLogsWarningsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startController(t, NodeConfig{})
		taken := service(named("default", "x"), withIPs("10.96.0.20", "fd00::20"), withType(corev1.ServiceTypeNodePort),
			withPorts(corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP, NodePort: 30080}))
		owner := service(named("default", "a"), withIPs("10.96.0.20", "fd00::21"), withType(corev1.ServiceTypeNodePort),
			withPorts(corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP, NodePort: 30080}))
		conflicts := []string{
			`level=WARN msg="service default/x: cluster IP 10.96.0.20:80/TCP is already taken by service default/a"`,
			`level=WARN msg="service default/x: node port 30080/TCP is already taken by service default/a"`, // in both families
		}
		other := service(withIPs("10.96.0.22"))
		noIP := service(named("default", "b"), withIPs())
		const warning = `level=WARN msg="service default/b has no clusterIP: no API server assigned one, so it is left out; set spec.clusterIP"`

		r.locate("172.20.0.2")
		r.load(owner, taken, noIP)
		r.wantLog(append([]string{warning}, conflicts...)...)
		r.locate("172.20.0.3")
		r.load(owner, taken, noIP, other)
		r.wantTables(3)
		r.wantLog()

		r.load(owner, other)
		r.wantLog()
		r.load(owner, other, noIP) // it went away and is back
		r.wantLog(warning)
		_ = r.stop()
	})
}

func TestConfigValidate(t *testing.T) {
	_, err := New(Config{Node: NodeConfig{ClusterCIDRs: make([]netip.Prefix, 1)}})
	const want = "controller: objects: missing\naddresses: missing\npublish: missing\nlogger: missing\nprogress: missing\nwarned: missing\nclusterCIDRs[0]: not a prefix"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// With the real parts: objects of a cluster, fixed addresses, the clock.
func TestControllerWithRealParts(t *testing.T) {
	objects, err := manifest.Load([]string{filepath.Join("testdata", "kind-1.29-worker1-after.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	tables := make(chan *decision.Table, 10)
	c, err := New(Config{
		Objects:   fixed(&objects.Objects),
		Addresses: fixedAddresses(addrs("172.20.0.2")...),
		Publish:   func(table *decision.Table) { tables <- table },
		Logger:    slog.New(slog.NewTextHandler(io.Discard, nil)),
		Progress:  noProgress{},
		Warned:    func(Warning) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	select {
	case table := <-tables:
		if len(table.Services()) != 5 || table.Generation() != 1 || time.Since(table.Built()) > time.Minute {
			t.Errorf("%d services, generation %d, built %v", len(table.Services()), table.Generation(), table.Built())
		}
	case err := <-ended:
		t.Fatalf("Run: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// fixedAddresses is the AddressSource of a node whose addresses never change.
func fixedAddresses(addresses ...netip.Addr) AddressSource {
	return func(_ context.Context, publish func([]netip.Addr)) error {
		publish(addresses)
		return nil
	}
}
