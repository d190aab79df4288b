package ruleset

import (
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// again installs a ruleset as another process does, after the one before ended.
func again(t *testing.T, s Spec, table *decision.Table, keepQueueing bool) *Ruleset {
	t.Helper()
	r, err := installFor(t, s, table, keepQueueing)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestAdopt: the tables of an earlier run are adopted, whatever their state: no base chain goes, and
// afterwards they are as if they had been loaded.
func TestAdopt(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	services := manyServices(300)
	for name, tt := range map[string]struct {
		script  string
		spec    func(*Spec)
		replace bool // the tables are replaced
	}{
		"as it was":             {},
		"other queues":          {spec: func(s *Spec) { s.FirstQueue, s.Queues = 200, 3 }},
		"other scope":           {spec: func(s *Spec) { s.OnlyServices = !s.OnlyServices }},
		"a base chain is gone":  {script: "delete chain ip nfqproxy nat_input"},
		"a chain of others":     {script: "add chain ip nfqproxy other\nadd rule ip nfqproxy other drop\nadd rule ip nfqproxy slipped jump other"},
		"a set of others":       {script: "add set ip nfqproxy other { type ipv4_addr; }"},
		"without rules":         {script: "flush table ip nfqproxy\nflush table ip6 nfqproxy"},
		"without elements":      {script: "flush map ip nfqproxy copy_endpoint\nflush map ip nfqproxy copy_address"},
		"elements of others":    {script: "add element ip nfqproxy service { 192.0.2.1 . tcp . 1 }"},
		"without a set":         {script: "flush table ip nfqproxy\ndelete set ip nfqproxy service"},
		"another timeout":       {spec: func(s *Spec) { s.SeenTimeout /= 2 }},
		"without a table":       {script: "delete table ip6 nfqproxy", replace: true},
		"a set of another form": {script: "flush table ip nfqproxy\ndelete set ip nfqproxy service\nadd set ip nfqproxy service { type ipv4_addr; }"},
		"another hook":          {script: "delete chain ip nfqproxy nat_input\nadd chain ip nfqproxy nat_input { type nat hook prerouting priority 7; }", replace: true},
		"dormant":               {script: "add table ip nfqproxy { flags dormant; }", replace: true},
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func() error {
				first, err := install(t, spec())
				if err != nil {
					return err
				}
				table := decision.NewTable(1, time.Time{}, auditNode, services[:200])
				if err := first.Follow(table); err != nil {
					return err
				}
				if err := first.Close(); err != nil {
					return err
				}
				if tt.script != "" {
					changeRules(t, tt.script)
				}
				before := chainHandles(t)
				s := spec()
				if tt.spec != nil {
					tt.spec(&s)
				}
				next := decision.NewTable(1, time.Time{}, auditNode, services[100:])
				second := again(t, s, next, false)
				if second.adopted == tt.replace {
					t.Errorf("adopted: %v", second.adopted)
				}
				intact(t, second, next)
				if done, err := second.Audit(next, true); err != nil || !done.None() {
					t.Errorf("an audit found %v, %v", done.Found, err)
				}
				if !tt.replace {
					after := chainHandles(t)
					for name, handle := range before {
						if after[name] != handle && after[name] != 0 {
							t.Errorf("chain %s was replaced", name)
						}
					}
				}
				// It can be followed as usual.
				last := decision.NewTable(2, time.Time{}, auditNode, services[:100])
				if err := second.Follow(last); err != nil {
					return err
				}
				intact(t, second, last)
				return second.Remove()
			})
		})
	}
}

// TestReplaced: a ruleset knows when another process has adopted its tables, and queues to others.
func TestReplaced(t *testing.T) {
	installed(t, spec(), func(r *Ruleset) error {
		if replaced, err := r.Replaced(); replaced || err != nil {
			t.Errorf("replaced: %v, %v", replaced, err)
		}
		s := spec()
		s.FirstQueue += s.Queues
		heir := again(t, s, new(decision.Table), true)
		defer heir.Close()
		if replaced, err := r.Replaced(); !replaced || err != nil {
			t.Errorf("replaced: %v, %v", replaced, err)
		}
		return nil
	})
}

// TestAbandon: what was adopted stays, without queueing; what was not is removed.
func TestAbandon(t *testing.T) {
	inNamespace(t, func() error {
		if err := again(t, spec(), new(decision.Table), false).Abandon(); err != nil {
			return err
		}
		if left, err := Cleanup(); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
		if err := again(t, spec(), new(decision.Table), false).Close(); err != nil {
			return err
		}
		if err := again(t, spec(), new(decision.Table), false).Abandon(); err != nil {
			return err
		}
		r := &Ruleset{tables: newTables(&Spec{})}
		is, err := r.read()
		if err != nil {
			return err
		}
		for i := range is {
			if !is[i].table || len(is[i].chains[queueingChain].rules) > 0 || len(is[i].chains["copy"].rules) == 0 {
				t.Errorf("table %s: %v, rules %d, of the copy %d", r.tables[i], is[i].table, len(is[i].chains[queueingChain].rules), len(is[i].chains["copy"].rules))
			}
		}
		return nil
	})
}
