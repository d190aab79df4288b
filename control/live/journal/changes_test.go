package journal

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// servicePort is a service port with endpoints at these addresses; those after "!" are not ready.
func servicePort(name string, addresses ...string) *decision.ServicePort {
	s := &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "default", Name: name}, Protocol: decision.TCP, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.10"), Port: 80,
	}
	for _, a := range addresses {
		e := decision.Endpoint{Pod: "default/pod", Ready: a[0] != '!'}
		if !e.Ready {
			e.Exclusions[decision.Cluster], a = decision.NotReady, a[1:]
		}
		e.AddrPort = netip.MustParseAddrPort(a)
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func TestChanges(t *testing.T) {
	built := time.Unix(1_800_000_000, 0)
	web := decision.ServiceName{Namespace: "default", Name: "web"}
	table := decision.NewTable(1, built, decision.Node{}, []*decision.ServicePort{servicePort("web", "10.0.0.1:80", "10.0.0.2:80")})
	j := New(Config{})
	j.SetTable(Published{Table: table})
	next := func(s *decision.ServicePort) {
		built = built.Add(time.Second)
		change := decision.Change{Service: web}
		if s != nil {
			change.Ports = []*decision.ServicePort{s}
		}
		table = table.Next(built, decision.Node{}, change)
		j.SetTable(Published{Table: table})
	}
	last := func(s *decision.ServicePort) *observe.Change {
		list := j.Changes(s)
		if len(list) == 0 {
			return nil
		}
		return &list[len(list)-1]
	}
	affinity := servicePort("web", "10.0.0.2:80", "10.0.0.3:80")
	affinity.AffinitySeconds = 10
	for _, tt := range []struct {
		name string
		to   *decision.ServicePort
		want *observe.Change
	}{
		{"nothing", servicePort("web", "10.0.0.1:80", "10.0.0.2:80"), nil},
		{"not ready", servicePort("web", "!10.0.0.1:80", "10.0.0.2:80"), &observe.Change{Endpoints: []observe.EndpointChange{{Endpoint: "10.0.0.1:80", Pod: "default/pod", Change: "excluded", Excluded: "not-ready"}}}},
		{"ready", servicePort("web", "10.0.0.1:80", "10.0.0.2:80"), &observe.Change{Endpoints: []observe.EndpointChange{{Endpoint: "10.0.0.1:80", Pod: "default/pod", Change: "usable"}}}},
		{"another one", servicePort("web", "10.0.0.2:80", "10.0.0.3:80"), &observe.Change{Endpoints: []observe.EndpointChange{
			{Endpoint: "10.0.0.3:80", Pod: "default/pod", Change: "added"}, {Endpoint: "10.0.0.1:80", Pod: "default/pod", Change: "removed"},
		}}},
		{"another one that is not ready", servicePort("web", "10.0.0.2:80", "10.0.0.3:80", "!10.0.0.4:80"), &observe.Change{Endpoints: []observe.EndpointChange{{Endpoint: "10.0.0.4:80", Pod: "default/pod", Change: "added", Excluded: "not-ready"}}}},
		{"settings", affinity, &observe.Change{Settings: true, Endpoints: []observe.EndpointChange{{Endpoint: "10.0.0.4:80", Pod: "default/pod", Change: "removed"}}}},
		{"gone", nil, nil},
		{"back", servicePort("web", "10.0.0.2:80"), &observe.Change{Created: true}},
	} {
		next(tt.to)
		if tt.want != nil {
			tt.want.Time, tt.want.Generation = built, table.Generation()
		}
		if diff := cmp.Diff(tt.want, last(servicePort("web"))); diff != "" {
			t.Errorf("%s: -want +got:\n%s", tt.name, diff)
		}
	}
	if n := len(j.Changes(servicePort("web"))); n != 1 {
		t.Errorf("%d changes, want one since it is back", n)
	}
}

// TestChangesAreBounded: in ports, in changes of a port, and in endpoints of a change.
func TestChangesAreBounded(t *testing.T) {
	table := decision.NewTable(1, time.Time{}, decision.Node{}, nil)
	j := New(Config{})
	j.SetTable(Published{Table: table})
	next := func(s *decision.ServicePort) {
		table = table.Next(time.Time{}, decision.Node{}, decision.Change{Service: s.Name.Service(), Ports: []*decision.ServicePort{s}})
		j.SetTable(Published{Table: table})
	}
	for i := range changedPorts + 5 {
		next(servicePort(fmt.Sprint("web-", i)))
	}
	if len(j.changes.ports) != changedPorts || len(j.changes.order) != changedPorts || j.Changes(servicePort("web-4")) != nil || j.Changes(servicePort("web-5")) == nil {
		t.Errorf("%d ports, %d in order", len(j.changes.ports), len(j.changes.order))
	}
	last := servicePort(fmt.Sprint("web-", changedPorts))
	for i := range portChanges + 5 {
		s := *last
		s.NodePort = uint16(i + 1)
		next(&s)
	}
	if list := j.Changes(last); len(list) != portChanges || list[0].Created || list[portChanges-1].Generation != table.Generation() {
		t.Errorf("%d changes: %+v", len(list), list)
	}
	var many []string
	for i := range changeEndpoints + 5 {
		many = append(many, fmt.Sprintf("10.0.1.%d:80", i))
	}
	next(servicePort(last.Name.Name, many...))
	if list := j.Changes(last); len(list[portChanges-1].Endpoints) != changeEndpoints || list[portChanges-1].More != 5 {
		t.Errorf("%+v", list[portChanges-1])
	}
}
