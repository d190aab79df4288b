package takeover

import (
	"bytes"
	"encoding/binary"
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

const targetHeader = 32 // sizeof(struct xt_entry_target)

// byteOrder is the machine's.
var byteOrder = binary.NativeEndian

// entryLayout gives sizeof the entry and the offset of target_offset.
func entryLayout(f decision.Family) (header, targetOffset int) {
	if f == decision.IPv4 {
		return 112, 88
	}
	return 168, 140
}

// rawEntry is an entry with a target of so many bytes, and some bytes for its match.
func rawEntry(f decision.Family, name string, match byte, data []byte) []byte {
	header, targetOffset := entryLayout(f)
	e := make([]byte, header)
	for range match {
		e = append(e, bytes.Repeat([]byte{match}, 8)...)
	}
	byteOrder.PutUint16(e[targetOffset:], uint16(len(e)))
	target := make([]byte, targetHeader+(len(data)+7)&^7)
	byteOrder.PutUint16(target, uint16(len(target)))
	copy(target[2:], name)
	copy(target[targetHeader:], data)
	e = append(e, target...)
	byteOrder.PutUint16(e[targetOffset+2:], uint16(len(e)))
	return e
}

// sample is a table of one base chain, INPUT:
//
//	INPUT: (no target), jump KUBE-SERVICES, jump admin, policy accept
//	KUBE-SERVICES: jump KUBE-FORWARD, return
//	admin: jump later, return
//	KUBE-FORWARD: return
//	later: return
func sample(f decision.Family) *xtables.Table {
	type place struct{ entry, to int } // a verdict that is an index for now
	var raw [][]byte
	var places []place
	verdict := func(match byte, v int32) {
		data := make([]byte, 4)
		byteOrder.PutUint32(data, uint32(v))
		raw = append(raw, rawEntry(f, xtables.StandardTarget, match, data))
	}
	jump := func(match byte, to int) {
		places = append(places, place{len(raw), to})
		verdict(match, 0)
	}
	head := func(name string) {
		raw = append(raw, rawEntry(f, xtables.ErrorTarget, 0, append([]byte(name), make([]byte, 30-len(name))...)))
	}
	jump(1, 1)     // 0: on to the next
	jump(2, 5)     // 1: KUBE-SERVICES
	jump(3, 8)     // 2: admin
	verdict(0, -2) // 3: accept
	head("KUBE-SERVICES")
	jump(4, 11)    // 5: KUBE-FORWARD
	verdict(0, -5) // 6: return
	head("admin")
	jump(5, 13) // 8: later
	verdict(0, -5)
	head("KUBE-FORWARD")
	verdict(0, -5) // 11
	head("later")
	verdict(0, -5) // 13
	head("ERROR")

	offsets := make([]uint32, len(raw))
	for i := 1; i < len(raw); i++ {
		offsets[i] = offsets[i-1] + uint32(len(raw[i-1]))
	}
	for _, p := range places {
		e := xtables.Entry{Raw: raw[p.entry]}
		e.SetVerdict(f, offsets[p.to])
	}
	b := &xtables.Table{Family: f, Name: "filter", ValidHooks: 1 << 1}
	b.HookEntry[1], b.Underflow[1] = 0, offsets[3]
	if err := b.ParseEntries(slices.Concat(raw...)); err != nil {
		panic(err)
	}
	return b
}

// describe lists the chains with their rules' matches and targets.
func describe(t *testing.T, b *xtables.Table) string {
	t.Helper()
	spans, err := b.Chains()
	if err != nil {
		t.Fatal(err)
	}
	chains := legacyTable(xtables.Place{Table: b.Name}, spans)
	var lines []string
	for _, s := range spans {
		line := s.Name + ":"
		for i, r := range chains.chains[s.Name].rules {
			header, _ := entryLayout(b.Family)
			match := s.Rules[i].Raw[header]
			line += " " + string(rune('0'+match)) + strings.Join(append([]string{""}, r.targets...), ">")
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

func TestWithout(t *testing.T) {
	for _, f := range families {
		b := sample(f)
		if got, want := describe(t, b), "INPUT: 1 2>KUBE-SERVICES 3>admin; KUBE-SERVICES: 4>KUBE-FORWARD; admin: 5>later; KUBE-FORWARD:; later:"; got != want {
			t.Fatalf("%s: the sample is %s, want %s", f, got, want)
		}
		before := slices.Concat(raws(b)...)
		chains, err := b.Chains()
		if err != nil {
			t.Fatal(err)
		}
		r, _ := legacyTable(xtables.Place{Table: b.Name}, chains).plan()
		draft, err := without(b, r)
		if err != nil {
			t.Fatal(err)
		}
		next, from, err := draft.Table()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(before, slices.Concat(raws(b)...)) {
			t.Errorf("%s: the old table has changed", f)
		}
		// As the kernel would give it back.
		again := &xtables.Table{Family: b.Family, Name: b.Name, ValidHooks: next.ValidHooks, HookEntry: next.HookEntry, Underflow: next.Underflow}
		if err := again.ParseEntries(slices.Concat(raws(next)...)); err != nil {
			t.Fatal(err)
		}
		if got, want := describe(t, again), "INPUT: 1 3>admin; admin: 5>later; later:"; got != want {
			t.Errorf("%s: what is left is %s, want %s", f, got, want)
		}
		if want := []int{0, 2, 3, 7, 8, 9, 12, 13, 14}; !slices.Equal(from, want) {
			t.Errorf("%s: entries are from %v, want %v", f, from, want)
		}
		if again.Size != next.Size {
			t.Errorf("%s: size %d, want %d", f, next.Size, again.Size)
		}
	}
}

func raws(b *xtables.Table) [][]byte {
	var all [][]byte
	for _, e := range b.Entries {
		all = append(all, e.Raw)
	}
	return all
}

// TestWithoutRefuses: a chain that is still used is not cut out.
func TestWithoutRefuses(t *testing.T) {
	b := sample(decision.IPv4)
	draft, err := without(b, &removal{chains: []string{"later"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := draft.Table(); err == nil || !strings.Contains(err.Error(), "jumps to chain later") {
		t.Errorf("error %v", err)
	}
}

// without is the draft of a table without the chains and jumps of a removal.
func without(b *xtables.Table, r *removal) (*xtables.Draft, error) {
	d, err := b.Draft()
	if err == nil {
		r.cut(d)
	}
	return d, err
}

// FuzzBlob: whatever the kernel gives, nothing panics.
func FuzzBlob(f *testing.F) {
	for _, family := range families {
		b := sample(family)
		f.Add(slices.Concat(raws(b)...), family == decision.IPv6, b.HookEntry[1], b.Underflow[1])
	}
	f.Fuzz(func(t *testing.T, data []byte, six bool, first, last uint32) {
		b := &xtables.Table{Family: decision.IPv4, Name: "filter", ValidHooks: 1 << 1}
		if six {
			b.Family = decision.IPv6
		}
		b.HookEntry[1], b.Underflow[1] = first, last
		if b.ParseEntries(data) != nil {
			return
		}
		chains, err := b.Chains()
		if err != nil {
			return
		}
		r, _ := legacyTable(xtables.Place{Table: b.Name}, chains).plan()
		draft, err := without(b, r)
		if err != nil {
			return
		}
		if next, from, err := draft.Table(); err == nil && len(next.Entries) != len(from) {
			t.Error("entries are lost")
		}
	})
}
