package ruleset

import (
	"slices"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestCompare: a comparison counts what the kernel has, finds damage, and leaves it.
func TestCompare(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	installed(t, spec(), func(r *Ruleset) error {
		table := decision.NewTable(1, time.Time{}, auditNode, services(30))
		if err := r.Follow(table); err != nil {
			return err
		}
		chains, rules, elements := 0, 0, 0
		should := shouldHave(r, table)
		for _, of := range r.tables {
			for _, c := range r.spec.chains(of) {
				chains++
				rules += len(c.rules)
			}
			for _, s := range of.sets {
				elements += len(should[s])
			}
		}
		is, err := r.Compare(table)
		if err != nil || len(is.Differences) > 0 {
			t.Errorf("undamaged: %q, error %v", is.Differences, err)
		}
		if elements == 0 || is.Chains != chains || is.Rules != rules || is.Elements != elements {
			t.Errorf("%+v, want %d chains, %d rules, %d elements", is, chains, rules, elements)
		}
		changeRules(t, "delete element ip nfqproxy service { 10.96.0.1 . tcp . 80 }")
		for range 2 {
			is, err := r.Compare(table)
			if err != nil || !slices.Equal(is.Differences, []string{"set service lacks 1 elements and has 0 others (ip)"}) || is.Elements != elements-1 {
				t.Errorf("damaged: %+v, error %v", is, err)
			}
		}
		// Whatever table is compared, the sets follow the one in force.
		next := decision.NewTable(2, time.Time{}, auditNode, services(7))
		if is, err := r.Compare(next); err != nil || len(is.Differences) == 0 {
			t.Errorf("with another table: %+v, error %v", is, err)
		}
		r.loaded = [2]*state{}
		if _, err := r.Compare(table); err == nil {
			t.Error("tables that are not known were compared")
		}
		return nil
	})
}

// TestIsAlive: without a switch packets are always queued; with one, while its set has an element.
func TestIsAlive(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	queued := func(r *Ruleset, f decision.Family) bool {
		t.Helper()
		alive, err := r.IsAlive(f)
		if err != nil {
			t.Error(err)
		}
		return alive
	}
	s := spec()
	s.Alive = Alive{Mark: 1, Timeout: time.Hour, IPv4: true}
	installed(t, s, func(r *Ruleset) error {
		if !queued(r, decision.IPv4) || !queued(r, decision.IPv6) {
			t.Error("packets are not queued at first")
		}
		changeRules(t, "flush set ip nfqproxy alive")
		if queued(r, decision.IPv4) || !queued(r, decision.IPv6) {
			t.Error("want packets of IPv6 queued only")
		}
		return nil
	})
}
