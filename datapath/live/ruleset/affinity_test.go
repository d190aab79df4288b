package ruleset

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mdlayher/netlink"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// TestStaleBindings: clients that are bound to endpoints to which their flows must not go any more are
// removed; others stay, also when another process adopts the tables.
func TestStaleBindings(t *testing.T) {
	sticky := func(change func(*decision.ServicePort)) []*decision.ServicePort {
		s := manyServices(1)[0]
		withEndpoints(s, 0, 3)
		s.AffinitySeconds, s.NodePort, s.ExternalIPs = 100, 30000, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		change(s)
		return []*decision.ServicePort{s}
	}
	at := netip.MustParseAddrPort
	service, external, nodePort := at("10.96.0.0:80"), at("192.0.2.1:80"), at("172.20.0.2:30000")
	endpoints := manyServices(1)[0].Endpoints
	all := []Binding{
		{Protocol: decision.TCP, Client: netip.MustParseAddr("10.244.9.1"), Service: service, Endpoint: endpoints[0].AddrPort},
		{Protocol: decision.TCP, Client: netip.MustParseAddr("10.244.9.2"), Service: service, Endpoint: endpoints[1].AddrPort},
		{Protocol: decision.TCP, Client: netip.MustParseAddr("10.244.9.2"), Service: external, Endpoint: endpoints[2].AddrPort},
		{Protocol: decision.TCP, Client: netip.MustParseAddr("10.244.9.3"), Service: nodePort, Endpoint: endpoints[1].AddrPort},
	}
	withoutFirst := func(s *decision.ServicePort) { s.Usable[decision.Cluster] = s.Usable[decision.Cluster][1:] }
	for _, tt := range []struct {
		name  string
		after []*decision.ServicePort
		stay  []int
	}{
		{"no change of endpoints", sticky(func(s *decision.ServicePort) { s.AffinitySeconds = 50 }), []int{0, 1, 2, 3}},
		{"an endpoint goes", sticky(withoutFirst), []int{1, 2, 3}},
		{"internal policy Local", sticky(func(s *decision.ServicePort) {
			s.InternalPolicy, s.Usable[decision.Local] = decision.Local, []uint32{0}
		}), nil},
		{"no node port", sticky(func(s *decision.ServicePort) { s.NodePort = 0 }), []int{0, 1, 2}},
		{"no affinity", sticky(func(s *decision.ServicePort) { s.AffinitySeconds = 0 }), nil},
		{"no service", nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			installed(t, spec(), func(r *Ruleset) error {
				before := decision.NewTable(1, time.Time{}, auditNode, sticky(func(*decision.ServicePort) {}))
				if err := r.Follow(before); err != nil {
					return err
				}
				bindClients(t, r, all...)
				if err := r.Follow(decision.NewTable(2, time.Time{}, auditNode, tt.after)); err != nil {
					return err
				}
				expectBound(t, all, tt.stay)
				return nil
			})
		})
	}
	t.Run("adopted", func(t *testing.T) {
		inNamespace(t, func() error {
			r, err := install(t, spec())
			if err != nil {
				return err
			}
			if err := r.Follow(decision.NewTable(1, time.Time{}, auditNode, sticky(func(*decision.ServicePort) {}))); err != nil {
				return err
			}
			bindClients(t, r, all...)
			if err := r.Close(); err != nil {
				return err
			}
			heir := again(t, spec(), decision.NewTable(1, time.Time{}, auditNode, sticky(withoutFirst)), false)
			expectBound(t, all, []int{1, 2, 3})
			return heir.Remove()
		})
	})
}

// bindClients adds clients whose last flow was a second ago.
func bindClients(t *testing.T, r *Ruleset, bindings ...Binding) {
	t.Helper()
	for _, b := range bindings {
		s := r.tables[0].copy.bound
		key := addrBytes(b.Client) + addrBytes(b.Service.Addr()) + protoPortBytes(b.Protocol, b.Service.Port())
		value := func(data string) func(*netlink.AttributeEncoder) error {
			return func(e *netlink.AttributeEncoder) error {
				e.Bytes(unix.NFTA_DATA_VALUE, []byte(data))
				return nil
			}
		}
		r.open.Add(s.table.nfproto, unix.NFT_MSG_NEWSETELEM, netlink.Create, func(e *netlink.AttributeEncoder) {
			nft.ElementsOf(TableName, s.name)(e)
			e.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(e *netlink.AttributeEncoder) error {
				e.Nested(unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) error {
					e.Nested(unix.NFTA_SET_ELEM_KEY, value(key))
					e.Nested(unix.NFTA_SET_ELEM_DATA, value(endpointBytes(b.Endpoint)))
					e.Uint64(unix.NFTA_SET_ELEM_TIMEOUT, 100_000)
					return nil
				})
				return nil
			})
		})
	}
	if err := r.run(); err != nil {
		t.Fatal(err)
	}
}

// expectBound checks which of the bindings there are.
func expectBound(t *testing.T, all []Binding, stay []int) {
	t.Helper()
	want := make(map[Binding]bool)
	for _, i := range stay {
		want[all[i]] = true
	}
	got := make(map[Binding]bool)
	err := ReadBindings(func(b Binding) {
		if age := time.Since(b.Last); age < -time.Second || age > 20*time.Second {
			t.Errorf("%+v is %s old", b, age)
		}
		b.Last = time.Time{}
		got[b] = true
	})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("bound: %v, want %v; error %v", slices.Collect(maps.Keys(got)), slices.Collect(maps.Keys(want)), err)
	}
}

// TestSources: which elements source ranges have.
func TestSources(t *testing.T) {
	s := manyServices(1)[0]
	load := netip.MustParseAddr("192.0.2.1")
	s.LoadBalancerIPs = []netip.Addr{load}
	table := newTable(&Spec{}, ipv4)
	for _, tt := range []struct {
		ranges []string
		node   string
		want   map[string]int // elements of each set
	}{
		{[]string{"198.51.100.0/24"}, "", map[string]int{"copy_source_24": 1}},
		{[]string{"198.51.0.0/20", "203.0.113.7/32"}, "", map[string]int{"copy_source_24": 16, "copy_source_32": 1}},
		{[]string{"128.0.0.0/1", "10.0.0.0/8"}, "", map[string]int{"copy_source_8": 129}},
		{[]string{"198.51.100.0/25"}, "", map[string]int{"copy_source_32": 128}},
		{[]string{"172.20.0.0/16"}, "172.20.0.2", map[string]int{"copy_source_16": 1, "copy_source_32": 1}},
		{[]string{"172.20.0.0/16"}, "172.21.0.2", map[string]int{"copy_source_16": 1}},
		{[]string{"198.51.100.0/24", "0.0.0.0/0"}, "", map[string]int{}},
	} {
		s.SourceRanges = nil
		for _, r := range tt.ranges {
			s.SourceRanges = append(s.SourceRanges, netip.MustParsePrefix(r))
		}
		node := new(decision.Node)
		if tt.node != "" {
			node.IPs = []netip.Addr{netip.MustParseAddr(tt.node)}
		}
		got, elements := make(map[string]int), make(map[string]bool)
		table.copyAddress(netip.AddrPortFrom(load, 80), s, node, func(set *set, key, _ string) {
			if slices.Contains(table.copy.sources, set) && !elements[set.name+key] {
				elements[set.name+key] = true
				got[set.name]++
			}
		})
		if !maps.Equal(got, tt.want) {
			t.Errorf("%v, node %s: %v, want %v", tt.ranges, tt.node, got, tt.want)
		}
	}
}

// TestSourcesFollowTheNode: the node's own address lets a load balancer's address pass as a source.
func TestSourcesFollowTheNode(t *testing.T) {
	installed(t, spec(), func(r *Ruleset) error {
		s := manyServices(1)[0]
		s.LoadBalancerIPs, s.SourceRanges = []netip.Addr{netip.MustParseAddr("192.0.2.1")}, []netip.Prefix{netip.MustParsePrefix("172.20.0.0/16")}
		last := new(decision.Table)
		for _, ip := range []string{"172.21.0.2", "172.20.0.2", "172.21.0.2"} {
			node := auditNode
			node.IPs = []netip.Addr{netip.MustParseAddr(ip)}
			last = last.Next(time.Time{}, node, decision.Change{Service: s.Name.Service(), Ports: []*decision.ServicePort{s}})
			if err := r.Follow(last); err != nil {
				return err
			}
			intact(t, r, last)
			elements, err := r.tables[0].readElements(r.tables[0].named("copy_source_32"))
			if want := ip == "172.20.0.2"; err != nil || (len(elements) == 1) != want {
				t.Errorf("node %s: elements %q, error %v", ip, elements, err)
			}
		}
		return nil
	})
}
