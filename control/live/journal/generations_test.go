package journal

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestGenerationsAreBounded: in number, and in bytes.
func TestGenerationsAreBounded(t *testing.T) {
	table := decision.NewTable(1, start, node, nil)
	next := func(j *Journal, endpoints ...string) {
		s := servicePort("web", endpoints...)
		table = table.Next(start, node, decision.Change{Service: s.Name.Service(), Ports: []*decision.ServicePort{s}})
		j.SetTable(Published{Table: table})
	}
	j := New(Config{Generations: 3})
	for i := range 5 {
		next(j, fmt.Sprintf("10.0.0.%d:80", i+1))
	}
	g := j.Generations()
	if g.Kept != 3 || g.Oldest != table.Generation()-2 || g.Dropped != 2 || j.generations.of(g.Oldest-1) != nil || j.generations.of(g.Oldest).Generation() != g.Oldest {
		t.Errorf("%+v", g)
	}
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprintf("10.0.%d.%d:80", i/250, i%250+1))
	}
	j = New(Config{GenerationBytes: 3 * size(0, 1000)})
	for range 6 {
		next(j, many...)
		if g := j.Generations(); g.Bytes > 3*size(0, 1000) {
			t.Errorf("%+v", g)
		}
	}
	if g := j.Generations(); g.Kept != 3 || g.Dropped != 3 {
		t.Errorf("%+v", g)
	}
	j = New(Config{GenerationBytes: 1})
	next(j, "10.0.0.1:80")
	next(j, "10.0.0.2:80")
	if g := j.Generations(); g.Kept != 1 || g.Oldest != table.Generation() || g.Bytes != 0 {
		t.Errorf("the table in force: %+v", g)
	}
}

// TestStepsOfTheTableOfThen: a flow is explained by the table that decided it, in which another Service claims the
// same address, and by its service port alone when that is not kept any more.
func TestStepsOfTheTableOfThen(t *testing.T) {
	b := newBench(t, Config{Generations: 2})
	b.port.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	other := servicePort("another", "10.244.0.9:80")
	other.ClusterIP, other.ExternalIPs = netip.MustParseAddr("10.96.0.11"), b.port.ExternalIPs
	b.table = decision.NewTable(1, start, node, []*decision.ServicePort{b.port, other})
	b.SetTable(Published{Table: b.table})
	b.decide(client, nil)
	found := func() *decision.Table {
		e, ok := b.Find(b.ID(1))
		if !ok || len(e.Record(nil, true).Steps) == 0 {
			t.Fatalf("found %v", ok)
		}
		return e.table
	}
	b.SetTable(Published{Table: b.table.Next(start, node, decision.Change{Service: other.Name.Service()})})
	if then := found(); then == nil || then.Generation() != 1 || len(then.Services()) != 2 {
		t.Errorf("explained by %v", then)
	}
	b.decide(netip.AddrPortFrom(client.Addr(), 1), func(f *flow.Flow) { f.Decision.ServicePort = web() })
	if e, _ := b.Find(b.ID(2)); e.table != nil {
		t.Error("explained by a table without its service port")
	}
	b.SetTable(Published{Table: b.inForce.Next(start, node)})
	if then := found(); then != nil {
		t.Errorf("explained by generation %d, which was dropped", then.Generation())
	}
}

// cluster makes a table of services with ten endpoints each.
func cluster(services int) *decision.Table {
	ports := make([]*decision.ServicePort, services)
	for i := range ports {
		ports[i] = clusterPort(i, 0)
	}
	return decision.NewTable(1, start, decision.Node{Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("172.20.0.2")}}, ports)
}

func clusterPort(service, version int) *decision.ServicePort {
	s := servicePort(fmt.Sprint("web-", service))
	s.ClusterIP = netip.AddrFrom4([4]byte{10, 96, byte(service >> 8), byte(service)})
	for k := range 10 {
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(service >> 8), byte(service), byte(k + version)}), 80), Ready: true})
		s.Usable[0] = append(s.Usable[0], uint32(k))
	}
	return s
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestGenerationsMemory: a kept generation of 10,000 services takes no more than is estimated, whoever lists its
// services.
func TestGenerationsMemory(t *testing.T) {
	const services, generations = 10_000, 200
	table := cluster(services)
	j := New(Config{GenerationBytes: 1 << 30})
	j.SetTable(Published{Table: table})
	before := heap()
	for i := range generations {
		s := clusterPort(i*17%services, 1)
		table = table.Next(start.Add(time.Duration(i)), *table.Node(), decision.Change{Service: s.Name.Service(), Ports: []*decision.ServicePort{s}})
		if i%10 == 0 {
			_ = table.Services()
		}
		j.SetTable(Published{Table: table})
	}
	taken, g := int(heap()-before), j.Generations()
	t.Logf("%d bytes a generation; estimated %d", taken/generations, g.Bytes/generations)
	if g.Kept != generations+1 || taken > g.Bytes || taken < g.Bytes/4 {
		t.Errorf("%d generations take %d bytes; %d are estimated", g.Kept, taken, g.Bytes)
	}
	if n := len(j.generations.of(2).Services()); n != services {
		t.Errorf("%d services", n)
	}
	runtime.KeepAlive(slices.Clone(j.generations.kept))
}
