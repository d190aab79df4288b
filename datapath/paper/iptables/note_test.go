package iptables

import (
	"fmt"
	"strings"
	"testing"
)

// TestLostOptions reads rules whose options a print lost, or have a meaning only on their host: none matches
// everything, and each is noted.
func TestLostOptions(t *testing.T) {
	for _, c := range []struct{ table, rule, want, note string }{
		{"filter", "-m mark -j ACCEPT", `[iptables.UnknownMatch] iptables.Verdict`, "line 3: -m mark is printed without its option --mark: what it does is not known"},
		{"filter", "-m mark [unsupported revision] -j ACCEPT", `[iptables.UnknownMatch] iptables.Verdict`, "line 3: -m mark is printed as [unsupported revision]: what it does is not known"},
		{"filter", "-m conntrack -j ACCEPT", `[iptables.UnknownMatch] iptables.Verdict`, "-m conntrack"},
		{"filter", "-m addrtype -j ACCEPT", `[iptables.UnknownMatch] iptables.Verdict`, "-m addrtype"},
		{"filter", "-m statistic --probability 0.5 -j ACCEPT", `[iptables.UnknownMatch] iptables.Verdict`, "-m statistic"},
		{"filter", "-m recent --seconds 5 --name x -j ACCEPT", `[iptables.UnknownMatch] iptables.Verdict`, "-m recent"},
		{"filter", "-m set -j ACCEPT", `[iptables.UnknownMatch] iptables.Verdict`, "-m set"},
		{"filter", "-p tcp -m multiport -j ACCEPT", `[iptables.Protocol iptables.UnknownMatch] iptables.Verdict`, "-m multiport"},
		{"filter", "-p icmp -m icmp -j ACCEPT", `[iptables.Protocol iptables.UnknownMatch] iptables.Verdict`, "-m icmp"},
		{"filter", "-m hashlimit [unsupported revision] -m comment --comment x -j DROP", `[iptables.UnknownMatch iptables.Comment] iptables.Verdict`, "-m hashlimit"},
		{"filter", "-m owner --uid-owner nobody -j ACCEPT", `[iptables.UnknownMatch] iptables.Verdict`, "-m owner --uid-owner nobody has a name"},
		{"filter", "-m owner --uid-owner root -j ACCEPT", `[iptables.Owner] iptables.Verdict`, ""},
		{"filter", "! -p tcp -m tcp --dport 80 -j ACCEPT", `[iptables.Protocol iptables.UnknownMatch] iptables.Verdict`, "-m tcp stands in a rule for all protocols but its own"},
		{"nat", "-p tcp -j DNAT [unsupported revision]", `[iptables.Protocol] iptables.UnknownTarget`, "-j DNAT is printed as [unsupported revision]"},
		{"nat", "-p tcp -j DNAT", `[iptables.Protocol] iptables.UnknownTarget`, "-j DNAT is printed without its option --to-destination"},
		{"nat", "-j MARK", `[] iptables.UnknownTarget`, "-j MARK"},
		{"nat", "-j XYZ [unsupported revision]", `[] iptables.UnknownTarget`, "-j XYZ"},
		// What a comment says is of no importance.
		{"filter", "-m comment -j ACCEPT", `[iptables.Comment] iptables.Verdict`, ""},
	} {
		text := "*" + c.table + "\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT " + c.rule + "\nCOMMIT\n"
		d, err := Parse(strings.NewReader(text), Options{})
		if err != nil {
			t.Errorf("%s: %v", c.rule, err)
			continue
		}
		r := d.Tables[0].Rules[0]
		var types []string
		for _, m := range r.Matches {
			types = append(types, fmt.Sprintf("%T", m))
		}
		if got := fmt.Sprintf("%v %T", types, r.Target); got != c.want {
			t.Errorf("%s: got %s, want %s", c.rule, got, c.want)
		}
		if notes := fmt.Sprint(d.Notes); (len(d.Notes) > 0) != (c.note != "") || !strings.Contains(notes, c.note) {
			t.Errorf("%s: notes %s, want %s", c.rule, notes, c.note)
		}
		if got := d.String(); got != text {
			t.Errorf("printed:\n%swas:\n%s", got, text)
		}
	}
}

// TestLostNotes are one for each kind, with the lines.
func TestLostNotes(t *testing.T) {
	text := "*nat\n" + strings.Repeat("-A OUTPUT -j DNAT [unsupported revision]\n", 8) + "-A INPUT -j SNAT\nCOMMIT\n"
	d, err := Parse(strings.NewReader(text), Options{})
	want := "[line 2: -j DNAT is printed as [unsupported revision]: what it does is not known; also line 3, 4, 5, 6 and 3 more" +
		" line 10: -j SNAT is printed without its option --to-source: what it does is not known]"
	if err != nil || fmt.Sprint(d.Notes) != want {
		t.Errorf("%v\n got %v\nwant %s", err, d.Notes, want)
	}
}
