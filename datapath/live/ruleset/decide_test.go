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
		r, err := install(onlyServices())
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
