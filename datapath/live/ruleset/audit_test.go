package ruleset

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// changeRules runs nft in the calling thread's network namespace.
func changeRules(t *testing.T, script string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s%s", err, script, out)
	}
}

// repairs waits until the damage is an event, and for an audit that finds nothing any more.
func repairs(t *testing.T, r *Ruleset, table *decision.Table) nft.Repair {
	t.Helper()
	var all nft.Repair
	for deadline := time.After(3 * time.Minute); all.None(); {
		select {
		case <-r.Changed():
		case <-deadline:
			t.Fatal("no event of the damage")
		}
		done, err := r.Audit(table, true)
		if err != nil {
			t.Fatalf("%v (found %q)", err, done.Found)
		}
		all.Find(done.Found)
		all.Reinstalled = all.Reinstalled || done.Reinstalled
		all.Recounted = all.Recounted || done.Recounted
	}
	intact(t, r, table)
	return all
}

// intact compares the kernel's table with a table in a namespace of its own, and the
// elements with what they should be.
func intact(t *testing.T, r *Ruleset, table *decision.Table) {
	t.Helper()
	for i, of := range r.tables {
		is, err := of.readState()
		if err != nil {
			t.Fatal(err)
		}
		if !is.table {
			t.Fatalf("there is no table %s", of)
		}
		want := r.loaded[i]
		for name, c := range want.chains {
			if got := is.chains[name]; got.definition != c.definition || !slices.Equal(got.rules, c.rules) {
				t.Errorf("table %s: chain %s differs", of, name)
			}
		}
		if len(is.chains) != len(want.chains) || !maps.Equal(is.sets, want.sets) {
			t.Errorf("table %s: chains %v, sets %v", of, slices.Sorted(maps.Keys(is.chains)), is.sets)
		}
		should := shouldHave(r, table)
		for _, s := range of.sets {
			if s.dynamic {
				continue
			}
			if have, err := of.readElements(s); err != nil || !maps.Equal(have, should[s]) {
				t.Errorf("table %s: set %s has %d elements, %v; want %d", of, s.name, len(have), err, len(should[s]))
			}
		}
	}
}

// shouldHave are the elements that the sets of a ruleset should have for a table.
func shouldHave(r *Ruleset, table *decision.Table) map[*set]map[string]string {
	should := make(map[*set]map[string]string)
	r.empty().changes(table, additions(func(s *set, key, data string) {
		if should[s] == nil {
			should[s] = make(map[string]string)
		}
		should[s][key] = data
	}))
	return should
}

// chainHandles are what identifies chains as long as they stay.
func chainHandles(t *testing.T) map[string]uint64 {
	t.Helper()
	handles := make(map[string]uint64)
	err := nft.Dump(unix.NFPROTO_UNSPEC, unix.NFT_MSG_GETCHAIN, nil, func(family uint8, a nft.Attributes) {
		handles[fmt.Sprintf("%s (%s)", a.Text(unix.NFTA_CHAIN_NAME), map[uint8]string{2: "ip", 10: "ip6"}[family])] = a.Uint64(unix.NFTA_CHAIN_HANDLE)
	})
	if err != nil {
		t.Fatal(err)
	}
	return handles
}

var auditNode = decision.Node{Addresses: []netip.Addr{netip.MustParseAddr("172.20.0.2"), netip.MustParseAddr("fd20::2")}}

// TestDamage: whatever another program does to the table is found and repaired; if it is
// possible, with all chains in their places.
func TestDamage(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	for name, tt := range map[string]struct {
		script    string
		found     string // contained in what was found
		reinstall bool
		recounted bool
	}{
		"flush ruleset":           {"flush ruleset", "the table is missing or dormant (ip)", true, true},
		"flush table":             {"flush table ip nfqproxy", "chain queue_prerouting has other rules (ip)", false, true},
		"flush chain":             {"flush chain ip nfqproxy slipped", "chain slipped has other rules (ip)", false, false},
		"flush chain that queues": {"flush chain ip nfqproxy new_flows", "chain new_flows has other rules (ip)", false, true},
		"rule of others":          {"insert rule ip nfqproxy learn_input drop", "chain learn_input has other rules (ip)", false, false},
		"another rule instead":    {"flush chain ip nfqproxy reject_output\nadd rule ip nfqproxy reject_output meta mark & 0x8000 != 0 counter drop", "chain reject_output has other rules (ip)", false, false},
		"delete elements":         {"delete element ip nfqproxy service { 10.96.0.1 . tcp . 80 }\nflush set ip nfqproxy nodeport", "set service lacks 1 elements and has 0 others (ip)", false, false},
		"add elements":            {"add element ip6 nfqproxy service { fd00::1 . tcp . 80, fd00::2 . tcp . 81 }", "set service lacks 0 elements and has 2 others (ip6)", false, false},
		"delete a set":            {"flush table ip nfqproxy\ndelete set ip nfqproxy nodeport", "set nodeport is missing (ip)", false, true},
		"delete a chain":          {"flush table ip nfqproxy\ndelete chain ip nfqproxy slipped", "chain slipped is missing (ip)", false, true},
		"delete a base chain":     {"delete chain ip nfqproxy nat_input", "chain nat_input is missing (ip)", false, false},
		"chain of others":         {"add chain ip nfqproxy more { type filter hook prerouting priority 0; policy drop; }\nadd chain ip nfqproxy yet\nadd rule ip nfqproxy more jump yet", "chain more is not ours (ip)", false, false},
		// The chain cannot be deleted while the map is there: in place, nothing helps.
		"chain in use by others":       {"add chain ip nfqproxy yet\nadd map ip nfqproxy m { type ipv4_addr : verdict; elements = { 192.0.2.1 : jump yet }; }", "chain yet is not ours (ip)", true, true},
		"policy":                       {"add chain ip nfqproxy learn_output { policy drop; }", "chain learn_output has another definition (ip)", true, true},
		"dormant":                      {"add table ip nfqproxy { flags dormant; }", "the table is missing or dormant (ip)", true, true},
		"delete table":                 {"delete table ip nfqproxy", "the table is missing or dormant (ip)", true, true},
		"delete and another of its":    {"delete table ip nfqproxy\nadd table ip nfqproxy\nadd chain ip nfqproxy slipped { type filter hook input priority 0; }", "chain slipped has another definition (ip)", true, true},
		"delete and reload the host's": {"flush ruleset\nadd table inet filter\nadd chain inet filter input { type filter hook input priority 0; }", "the table is missing or dormant (ip)", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			installed(t, onlyServices(), func(r *Ruleset) error {
				table := decision.NewTable(1, time.Time{}, auditNode, services(30))
				if err := r.Follow(table); err != nil {
					return err
				}
				if done, err := r.Audit(table, true); !done.None() || err != nil {
					t.Fatalf("undamaged: %+v, %v", done, err)
				}
				before := chainHandles(t)
				changeRules(t, tt.script)
				done := repairs(t, r, table)
				if !slices.Contains(done.Found, tt.found) || done.Reinstalled != tt.reinstall || done.Recounted != tt.recounted {
					t.Errorf("repaired %+v, want %+v", done, tt)
				}
				for name, handle := range chainHandles(t) {
					if old, ok := before[name]; !tt.reinstall && handle != old && ok && !slices.Contains(done.Found, "chain "+strings.Replace(name, " ", " is missing ", 1)) {
						t.Errorf("chain %s was made anew", name)
					}
				}
				// The next difference counts from there.
				next := decision.NewTable(2, time.Time{}, auditNode, services(7))
				if err := r.Follow(next); err != nil {
					t.Fatal(err)
				}
				intact(t, r, next)
				return nil
			})
		})
	}
}

// TestFollowFindsDamage: the sets are gone before the event of it was received. The audit
// brings everything into line with the table that could not be followed.
func TestFollowFindsDamage(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	installed(t, spec(), func(r *Ruleset) error {
		for i, script := range []string{"flush ruleset", "delete table ip nfqproxy\nadd table ip nfqproxy", "delete element ip nfqproxy nodeport { tcp . 30000 }"} {
			if err := r.Follow(decision.NewTable(1, time.Time{}, auditNode, services(5))); err != nil {
				t.Fatal(err)
			}
			changeRules(t, script)
			table := decision.NewTable(2, time.Time{}, auditNode, nil)
			if err := r.Follow(table); err == nil {
				t.Errorf("%d: no error of what was missing", i)
			}
			if done, err := r.Audit(table, true); done.None() || err != nil {
				t.Fatalf("%d: %+v, %v", i, done, err)
			}
			intact(t, r, table)
		}
		return nil
	})
}

// TestDamageBeforeANewChain: damage is found, too, if it came before a chain that a table needs.
func TestDamageBeforeANewChain(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	installed(t, spec(), func(r *Ruleset) error {
		if err := r.Follow(decision.NewTable(1, time.Time{}, auditNode, nil)); err != nil {
			return err
		}
		changeRules(t, "flush chain ip nfqproxy slipped")
		table := decision.NewTable(2, time.Time{}, auditNode, manyServices(1))
		if err := r.Follow(table); err != nil {
			return err
		}
		done := repairs(t, r, table)
		if !slices.Contains(done.Found, "chain slipped has other rules (ip)") {
			t.Errorf("found %q", done.Found)
		}
		return nil
	})
}

// TestNoDamage: our own changes, those of package reconcile and those of other tables are no
// damage, and most of them are not even looked at.
func TestNoDamage(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	installed(t, onlyServices(), func(r *Ruleset) error {
		seen := openSeen(t)
		changeRules(t, "table ip others { set s { type ipv4_addr; }; chain c { }; }")
		for i := range 60 {
			table := decision.NewTable(uint64(i), time.Time{}, auditNode, services(i*37%50))
			if err := r.Follow(table); err != nil {
				t.Fatal(err)
			}
			remember(t, r, flows(1000, 20))
			if err := seen.Forget(flows(1000, 10)); err != nil {
				t.Fatal(err)
			}
			changeRules(t, fmt.Sprintf("add element ip others s { 192.0.2.%d }\nadd rule ip others c accept", i))
			if isChanged(r) {
				t.Errorf("round %d: our own changes are taken for those of others", i)
			}
			if done, err := r.Audit(table, i%2 == 0); !done.None() || err != nil {
				t.Fatalf("round %d: repaired %+v, %v", i, done, err)
			}
			// Our next change is no reason to compare everything again.
			if i > 0 && i%7 == 0 {
				if err := r.Follow(decision.NewTable(uint64(i), time.Time{}, auditNode, services(3))); err != nil || !r.current() {
					t.Errorf("round %d: %v, current %t", i, err, r.current())
				}
			}
			if r.audited == 0 {
				t.Error("the generation is not remembered")
			}
		}
		// remember adds elements by our own connection. As another program does it:
		changeRules(t, "add element ip nfqproxy seen { 192.0.2.1 . 192.0.2.2 . 1 . 2 }\nadd rule ip nfqproxy learn_input drop")
		done := repairs(t, r, decision.NewTable(99, time.Time{}, auditNode, services(59*37%50)))
		if len(done.Found) != 1 {
			t.Errorf("found %q", done.Found)
		}
		return nil
	})
}

// TestFreshTablesNeedNoAudit: tables that nobody else can have changed since they were loaded are not read
// again, unlike those of an earlier run, and those of a moment in which another program changed rules.
func TestFreshTablesNeedNoAudit(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	table := decision.NewTable(1, time.Time{}, auditNode, services(300))
	inNamespace(t, func() error {
		install := func() *Ruleset {
			r, err := installFor(t, onlyServices(), table, false)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		generation, err := nft.Generation()
		if err != nil {
			return err
		}
		fresh := install()
		if !fresh.current() {
			t.Error("fresh tables are not taken for correct")
		}
		if done, err := fresh.Audit(table, true); !done.None() || err != nil {
			t.Errorf("a thorough audit of them: repaired %+v, %v", done, err)
		}
		fresh.audited = 0
		changeRules(t, "table ip others { }")
		if err := errors.Join(fresh.watch.Close(), fresh.startWatch(generation)); err != nil {
			return err
		}
		if fresh.audited != 0 {
			t.Error("another program changed rules before the watch began, and the tables are taken for correct")
		}
		if err := fresh.Close(); err != nil {
			return err
		}
		later := install()
		if !later.adopted || later.audited != 0 {
			t.Errorf("tables of an earlier run: adopted %t, audited %d", later.adopted, later.audited)
		}
		return later.Remove()
	})
}

// TestFlushAndReload: another program flushes and reloads all rules over and over, as
// Debian's nftables.service does when it restarts, while services change. What fails because
// of that can be repaired, and in the end all is in place.
func TestFlushAndReload(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	netnstest.RequireTool(t, "sh")
	installed(t, spec(), func(r *Ruleset) error {
		// Started by this thread, it runs in its namespace.
		others := exec.Command("sh", "-ec", `i=0
while [ $i -lt 40 ]; do
	nft flush ruleset
	printf 'flush ruleset\ntable inet filter { chain input { type filter hook input priority 0; }; }\n' | nft -f -
	i=$((i+1))
done`)
		if err := others.Start(); err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- others.Wait() }()
		var table *decision.Table
		followed, failed := 0, 0
		for i, over := 0, false; !over; i++ {
			select {
			case err := <-ended:
				if err != nil {
					t.Fatal(err)
				}
				over = true
			default:
			}
			table = decision.NewTable(uint64(i), time.Time{}, auditNode, services(i%9))
			if err := r.Follow(table); err == nil {
				followed++
			} else if _, err := r.Audit(table, true); err != nil {
				failed++ // it is changed too often just now
			}
		}
		t.Logf("%d tables followed, %d audits failed", followed, failed)
		for end := time.Now().Add(20 * time.Second); ; {
			_, err := r.Audit(table, true)
			if err == nil && !isChanged(r) {
				intact(t, r, table)
				return nil
			}
			if time.Now().After(end) {
				t.Fatalf("not repaired in the end: %v", err)
			}
		}
	})
}

// TestAuditWithoutEvent: an audit that is not thorough finds damage by the generation of the
// rules, also behind a change of ours.
func TestAuditWithoutEvent(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	installed(t, spec(), func(r *Ruleset) error {
		table := decision.NewTable(1, time.Time{}, auditNode, services(3))
		for i := range 3 {
			if done, err := r.Audit(table, false); err != nil || i > 0 && !done.None() {
				t.Fatalf("%d: %+v, %v", i, done, err)
			}
			changeRules(t, "flush chain ip nfqproxy learn\ndelete element ip nfqproxy service { 10.96.0.1 . tcp . 80 }")
			if i == 1 {
				table = decision.NewTable(2, time.Time{}, auditNode, services(4))
				if err := r.Follow(table); err != nil {
					t.Fatal(err)
				}
			}
			if done, err := r.Audit(table, false); len(done.Found) != 2 || err != nil {
				t.Errorf("%d: repaired %+v, %v", i, done, err)
			}
			intact(t, r, table)
		}
		return nil
	})
}
