package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// tries makes connections from a host, and returns how many of them are made within a time.
func (l *livingLab) tries(n int, host, address string, within time.Duration) (made int) {
	l.Helper()
	ns, err := l.Namespace(host)
	if err != nil {
		l.Fatal(err)
	}
	for range n {
		ctx, cancel := context.WithTimeout(l.Context(), within)
		c, err := ns.Dial(ctx, "tcp", netip.AddrPort{}, netip.MustParseAddrPort(address))
		cancel()
		if err == nil {
			made++
			_ = c.Close()
		}
	}
	return made
}

// TestFaults: each fault disturbs connections, and its end is the end of that.
func TestFaults(t *testing.T) {
	t.Parallel()
	l := newLivingLab(t)
	const other = "10.244.1.2:8080" // on node-b; shell is on node-a
	wrong := netip.MustParsePrefix("10.244.1.2/32")
	pods := netip.MustParsePrefix("10.244.1.0/24")
	for _, f := range []Fault{
		{Kind: "firewall", Host: "node-a", To: wrong},
		{Kind: "firewall", Host: "node-b", To: pods, Port: 8080, Protocol: decision.TCP, Reject: true},
		{Kind: "route", Host: "node-a", To: pods},
		{Kind: "route", Host: "node-a", To: pods, Via: netip.MustParseAddr("192.0.2.1")},
		{Kind: "route", Host: "node-a", To: wrong, Via: netip.MustParseAddr("192.0.2.1")},
		{Kind: "loss", Host: "default/shell", Percent: 100},
		{Kind: "loss", Host: "node-b", Percent: 100},
		{Kind: "full-table", Host: "node-a", Connections: 0},
	} {
		if n := l.tries(1, "shell", other, 10*time.Second); n != 1 {
			t.Fatalf("before %s there is no connection", &f)
		}
		added, err := l.AddFault(l.Context(), f)
		if err != nil {
			t.Fatalf("%s: %v", &f, err)
		}
		if list := l.Faults(); len(list) != 1 || list[0] != added {
			t.Errorf("the list is %v", list)
		}
		if n := l.tries(1, "shell", other, 300*time.Millisecond); n != 0 {
			t.Errorf("with %s there is a connection", &f)
		}
		if ended, err := l.RemoveFault(t.Context(), added.ID); err != nil || len(ended) != 1 {
			t.Fatalf("%s: %v", &f, err)
		}
	}
	if n := l.tries(1, "shell", other, 10*time.Second); n != 1 {
		t.Error("without faults there is no connection")
	}
	// A full table counts connections that have ended, too: also the last one of before, if its end comes only now.
	full := l.fault(Fault{Kind: "full-table", Host: "node-a", Connections: 3})
	if made := l.tries(3, "shell", other, 10*time.Second); made < 2 {
		t.Errorf("a table for 3 connections: %d of 3 are made", made)
	}
	if made := l.tries(2, "shell", other, 300*time.Millisecond); made != 0 {
		t.Errorf("a table for 3 connections: %d are made when it is full", made)
	}
	if _, err := l.RemoveFault(t.Context(), full.ID); err != nil {
		t.Fatal(err)
	}
	// A rule for another port disturbs none.
	l.fault(Fault{Kind: "firewall", Host: "node-a", To: wrong, Port: 8081, Protocol: decision.TCP})
	l.fault(Fault{Kind: "loss", Host: "node-b", Percent: 0.001})
	l.fault(Fault{Kind: "full-table", Host: "node-a", Connections: 1000})
	for range 20 {
		if l.tries(1, "shell", other, 10*time.Second) != 1 {
			t.Fatal("a connection that no fault concerns is disturbed")
		}
	}
	if ended, err := l.RemoveFault(t.Context(), 0); err != nil || len(ended) != 3 || len(l.Faults()) != 0 {
		t.Errorf("%v: %v are over, %v are left", err, ended, l.Faults())
	}
}

func (l *livingLab) fault(f Fault) Fault {
	l.Helper()
	f, err := l.AddFault(l.Context(), f)
	if err != nil {
		l.Fatal(err)
	}
	return f
}

func TestFaultDelay(t *testing.T) {
	t.Parallel()
	l := newLivingLab(t)
	f, err := l.AddFault(t.Context(), Fault{Kind: "delay", Host: "shell", Delay: labapi.Duration(time.Second)})
	if errors.Is(err, errors.ErrUnsupported) {
		if !strings.Contains(err.Error(), "the kernel has no netem") {
			t.Error(err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	l.answers("shell", "10.244.1.2:8080")
	if d := time.Since(began); d < time.Second {
		t.Errorf("with a delay of a second, an answer takes %s", d)
	}
	if _, err := l.RemoveFault(t.Context(), f.ID); err != nil {
		t.Error(err)
	}
}

// TestFaultStates: faults that change a state of the kernel restore it.
func TestFaultStates(t *testing.T) {
	t.Parallel()
	l := newLivingLab(t)
	filter := func() string {
		v, err := l.topology.find("node-a").Sysctl("net.ipv4.conf.eth0.rp_filter")
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	entries := func() (endpoints []netip.AddrPort) {
		err := withEntries(l.topology.find("node-a").Namespace, func(table *conntrack.Table) error {
			return table.Dump(conntrack.Filter{Protocol: uint8(decision.UDP)}, func(s *conntrack.State) { endpoints = append(endpoints, s.Endpoint()) })
		})
		if err != nil {
			t.Fatal(err)
		}
		return endpoints
	}
	rp := l.fault(Fault{Kind: "rp-filter", Host: "node-a"})
	gone := netip.MustParseAddrPort("10.244.1.99:53")
	leadTo := func(endpoint netip.AddrPort) Fault {
		return l.fault(Fault{Kind: "stale-entry", Host: "node-a", From: netip.MustParseAddrPort("10.244.0.9:40000"), To: netip.MustParsePrefix("10.96.0.10/32"), Port: 53, Endpoint: endpoint})
	}
	leadTo(netip.MustParseAddrPort("10.244.1.98:53"))
	stale := leadTo(gone) // in place of that
	if v := filter(); v != "1" {
		t.Errorf("rp_filter is %s", v)
	}
	if e := entries(); len(e) != 1 || e[0] != gone {
		t.Errorf("the entries lead to %v", e)
	}
	for _, id := range []int{rp.ID, stale.ID} {
		if _, err := l.RemoveFault(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if v, e := filter(), entries(); v != "0" || len(e) != 0 {
		t.Errorf("after the faults rp_filter is %s, and there are the entries %v", v, e)
	}
}

// TestFaultsUndoneByHand: a fault whose rule, route, value or entry is gone is not listed, and can be removed.
func TestFaultsUndoneByHand(t *testing.T) {
	t.Parallel()
	l := newLivingLab(t)
	ns := l.topology.find("node-a").Namespace
	to := netip.MustParsePrefix("10.244.1.2/32")
	table := func(id int) *nftables.Table {
		return &nftables.Table{Name: fmt.Sprintf("filter-%d", id), Family: nftables.TableFamilyINet}
	}
	deleteTable := func(id int) error {
		return withTables(ns, func(c *nftables.Conn) error { c.DelTable(table(id)); return nil })
	}
	deleteRules := func(id int) error {
		return withTables(ns, func(c *nftables.Conn) error {
			c.FlushChain(&nftables.Chain{Name: "filter", Table: table(id)})
			return nil
		})
	}
	deleteRoute := func(int) error { return ns.RestoreRoute(to, nil) }
	client := netip.MustParseAddrPort("10.244.0.9:40000")
	for _, test := range []struct {
		fault Fault
		undo  func(id int) error
	}{
		{Fault{Kind: "firewall", Host: "node-a", To: to}, deleteTable},
		{Fault{Kind: "firewall", Host: "node-a", To: to, Reject: true}, deleteRules},
		{Fault{Kind: "loss", Host: "node-a", Percent: 1}, deleteRules},
		{Fault{Kind: "full-table", Host: "node-a", Connections: 1000}, deleteTable},
		{Fault{Kind: "route", Host: "node-a", To: to}, deleteRoute},
		{Fault{Kind: "route", Host: "node-a", To: to, Via: netip.MustParseAddr("192.0.2.1")}, deleteRoute},
		{Fault{Kind: "rp-filter", Host: "node-a"}, func(int) error {
			return errors.Join(ns.SetSysctl("net.ipv4.conf.all.rp_filter", "0"), ns.SetSysctl("net.ipv4.conf.eth0.rp_filter", "0"))
		}},
		{Fault{Kind: "stale-entry", Host: "node-a", From: client, To: netip.MustParsePrefix("10.96.0.10/32"), Port: 53, Endpoint: netip.MustParseAddrPort("10.244.1.99:53")}, func(int) error {
			return withEntries(ns, func(table *conntrack.Table) error {
				return deleteEntry(table, conntrack.Tuple{Protocol: uint8(decision.UDP), Source: client, Destination: netip.MustParseAddrPort("10.96.0.10:53")})
			})
		}},
	} {
		for _, listed := range []bool{true, false} {
			f := l.fault(test.fault)
			if list := l.Faults(); len(list) != 1 || list[0] != f {
				t.Errorf("%s: the list is %v", &f, list)
			}
			if err := test.undo(f.ID); err != nil {
				t.Fatalf("%s: %v", &f, err)
			}
			if listed {
				if list := l.Faults(); len(list) != 0 {
					t.Errorf("%s is undone, and the list is %v", &f, list)
				}
			} else if ended, err := l.RemoveFault(t.Context(), f.ID); err != nil || len(ended) != 1 {
				t.Errorf("%s is undone; to remove it: %v, %v", &f, ended, err)
			}
		}
	}
}

// TestFaultsOfDaemons uses fake daemons.
func TestFaultsOfDaemons(t *testing.T) {
	t.Parallel()
	l := mustUp(t, "kind", "good")
	state := func() DaemonState { return DaemonState(l.daemons["kind-worker"].status().State) }
	for kind, want := range map[string]DaemonState{"kill": Stopped, "freeze": Frozen} {
		f, err := l.AddFault(t.Context(), Fault{Kind: kind, Host: "kind-worker"})
		if err != nil {
			t.Fatal(err)
		}
		if got := state(); got != want {
			t.Errorf("%s: the daemon is %s", kind, got)
		}
		if list := l.Faults(); len(list) != 1 || list[0] != f {
			t.Errorf("%s: the list is %v", kind, list)
		}
		if _, err := l.RemoveFault(t.Context(), f.ID); err != nil || state() != Ready {
			t.Errorf("after %s the daemon is %s: %v", kind, state(), err)
		}
	}
}

func TestInvalidFaults(t *testing.T) {
	spec := &Spec{Nodes: []Node{{Name: "node-a"}}, Pods: []Pod{{Name: "web", Namespace: "default", Node: "node-a"}}}
	for _, test := range []struct {
		fault Fault
		want  string
	}{
		{Fault{Kind: "firewal", Host: "node-a"}, `no fault "firewal": want one of delay, firewall,`},
		{Fault{Kind: "kill", Host: "node-b"}, `no host "node-b"`},
		{Fault{Kind: "kill", Host: "web"}, "default/web is not a node"},
		{Fault{Kind: "rp-filter", Host: "router"}, "router is not a node"},
		{Fault{Kind: "loss", Host: "router", Percent: 5}, "router is not a node"},
		{Fault{Kind: "loss", Host: "web"}, "percent is missing"},
	} {
		if err := validateFault(spec, &test.fault); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %s", test.fault, err, test.want)
		}
	}
}
