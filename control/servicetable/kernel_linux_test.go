package servicetable

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// BenchmarkForce is the whole way from objects into force, the kernel's sets
// included: "first" with all objects, "change" with an EndpointSlice that comes or goes.
func BenchmarkForce(b *testing.B) {
	netnstest.Require(b)
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("first/services=%d", n), func(b *testing.B) { inNamespace(b, func() { benchmarkFirst(b, n) }) })
		b.Run(fmt.Sprintf("change/services=%d", n), func(b *testing.B) { inNamespace(b, func() { benchmarkChange(b, n) }) })
	}
}

func inNamespace(b *testing.B, f func()) {
	ns, err := netns.New("host")
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(func() error { f(); return nil }); err != nil {
		b.Fatal(err)
	}
}

// forced is a table in force.
type forced struct {
	b       *testing.B
	builder *builder
	rules   *ruleset.Ruleset
	table   *decision.Table
}

func newForced(b *testing.B) *forced {
	b.Helper()
	native, err := ruleset.Probe()
	if err != nil {
		b.Fatal(err)
	}
	conn, err := ruleset.OpenConnection(false)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	rules, err := conn.Install(ruleset.Spec{
		FirstQueue: 100, Queues: 1, RejectMark: 0x6e667172, MasqueradeMark: 0x4000, ConnMark: 0x2000,
		SeenTimeout: 20 * time.Second, SeenSize: 65536, Native: native,
	}, new(decision.Table), false)
	if err != nil {
		b.Fatal(err)
	}
	return &forced{b, newBuilder(NodeConfig{Name: "node-1"}), rules, new(decision.Table)}
}

func (f *forced) update(u Update) {
	f.builder.apply(u)
	changes, _ := f.builder.build()
	node := f.builder.config.node(nil, []netip.Addr{netip.MustParseAddr("172.20.0.2")})
	f.table = f.table.Next(time.Time{}, node, changes...)
	if err := f.rules.Follow(f.table); err != nil {
		f.b.Fatal(err)
	}
}

func (f *forced) close() {
	if err := f.rules.Remove(); err != nil {
		f.b.Error(err)
	}
}

func benchmarkFirst(b *testing.B, n int) {
	u := fullUpdate(manyObjects(n))
	for b.Loop() {
		b.StopTimer()
		f := newForced(b)
		b.StartTimer()
		f.update(u)
		b.StopTimer()
		f.close()
		b.StartTimer()
	}
}

func benchmarkChange(b *testing.B, n int) {
	objects := manyObjects(n)
	f := newForced(b)
	defer f.close()
	f.update(fullUpdate(objects))
	for i := 0; b.Loop(); i++ {
		s := objects.EndpointSlices[i/2%n]
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		u := Update{EndpointSlices: map[types.NamespacedName]*EndpointSlice{name: nil}}
		if i%2 == 1 {
			u.EndpointSlices[name] = NewEndpointSlice(s)
		}
		f.update(u)
	}
}
