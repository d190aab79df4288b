package servicetable

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// held returns the live bytes that a Service with ten endpoints takes: its objects as they are kept, what the builder
// knows of them, and its part of a table.
func held() float64 {
	const services = 2000
	live := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what a sync.Pool keeps lives through one
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	objects := manyObjects(services)
	config := NodeConfig{Name: "node-1", ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	before := live()
	b := newBuilder(config)
	b.apply(fullUpdate(objects))
	changes, _ := b.build()
	table := new(decision.Table).Next(time.Time{}, config.node(nil, nil), changes...)
	changes = nil
	bytes := live() - before
	runtime.KeepAlive(objects)
	runtime.KeepAlive(b)
	runtime.KeepAlive(table)
	return float64(bytes) / services
}

// TestGrowth: objects and the service table are most of the memory of a daemon with nothing to do. Who makes them grow
// knows.
func TestGrowth(t *testing.T) {
	if bytes := held(); bytes > 2900 {
		t.Errorf("a Service with ten endpoints takes %.0f bytes, want 2900 at most", bytes)
	}
}

// BenchmarkHeld reports what a Service with ten endpoints takes.
func BenchmarkHeld(b *testing.B) {
	var bytes float64
	for b.Loop() {
		bytes = held()
	}
	b.ReportMetric(bytes, "B/service")
}
