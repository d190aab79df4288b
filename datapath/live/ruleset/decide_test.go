package ruleset

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// TestDecide: services whose flows the kernel decides are not queued, as far as the copy can decide them.
func TestDecide(t *testing.T) {
	service := func(change func(*decision.ServicePort)) *decision.Table {
		s := manyServices(1)[0]
		s.NodePort, s.LoadBalancerIPs = 30000, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		change(s)
		return decision.NewTable(1, time.Time{}, auditNode, []*decision.ServicePort{s})
	}
	clusterIP := addrBytes(netip.MustParseAddr("10.96.0.0")) + protoPortBytes(decision.TCP, 80)
	loadBalancer := addrBytes(netip.MustParseAddr("192.0.2.1")) + protoPortBytes(decision.TCP, 80)
	others := addrBytes(netip.MustParseAddr("10.96.0.1")) + protoPortBytes(decision.TCP, 80)
	all := func(data string) map[string]string { return map[string]string{clusterIP: data, loadBalancer: data} }
	steps := []struct {
		name   string
		change func(*decision.ServicePort)
		other  bool              // another Service has the load balancer's address and the node port
		want   map[string]string // of the map decide
		port   string            // the data for the node port
		scope  []string
	}{
		{"queue", func(*decision.ServicePort) {}, false, map[string]string{}, "", []string{clusterIP, loadBalancer}},
		{"kernel", func(s *decision.ServicePort) { s.QueueOneIn = decision.NotQueued }, false, all("accept"), "accept", nil},
		{"one in 100", func(s *decision.ServicePort) { s.QueueOneIn = 100 }, false, all("one_in_100"), "one_in_100", []string{clusterIP, loadBalancer}},
		{"one in 7", func(s *decision.ServicePort) { s.QueueOneIn = 7 }, false, all("one_in_7"), "one_in_7", []string{clusterIP, loadBalancer}},
		{"affinity", func(s *decision.ServicePort) { s.QueueOneIn, s.AffinitySeconds = decision.NotQueued, 10 }, false, all("accept"), "accept", nil},
		{"affinity, one in 100", func(s *decision.ServicePort) { s.QueueOneIn, s.AffinitySeconds = 100, 10 }, false, map[string]string{}, "", []string{clusterIP, loadBalancer}},
		{"source ranges", func(s *decision.ServicePort) {
			s.QueueOneIn, s.SourceRanges = decision.NotQueued, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		}, false, all("accept"), "accept", nil},
		{"without endpoints", func(s *decision.ServicePort) { s.QueueOneIn, s.HasEndpoints = decision.NotQueued, false }, false, all("accept"), "accept", nil},
		{"contested", func(s *decision.ServicePort) { s.QueueOneIn = decision.NotQueued }, true, map[string]string{clusterIP: "accept"}, "", []string{others, loadBalancer}},
		{"no more", func(s *decision.ServicePort) { s.QueueOneIn = decision.NotQueued }, false, all("accept"), "accept", nil},
	}
	inNamespace(t, func() error {
		r, err := install(t, onlyServices())
		if err != nil {
			return err
		}
		defer r.Remove() //nolint:errcheck // the namespace goes anyway
		last := new(decision.Table)
		for i, s := range steps {
			other := decision.Change{Service: decision.ServiceName{Namespace: "default", Name: "1"}}
			if s.other {
				p := *manyServices(2)[1]
				p.NodePort, p.LoadBalancerIPs, p.QueueOneIn = 30000, []netip.Addr{netip.MustParseAddr("192.0.2.1")}, 0
				other.Ports = []*decision.ServicePort{&p}
			}
			table := last.Next(time.Time{}, auditNode, decision.Change{Service: decision.ServiceName{Namespace: "default", Name: "0"}, Ports: service(s.change).Services()}, other)
			last = table
			if err := r.Follow(table); err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
			intact(t, r, table)
			of := r.tables[0]
			have := func(name string) map[string]string {
				e, err := of.readElements(of.named(name))
				if err != nil {
					t.Fatal(err)
				}
				return e
			}
			if got := have("decide"); !maps.Equal(got, s.want) {
				t.Errorf("step %d, %s: map decide has %q, want %q", i, s.name, got, s.want)
			}
			if got := have("decide_nodeport")[protoPortBytes(decision.TCP, 30000)]; got != s.port {
				t.Errorf("step %d, %s: the node port has %q, want %q", i, s.name, got, s.port)
			}
			if got := slices.Sorted(maps.Keys(have("scope"))); !slices.Equal(got, s.scope) {
				t.Errorf("step %d, %s: set scope has %q, want %q", i, s.name, got, s.scope)
			}
		}
		// Another process adopts them.
		if err := r.Close(); err != nil {
			return err
		}
		heir := again(t, onlyServices(), last, false)
		intact(t, heir, last)
		return heir.Remove()
	})
}

// TestIdle: without a service whose flows are queued, the base chains for queued flows are missing; the first one brings
// them, and they stay, also when another process adopts the tables.
func TestIdle(t *testing.T) {
	port := func(i int, oneIn uint32) decision.Change {
		s := *manyServices(i + 1)[i]
		s.QueueOneIn = oneIn
		return decision.Change{Service: s.Name.Service(), Ports: []*decision.ServicePort{&s}}
	}
	kernel := new(decision.Table).Next(time.Time{}, auditNode, port(0, decision.NotQueued))
	more := kernel.Next(time.Time{}, auditNode, port(1, decision.NotQueued))
	some := more.Next(time.Time{}, auditNode, port(1, 100))
	back := some.Next(time.Time{}, auditNode, port(1, decision.NotQueued))
	inNamespace(t, func() error {
		check := func(r *Ruleset, step string, queueing bool) {
			t.Helper()
			for _, of := range r.tables {
				is, err := of.readState()
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range []string{"queue_prerouting", "reject_prerouting", "learn_prerouting", "learn_output", "learn_input", "learn_postrouting"} {
					if _, there := is.chains[name]; there != queueing {
						t.Errorf("%s: %s: chain %s is there: %t, want %t", step, of, name, there, queueing)
					}
				}
				for _, name := range []string{"queue_output", "reject_output", "slipped_prerouting", "forward", "nat_prerouting"} {
					if _, there := is.chains[name]; !there {
						t.Errorf("%s: %s has no chain %s", step, of, name)
					}
				}
			}
		}
		r := again(t, onlyServices(), kernel, false)
		for _, step := range []struct {
			name     string
			table    *decision.Table
			queueing bool
		}{{"only the kernel decides", kernel, false}, {"another service", more, false}, {"one that is queued", some, true}, {"no more", back, true}} {
			if err := r.Follow(step.table); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			check(r, step.name, step.queueing)
			intact(t, r, step.table)
		}
		if err := r.Close(); err != nil {
			return err
		}
		heir := again(t, onlyServices(), back, false)
		check(heir, "adopted", true)
		intact(t, heir, back)
		if err := heir.Remove(); err != nil {
			return err
		}
		if err := again(t, onlyServices(), kernel, false).Close(); err != nil {
			return err
		}
		heir = again(t, onlyServices(), back, false)
		check(heir, "adopted without the chains", false)
		intact(t, heir, back)
		// After an error of Follow, an audit takes its place.
		if done, err := heir.Audit(some, true); err != nil || !done.Reinstalled {
			t.Errorf("audit with another table: %+v, %v", done, err)
		}
		check(heir, "audited", true)
		intact(t, heir, some)
		if err := heir.Close(); err != nil {
			return err
		}
		heir = again(t, onlyServices(), some, true)
		check(heir, "adopted with a service that is queued", true)
		if err := heir.Remove(); err != nil {
			return err
		}
		// Without services, and where the first packet of every flow is queued, the chains are there.
		for _, s := range []Spec{onlyServices(), spec()} {
			table := kernel
			if s.OnlyServices {
				table = decision.NewTable(1, time.Time{}, auditNode, nil)
			}
			r := again(t, s, table, false)
			check(r, "without services, or with all flows", true)
			if err := r.Remove(); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestForQueued: the names are those of base chains.
func TestForQueued(t *testing.T) {
	s := onlyServices()
	table := newTable(&s, ipv4)
	all := s.chains(table)
	s.Idle = true
	idle := s.chains(table)
	if left := len(all) - len(idle); left != 6 {
		t.Errorf("%d chains are left out, want 6", left)
	}
	for _, c := range all {
		if forQueued(c.name) && (c.kind == "" || slices.ContainsFunc(idle, func(o chain) bool { return o.name == c.name })) {
			t.Errorf("chain %s", c.name)
		}
	}
}

// TestIsIdle: a table that queues some flow is not idle, by itself or as the next one.
func TestIsIdle(t *testing.T) {
	first := manyServices(1)[0]
	first.QueueOneIn, first.NodePort = decision.NotQueued, 30000
	before := decision.NewTable(1, time.Time{}, auditNode, []*decision.ServicePort{first})
	for _, tt := range []struct {
		name   string
		change func(*decision.ServicePort)
		want   bool
	}{
		{"the kernel decides", func(*decision.ServicePort) {}, true},
		{"queued", func(s *decision.ServicePort) { s.QueueOneIn = 0 }, false},
		{"one in 7", func(s *decision.ServicePort) { s.QueueOneIn = 7 }, false},
		{"the address of two services", func(s *decision.ServicePort) { s.ClusterIP = first.ClusterIP }, false},
		{"the node port of two services", func(s *decision.ServicePort) { s.NodePort = 30000 }, false},
		{"without endpoints", func(s *decision.ServicePort) { s.HasEndpoints, s.Endpoints, s.Usable = false, nil, [2][]uint32{} }, true},
	} {
		second := *manyServices(2)[1]
		second.QueueOneIn = decision.NotQueued
		tt.change(&second)
		table := before.Next(time.Time{}, auditNode, decision.Change{Service: second.Name.Service(), Ports: []*decision.ServicePort{&second}})
		if isIdle(nil, table) != tt.want || isIdle(before, table) != tt.want {
			t.Errorf("%s: idle %t, after another table %t, want %t", tt.name, isIdle(nil, table), isIdle(before, table), tt.want)
		}
	}
	if !isIdle(nil, before) || isIdle(nil, decision.NewTable(1, time.Time{}, auditNode, nil)) {
		t.Error("the first table, or an empty one")
	}
}
