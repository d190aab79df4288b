package publish

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// node is a node as the reasons of the order see it: each of its parts knows a generation of the table, and complains
// if a step comes while a part that the step depends on is behind.
type node struct {
	generation uint64 // of the table that is to come into force
	wrong      []string
	steps      []string

	found, connected, opened, removed    bool
	addresses                            bool // the host's rules were told of new ones
	accepted, announced, balanced, force uint64
	reconciled                           uint64
	fail                                 string // this step fails
}

func (n *node) step(name string, requirements ...bool) error {
	n.steps = append(n.steps, name)
	for i, ok := range requirements {
		if !ok {
			n.wrong = append(n.wrong, fmt.Sprintf("%s: requirement %d", name, i))
		}
	}
	if n.fail == name {
		return errors.New(name + " fails")
	}
	return nil
}

func (n *node) later() bool { return n.opened }

func (n *node) FindPredecessor() error {
	err := n.step("FindPredecessor", n.accepted == 0, !n.connected)
	n.found = true
	return err
}

func (n *node) AddressesChanged() {
	// Before the firewall, too: it accepts for the addresses of the table.
	_ = n.step("AddressesChanged", n.accepted < n.generation)
	n.addresses = true
}

func (n *node) Accept(*decision.Table) {
	_ = n.step("Accept", n.later() || n.found, !n.later() || n.addresses, n.force < n.generation)
	n.accepted = n.generation
}

func (n *node) Connect() error {
	err := n.step("Connect", n.accepted == n.generation, n.balanced < n.generation)
	n.connected = true
	return err
}

func (n *node) Announce(*decision.Table) {
	_ = n.step("Announce", n.accepted == n.generation, n.balanced < n.generation)
	n.announced = n.generation
}

func (n *node) Balance(_, _ *decision.Table) {
	_ = n.step("Balance", n.connected, !n.later() || n.announced == n.generation, n.force < n.generation)
	n.balanced = n.generation
}

func (n *node) ready() bool {
	return n.accepted == n.generation && n.connected && n.balanced == n.generation
}

func (n *node) Open(*decision.Table) error {
	err := n.step("Open", n.ready(), n.reconciled < n.generation)
	n.opened, n.force = true, n.generation
	return err
}

func (n *node) Apply(*decision.Table) {
	_ = n.step("Apply", n.ready(), n.announced == n.generation)
	n.force = n.generation
}

func (n *node) Reconcile(*decision.Table) {
	_ = n.step("Reconcile", n.force == n.generation, !n.removed || n.generation > 1)
	n.reconciled = n.generation
}

func (n *node) RemovePredecessor() {
	_ = n.step("RemovePredecessor", n.force == n.generation, n.reconciled == n.generation)
	n.removed = true
}

func (n *node) Check(_, _ *decision.Table) {
	_ = n.step("Check", n.force == n.generation, n.reconciled == n.generation, n.removed)
}

func table(generation uint64, addresses ...string) *decision.Table {
	var node decision.Node
	for _, a := range addresses {
		node.Addresses = append(node.Addresses, netip.MustParseAddr(a))
	}
	return decision.NewTable(generation, time.Time{}, node, nil)
}

// publish puts two tables into force, the second with another address, and returns what went wrong.
func publish(t *testing.T) *node {
	t.Helper()
	n := new(node)
	var before *decision.Table
	for i, tbl := range []*decision.Table{table(1, "192.0.2.1"), table(2, "192.0.2.2")} {
		n.generation = uint64(i + 1)
		if err := Publish(n, tbl, before); err != nil {
			t.Fatal(err)
		}
		before = tbl
	}
	return n
}

// TestOrder: the order meets the requirements of its parts, and each place in it is necessary: two steps of one table
// that are swapped break it.
func TestOrder(t *testing.T) {
	n := publish(t)
	if len(n.wrong) > 0 {
		t.Errorf("wrong: %v", n.wrong)
	}
	want := "FindPredecessor Accept Connect Balance Open Reconcile RemovePredecessor Check AddressesChanged Accept Announce Balance Apply Reconcile Check"
	if got := strings.Join(n.steps, " "); got != want {
		t.Errorf("steps %s", got)
	}
	was := order
	defer func() { order = was }()
	swapped := 0
	for i := range was {
		for j := i + 1; j < len(was); j++ {
			if was[i].when+was[j].when == first+later {
				continue // never of one table
			}
			order = slices.Clone(was)
			order[i], order[j] = order[j], order[i]
			if n := publish(t); len(n.wrong) == 0 {
				t.Errorf("%s and %s can be swapped: %v", was[i].name, was[j].name, n.steps)
			}
			swapped++
		}
	}
	if swapped < 30 {
		t.Errorf("%d swaps", swapped)
	}
	for _, s := range order {
		if s.why == "" {
			t.Errorf("%s has no reason", s.name)
		}
	}
}

// TestFailure: after a failure no later step is taken.
func TestFailure(t *testing.T) {
	for fail, want := range map[string]string{
		"FindPredecessor": "FindPredecessor",
		"Connect":         "FindPredecessor Accept Connect",
		"Open":            "FindPredecessor Accept Connect Balance Open",
	} {
		n := &node{generation: 1, fail: fail}
		if err := Publish(n, table(1), nil); err == nil || err.Error() != fail+" fails" {
			t.Errorf("%s: error %v", fail, err)
		}
		if got := strings.Join(n.steps, " "); got != want {
			t.Errorf("%s: steps %s", fail, got)
		}
	}
}

// TestSameAddresses: the host's rules are not read again without a reason.
func TestSameAddresses(t *testing.T) {
	n := &node{generation: 1}
	var before *decision.Table
	for range 2 {
		tbl := table(1, "192.0.2.1")
		if err := Publish(n, tbl, before); err != nil {
			t.Fatal(err)
		}
		before = tbl
	}
	if n.addresses {
		t.Error("the addresses were taken for new ones")
	}
}
