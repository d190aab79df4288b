package takeover

import (
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// TestOwned: names are kube-proxy's by table.
func TestOwned(t *testing.T) {
	for _, c := range []struct {
		table, chain string
		want         bool
	}{
		{"nat", "KUBE-SERVICES", true}, {"filter", "KUBE-SERVICES", true}, {"mangle", "KUBE-SERVICES", false},
		{"nat", "KUBE-SVC-NPX46M4PTMTKRN6Y", true}, {"nat", "KUBE-SVL-A", true}, {"nat", "KUBE-SEP-A", true},
		{"nat", "KUBE-FW-A", true}, {"nat", "KUBE-EXT-A", true}, {"nat", "KUBE-XLB-A", true}, {"filter", "KUBE-FW-A", false},
		{"nat", "KUBE-MARK-MASQ", true}, {"nat", "KUBE-MARK-DROP", false},
		{"filter", "KUBE-FIREWALL", false}, {"nat", "KUBE-FIREWALL", false},
		{"mangle", "KUBE-PROXY-CANARY", true}, {"mangle", "KUBE-KUBELET-CANARY", false}, {"mangle", "KUBE-IPTABLES-HINT", false},
		{"filter", "KUBE-ROUTER-FORWARD", false}, {"filter", "KUBE-NWPLCY-A", false}, {"filter", "KUBE-POD-FW-A", false},
		{"filter", "KUBE-IPVS-FILTER", true}, {"nat", "KUBE-LOAD-BALANCER", true}, {"nat", "KUBE-NODE-PORT", true},
		{"raw", "KUBE-SERVICES", false}, {"nat", "kube-services", false}, {"nat", "", false},
	} {
		if got := owned(c.table, c.chain); got != c.want {
			t.Errorf("table %s, chain %s: %t, want %t", c.table, c.chain, got, c.want)
		}
	}
}

// tableOf makes a table out of "CHAIN: TARGET TARGET"; base chains are the built-in ones.
func tableOf(name, text string) *table {
	t := &table{Place: xtables.Place{Backend: xtables.NFT, Family: decision.IPv4, Table: name}, chains: make(map[string]*chain)}
	id := uint64(0)
	for line := range strings.Lines(text) {
		chainName, targets, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		c := &chain{base: slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, chainName)}
		for target := range strings.FieldsSeq(targets) {
			id++
			r := rule{id: id}
			if target != "ACCEPT" {
				r.targets = []string{target}
			}
			c.rules = append(c.rules, r)
		}
		t.chains[chainName] = c
	}
	return t
}

func TestPlan(t *testing.T) {
	for name, c := range map[string]struct {
		table, text   string
		chains, jumps string // what is removed
		notes         int
	}{
		"nothing":         {"filter", "INPUT: ACCEPT KUBE-FIREWALL\nKUBE-FIREWALL: ACCEPT", "", "", 0},
		"all":             {"nat", "PREROUTING: ACCEPT KUBE-SERVICES\nKUBE-SERVICES: KUBE-SVC-A\nKUBE-SVC-A: KUBE-SEP-A\nKUBE-SEP-A: KUBE-MARK-MASQ ACCEPT\nKUBE-MARK-MASQ: ACCEPT", "KUBE-MARK-MASQ KUBE-SEP-A KUBE-SERVICES KUBE-SVC-A", "PREROUTING/2", 0},
		"twice":           {"nat", "OUTPUT: KUBE-SERVICES KUBE-SERVICES\nKUBE-SERVICES: ", "KUBE-SERVICES", "OUTPUT/1 OUTPUT/2", 0},
		"dangling":        {"nat", "OUTPUT: KUBE-SERVICES", "", "", 0}, // a chain that is not there
		"used":            {"nat", "admin: KUBE-SVC-A\nKUBE-SVC-A: KUBE-SEP-A\nKUBE-SEP-A: ACCEPT\nKUBE-SVC-B: KUBE-SEP-B\nKUBE-SEP-B: ", "KUBE-SEP-B KUBE-SVC-B", "", 1},
		"used in a base":  {"nat", "OUTPUT: KUBE-SVC-A KUBE-SERVICES\nKUBE-SVC-A: \nKUBE-SERVICES: KUBE-SVC-A", "KUBE-SERVICES", "OUTPUT/2", 1},
		"used twice":      {"nat", "admin: KUBE-SVC-A KUBE-SVC-A\nKUBE-SVC-A: ", "", "", 1},
		"mark":            {"nat", "admin: KUBE-MARK-MASQ\nKUBE-MARK-MASQ: \nPOSTROUTING: KUBE-POSTROUTING\nKUBE-POSTROUTING: ACCEPT\nKUBE-SERVICES: ", "KUBE-SERVICES", "", 1},
		"a loop":          {"nat", "admin: KUBE-SVC-A\nKUBE-SVC-A: KUBE-SVC-B\nKUBE-SVC-B: KUBE-SVC-A", "", "", 1},
		"ours to theirs":  {"nat", "KUBE-FW-A: KUBE-MARK-DROP\nKUBE-MARK-DROP: ACCEPT", "KUBE-FW-A", "", 0},
		"others' by name": {"filter", "INPUT: KUBE-ROUTER-INPUT\nKUBE-ROUTER-INPUT: ACCEPT\nKUBE-SVC-A: ", "", "", 0},
	} {
		r, notes := tableOf(c.table, c.text).plan()
		var jumps []string
		for _, j := range r.jumps {
			jumps = append(jumps, j.chain+"/"+string(rune('0'+j.id)))
		}
		if got := strings.Join(r.chains, " "); got != c.chains {
			t.Errorf("%s: removes chains %q, want %q", name, got, c.chains)
		}
		if got := strings.Join(jumps, " "); got != c.jumps {
			t.Errorf("%s: removes jumps %q, want %q", name, got, c.jumps)
		}
		if len(notes) != c.notes {
			t.Errorf("%s: notes %q, want %d", name, notes, c.notes)
		}
	}
}
