package remote_test

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
)

func TestRelayTopology(t *testing.T) {
	f, fakes := newRelay(t, 3, remote.RelayOptions{})
	address := netip.MustParseAddr
	fakes[0].TopologyAnswer = observe.Topology{
		Nodes: []observe.TopologyNode{{Name: "node-b", Addresses: []netip.Addr{address("10.0.0.2")}}, {Name: "node-a", Observed: true}},
		Pods:  []observe.TopologyPod{{Name: "default/b", Addresses: []netip.Addr{address("10.1.0.1")}}},
		Lab:   "lab", CanHold: true, CanBalance: true,
	}
	fakes[1].TopologyAnswer = observe.Topology{
		Nodes: []observe.TopologyNode{{Name: "node-b", Observed: true, Addresses: []netip.Addr{address("10.0.0.2"), address("fd00::2")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}},
		Pods:  []observe.TopologyPod{{Name: "default/b", Node: "node-b", Addresses: []netip.Addr{address("10.1.0.1")}}, {Name: "default/a"}},
		Hosts: []observe.TopologyHost{{Name: "outside", Addresses: []netip.Addr{address("192.0.2.1")}}},
	}
	fakes[2].Fail(errors.New("on fire"))
	none := []netip.Addr{}
	want := &observe.Topology{
		Nodes: []observe.TopologyNode{
			{Name: "node-a", Addresses: none, Observed: true},
			{Name: "node-b", Addresses: []netip.Addr{address("10.0.0.2"), address("fd00::2")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, Observed: true},
			{Name: "node-c", Addresses: none},
		},
		Pods:  []observe.TopologyPod{{Name: "default/a"}, {Name: "default/b", Node: "node-b", Addresses: []netip.Addr{address("10.1.0.1")}}},
		Hosts: []observe.TopologyHost{{Name: "outside", Addresses: []netip.Addr{address("192.0.2.1")}}},
		Lab:   "lab", CanHold: true, CanBalance: true,
	}
	same := cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Transformer("empty", func(l []netip.Prefix) string { return fmt.Sprint(l) })}
	got, err := f.Topology(t.Context())
	if diff := cmp.Diff(want, got, same); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	for _, fake := range fakes {
		fake.NoHolds = true
	}
	if got, err := f.Topology(t.Context()); err != nil || got.CanHold {
		t.Errorf("no node can hold flows: %+v, %v", got, err)
	}
}

// TestRelayServicePages: what a page of all nodes has follows from the same page of each.
func TestRelayServicePages(t *testing.T) {
	f, fakes := newRelay(t, 2, remote.RelayOptions{})
	answer := func(next string, names ...string) observe.Services {
		s := observe.Services{Next: next}
		for _, n := range names {
			s.Services = append(s.Services, observe.Service{Service: "default/" + n, Namespace: "default", Name: n, Family: "IPv4"})
		}
		return s
	}
	for _, tt := range []struct {
		one, two observe.Services
		limit    string
		want     string
		next     string
	}{
		{answer("default/d/IPv4", "a", "d"), answer("", "b", "c"), "2", "a b", "default/b/IPv4"},
		{answer("", "d"), answer("", "d", "e"), "2", "d e", ""},
		{answer("default/b/IPv4", "a", "b"), answer("", "a", "b"), "2", "a b", "default/b/IPv4"},
		{answer("", "a"), answer(""), "1", "a", ""},
		{answer(""), answer(""), "1", "", ""},
		{answer("", "a", "c"), answer("", "b"), "", "a b c", ""},
	} {
		fakes[0].ServicesAnswer, fakes[1].ServicesAnswer = tt.one, tt.two
		got, err := f.Services(t.Context(), observe.ServiceQuery{Limit: tt.limit})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range got.Services {
			names = append(names, s.Name)
		}
		if strings.Join(names, " ") != tt.want || got.Next != tt.next {
			t.Errorf("%v and %v: %v, next %q, want %s, %q", tt.one, tt.two, names, got.Next, tt.want, tt.next)
		}
	}
	var e *observe.Error
	if _, err := f.Services(t.Context(), observe.ServiceQuery{After: "x"}); !errors.As(err, &e) || e.Field != "after" {
		t.Errorf("error %v", err)
	}
}

// counts are different in each field: n, 2n, 3n and so on.
func counts(n uint64) observe.Flows {
	return observe.Flows{
		Total: n, Drawn: 2 * n, Affinity: 3 * n, Rejected: 4 * n, Dropped: 5 * n, Failed: 6 * n, Unanswered: 7 * n, Refused: 8 * n, Reset: 9 * n, Open: 10 * n,
		BytesSent: 11 * n, BytesReceived: 12 * n,
	}
}

func TestRelayServices(t *testing.T) {
	f, fakes := newRelay(t, 3, remote.RelayOptions{})
	early, late := now, now.Add(time.Hour)
	web := func(flows observe.Flows, refused map[string]uint64, fit *observe.Fit, endpoints ...observe.Endpoint) observe.Service {
		return observe.Service{Service: "default/web:http", Namespace: "default", Name: "web", PortName: "http", Family: "IPv4", Flows: flows, Refused: refused, Fit: fit, Endpoints: endpoints}
	}
	fakes[0].ServicesAnswer = observe.Services{Nodes: []string{"node-a"}, Lost: 1, Services: []observe.Service{
		web(counts(1), map[string]uint64{"no-endpoints": 1},
			&observe.Fit{Since: late, Draws: 30, ChiSquare: 2.5, DegreesOfFreedom: 1, PValue: 0.1},
			observe.Endpoint{Endpoint: "10.0.0.2:80", Pod: "default/two", Local: true, Flows: observe.Flows{Total: 10}, Expected: 0.5, Observed: 0.4},
			observe.Endpoint{Endpoint: "10.0.0.3:80", Excluded: "other-zone", Expected: 0.5, Observed: 0.6},
			observe.Endpoint{Endpoint: "10.0.0.4:80", Removed: true, Flows: observe.Flows{Total: 2}},
		),
		{Service: "default/other", Namespace: "default", Name: "other", Family: "IPv6"},
	}}
	fakes[1].ServicesAnswer = observe.Services{Nodes: []string{"node-b"}, Lost: 2, Services: []observe.Service{
		web(counts(10), map[string]uint64{"no-endpoints": 3},
			&observe.Fit{Since: early, Draws: 90, ChiSquare: 1.341, DegreesOfFreedom: 1, PValue: 0.2},
			observe.Endpoint{Endpoint: "10.0.0.1:80", Expected: 0.5, Observed: 0.5},
			observe.Endpoint{Endpoint: "10.0.0.2:80", Node: "node-x", Flows: observe.Flows{Total: 5}, Expected: 0.5, Observed: 0.5},
			observe.Endpoint{Endpoint: "10.0.0.3:80"},
			observe.Endpoint{Endpoint: "10.0.0.4:80", Excluded: "not-ready"},
		),
		{Service: "default/other", Namespace: "default", Name: "other", Family: "IPv4"},
		{Service: "another/web", Namespace: "another", Name: "web", Family: "IPv4"},
	}}
	fakes[2].ServicesAnswer = observe.Services{Nodes: []string{"node-c"}, Services: []observe.Service{
		web(observe.Flows{}, map[string]uint64{"no-endpoints": 2, "source-not-allowed": 1}, nil),
		{Service: "default/other", Namespace: "default", Name: "other", Family: "IPv6", Refused: map[string]uint64{"no-endpoints": 4}},
	}}
	for range 2 { // the nodes' own answers are not changed
		got, err := f.Services(t.Context(), observe.ServiceQuery{})
		if err != nil {
			t.Fatal(err)
		}
		want := &observe.Services{Nodes: []string{"node-a", "node-b", "node-c"}, Lost: 3, Services: []observe.Service{
			{Service: "another/web", Namespace: "another", Name: "web", Family: "IPv4", Endpoints: []observe.Endpoint{}},
			{Service: "default/other", Namespace: "default", Name: "other", Family: "IPv4", Endpoints: []observe.Endpoint{}},
			{Service: "default/other", Namespace: "default", Name: "other", Family: "IPv6", Refused: map[string]uint64{"no-endpoints": 4}, Endpoints: []observe.Endpoint{}},
			web(counts(11), map[string]uint64{"no-endpoints": 6, "source-not-allowed": 1},
				&observe.Fit{Since: early, Draws: 120, ChiSquare: 3.841, DegreesOfFreedom: 2, PValue: math.Exp(-3.841 / 2)}, // which it is for two
				observe.Endpoint{Endpoint: "10.0.0.1:80", Expected: 0.375, Observed: 0.375},
				observe.Endpoint{Endpoint: "10.0.0.2:80", Pod: "default/two", Node: "node-x", Local: true, Flows: observe.Flows{Total: 15}, Expected: 0.5, Observed: 0.475},
				observe.Endpoint{Endpoint: "10.0.0.3:80", Expected: 0.125, Observed: 0.15},
				observe.Endpoint{Endpoint: "10.0.0.4:80", Excluded: "not-ready", Flows: observe.Flows{Total: 2}},
			),
		}}
		near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
		if diff := cmp.Diff(want, got, near); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

// TestRelayChanges: the changes of all nodes are in one list, by their times, also of a service that another node
// does not have. The nodes' own answers stay as they were.
func TestRelayChanges(t *testing.T) {
	f, fakes := newRelay(t, 3, remote.RelayOptions{})
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	service := func(name string, changes ...observe.Change) observe.Service {
		return observe.Service{Service: "default/" + name, Namespace: "default", Name: name, Family: "IPv4", Changes: slices.Grow(changes, 10)}
	}
	first := observe.Change{Node: "node-a", Time: at(1), Generation: 7, FirstFlow: &observe.ChangeFlow{ID: "a-1", Time: at(2)}}
	fakes[0].ServicesAnswer.Services = []observe.Service{service("web", first, observe.Change{Node: "node-a", Time: at(5), Generation: 8})}
	fakes[1].ServicesAnswer.Services = []observe.Service{service("api", observe.Change{Node: "node-b", Time: at(9), Generation: 4}), service("web", observe.Change{Node: "node-b", Time: at(3), Generation: 3}, observe.Change{Node: "node-b", Time: at(5), Generation: 4})}
	fakes[2].ServicesAnswer.Services = []observe.Service{service("web")}
	for range 2 {
		got, err := f.Services(t.Context(), observe.ServiceQuery{Changes: true})
		if err != nil || len(got.Services) != 2 {
			t.Fatalf("%+v, %v", got, err)
		}
		var order []string
		for _, s := range got.Services {
			for _, c := range s.Changes {
				order = append(order, fmt.Sprintf("%s %s %d", s.Name, c.Node, c.Generation))
			}
		}
		if want := []string{"api node-b 4", "web node-a 7", "web node-b 3", "web node-a 8", "web node-b 4"}; !slices.Equal(order, want) {
			t.Errorf("got %q, want %q", order, want)
		}
		if c := got.Services[1].Changes[0]; !reflect.DeepEqual(c, first) {
			t.Errorf("got %+v, want %+v", c, first)
		}
	}
}
