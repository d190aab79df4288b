package servicetable

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// world is a set of objects that changes at random, few enough names for everything to
// happen: slices without their Service, labels that move, addresses that are contested.
type world struct {
	*rand.Rand
	services map[types.NamespacedName]*Service
	slices   map[types.NamespacedName]*discoveryv1.EndpointSlice
	nodes    map[string]*corev1.Node
}

func (w *world) change() Update {
	u := Update{
		Services:       make(map[types.NamespacedName]*Service),
		EndpointSlices: make(map[types.NamespacedName]*EndpointSlice),
		Nodes:          make(map[string]*corev1.Node),
	}
	for range 1 + w.IntN(4) {
		name := fmt.Sprintf("s%d", w.IntN(5))
		switch w.IntN(6) {
		case 0:
			u.Services[types.NamespacedName{Namespace: "default", Name: name}] = nil
		case 1, 2:
			u.Services[types.NamespacedName{Namespace: "default", Name: name}] = NewService(service(named("default", name),
				withIPs(fmt.Sprintf("10.96.0.%d", 1+w.IntN(4))), withType(corev1.ServiceTypeNodePort),
				withPorts(corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP, NodePort: 30000 + int32(w.IntN(4))})))
		case 3:
			name := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("x%d", w.IntN(6))}
			u.EndpointSlices[name] = nil
			delete(w.slices, name)
		case 4:
			s := slice(fmt.Sprintf("x%d", w.IntN(6)), discoveryv1.AddressTypeIPv4, 80,
				on([]string{"a", "b"}[w.IntN(2)], ready(fmt.Sprintf("10.0.0.%d", w.IntN(9)))), notReady("10.0.0.100"))
			s.Namespace, s.Labels = "default", map[string]string{discoveryv1.LabelServiceName: name}
			if w.IntN(8) == 0 {
				s.Labels = nil
			}
			name := types.NamespacedName{Namespace: "default", Name: s.Name}
			u.EndpointSlices[name] = NewEndpointSlice(s)
			w.slices[name] = s
		case 5:
			n := node("a")
			n.Labels = map[string]string{corev1.LabelTopologyZone: fmt.Sprint(w.IntN(3))}
			if w.IntN(4) == 0 {
				n = nil
			}
			u.Nodes["a"] = n
		}
	}
	apply(w.services, u.Services)
	apply(w.nodes, u.Nodes)
	return u
}

func apply[K comparable, V any](into, from map[K]*V) {
	for k, v := range from {
		if v == nil {
			delete(into, k)
		} else {
			into[k] = v
		}
	}
}

func (w *world) objects() *kube.Objects {
	o := new(kube.Objects)
	for _, s := range w.services {
		o.Services = append(o.Services, s.Object())
	}
	for _, s := range w.slices {
		o.EndpointSlices = append(o.EndpointSlices, s)
	}
	for _, n := range w.nodes {
		o.Nodes = append(o.Nodes, n)
	}
	return o
}

// A table that many changes led to is the table of the objects as they are in the end:
// the service ports, who has which address, the conflicts, the counts.
func TestStepsLeadWhereOneLeapDoes(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			w := &world{rand.New(rand.NewPCG(1, seed)), make(map[types.NamespacedName]*Service), make(map[types.NamespacedName]*discoveryv1.EndpointSlice), make(map[string]*corev1.Node)}
			config := NodeConfig{Name: "a"}
			r := startController(t, config)
			r.locate("172.20.0.2")
			r.loadAll(new(kube.Objects))
			for range 40 {
				if w.IntN(10) == 0 {
					w.change()
					r.loadAll(w.objects()) // as a source does that does not know what changed
				} else {
					r.update(w.change())
				}
				got := r.tables[len(r.tables)-1]
				services, _, object := build(w.objects(), config)
				want := decision.NewTable(got.Generation(), got.Built(), config.node(object, addrs("172.20.0.2")), services)
				if !sameTables(got, want) {
					t.Fatalf("seed %d: got %+v, want %+v", seed, describe(got.Services()), describe(want.Services()))
				}
			}
			_ = r.stop()
		})
	}
}

func sameTables(a, b *decision.Table) bool {
	if len(a.Services()) != len(b.Services()) || len(a.Services()) > 0 && !reflect.DeepEqual(a.Services(), b.Services()) ||
		a.Counts(decision.IPv4) != b.Counts(decision.IPv4) || a.ServiceCount() != b.ServiceCount() || fmt.Sprint(a.Conflicts()) != fmt.Sprint(b.Conflicts()) || !reflect.DeepEqual(a.Node(), b.Node()) {
		return false
	}
	for i := range a.Services() {
		for k := range b.Services() {
			x, y := a.Services()[i], b.Services()[i]
			at := a.Services()[k].ClusterIP
			for _, e := range []decision.Entry{decision.EntryClusterIP, decision.EntryExternalIP, decision.EntryLoadBalancer, decision.EntryNodePort} {
				if a.Rank(x, e, at) != b.Rank(y, e, at) {
					return false
				}
			}
		}
	}
	return true
}

func TestSyncReportsWhatCameIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startController(t, NodeConfig{})
		r.locate("172.20.0.2")
		r.load(service())
		triggered := func(at time.Time) Update {
			s := v4(80, ready("10.0.0.1"))
			s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: at.Format(time.RFC3339Nano)}
			s.Endpoints[0].Addresses[0] = fmt.Sprintf("10.0.0.%d", len(r.tables))
			return Update{EndpointSlices: map[types.NamespacedName]*EndpointSlice{{Namespace: s.Namespace, Name: s.Name}: NewEndpointSlice(s)}}
		}
		began := time.Unix(1713377699, 0)
		r.update(triggered(began.Add(time.Second)))
		r.update(triggered(began.Add(-time.Hour))) // older than the controller: of no interest
		again := triggered(began.Add(-time.Hour))  // another change, of which the trigger is not known
		r.update(again)
		r.locate("172.20.0.3")
		r.wantTables(5)
		for i, want := range []struct{ services, slices, triggers int }{{1, 0, 0}, {0, 1, 1}, {0, 1, 0}, {0, 1, 0}, {0, 0, 0}} {
			if s := r.syncs[i]; s.Services != want.services || s.EndpointSlices != want.slices || len(s.Triggers[decision.IPv4]) != want.triggers || s.Began.IsZero() || s.Table == nil {
				t.Errorf("sync %d: %+v, want %+v", i+1, s, want)
			}
			web := decision.ServiceName{Namespace: "default", Name: "web"}
			origin, known := r.syncs[i].Origins[web]
			if known != (want.services+want.slices > 0) || known && origin.Received.IsZero() || len(r.syncs[i].Origins) > 1 {
				t.Errorf("sync %d: origins %+v", i+1, r.syncs[i].Origins)
			}
			if trigger := []time.Time{{}, began.Add(time.Second), began.Add(-time.Hour), {}, {}}[i]; !origin.Triggered.Equal(trigger) {
				t.Errorf("sync %d: trigger %v, want %v", i+1, origin.Triggered, trigger)
			}
		}
		_ = r.stop()
	})
}

func TestMinSyncPeriodGathersChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startControllerWith(t, NodeConfig{}, time.Second)
		r.locate("172.20.0.2")
		r.load(service())
		r.wantTables(1) // the first does not wait
		for i := range 5 {
			r.load(service(withIPs(fmt.Sprintf("10.96.0.%d", i))))
		}
		r.wantTables(1)
		time.Sleep(time.Second)
		synctest.Wait()
		r.wantTables(2)
		time.Sleep(time.Second)
		r.load(service())
		r.wantTables(3) // nor does one that comes late enough
		_ = r.stop()
	})
}

// BenchmarkChange is what one endpoint more costs, from the slice to the table.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			builder := newBuilder(NodeConfig{Name: "node-1"})
			objects := manyObjects(n)
			builder.apply(fullUpdate(objects))
			changes, _ := builder.build()
			node := builder.config.node(nil, []netip.Addr{netip.MustParseAddr("172.20.0.2")})
			table := new(decision.Table).Next(time.Time{}, node, changes...)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s := objects.EndpointSlices[i%n].DeepCopy()
				s.Endpoints = s.Endpoints[:5+i/n%5]
				builder.apply(Update{EndpointSlices: map[types.NamespacedName]*EndpointSlice{{Namespace: s.Namespace, Name: s.Name}: NewEndpointSlice(s)}})
				changes, _ := builder.build()
				table = table.Next(time.Time{}, node, changes...)
			}
		})
	}
}
