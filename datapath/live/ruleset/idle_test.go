package ruleset

import (
	"slices"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

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
