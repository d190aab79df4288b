package trace

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// follow traces a TCP packet through the rules of a host: a text for each file.
func follow(t *testing.T, from, to, in string, files ...string) *Trace {
	t.Helper()
	var dumps []*iptables.Dump
	for _, text := range files {
		d, err := iptables.Parse(strings.NewReader(text), iptables.Options{})
		if err != nil {
			t.Fatal(err)
		}
		dumps = append(dumps, d)
	}
	p := iptables.Packet{Protocol: 6, Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to), InInterface: in, TTL: 64, Length: 60, Flags: iptables.SYN}
	host, guesses := netfilter.GuessHost(dumps, &netfilter.Host{}, &p)
	m, err := netfilter.New(dumps, nil, host, netfilter.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := Run(m, &Question{Rules: "rules", Packet: p, Notes: guesses, Reply: true})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func rules(table string, lines ...string) string {
	return "*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
}

// TestOrderOfBackEnds: where both back ends translate at one hook, the order of their tables decides, which the dumps do not
// show. Where it does not matter, nothing is said.
func TestOrderOfBackEnds(t *testing.T) {
	to := func(endpoint string) string {
		return rules("nat", "-A PREROUTING -d 10.96.0.20/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination "+endpoint)
	}
	for _, c := range []struct {
		first, second string
		depends       bool
	}{
		{to("10.9.0.2:80"), to("10.9.0.3:80"), true},
		{to("10.9.0.2:80"), to("10.9.0.2:80"), false},
		{to("10.9.0.2:80"), rules("filter", "-A FORWARD -p udp -j DROP"), false},
	} {
		tr := follow(t, "10.9.0.7:40000", "10.96.0.20:80", "", c.first, c.second)
		said := slices.ContainsFunc(tr.Conditions, func(s string) bool { return strings.Contains(s, "rules of several files") })
		marked := slices.ContainsFunc(tr.Assuming, func(s string) bool { return strings.Contains(s, "rules of one priority at a hook come in") })
		if said != c.depends || marked != c.depends {
			t.Errorf("%s%sconditions %v, assuming %v; want one: %v", c.first, c.second, tr.Conditions, tr.Assuming, c.depends)
		}
	}
}

// TestReplyOnABridge: a translated packet that leaves by the device that it came by may be answered past the host, unless the
// device leads to one pod, or the source is translated.
func TestReplyOnABridge(t *testing.T) {
	dnat := "-A PREROUTING -d 10.96.0.20/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.9.0.2:80"
	lan := rules("filter", "-A FORWARD -s 10.9.0.0/24 -i cni0 -j ACCEPT")
	for _, c := range []struct {
		name, in string
		rules    string
		want     bool
	}{
		{"a bridge", "cni0", rules("nat", dnat) + lan, true},
		{"hidden behind the host", "cni0", rules("nat", dnat, "-A POSTROUTING -d 10.9.0.2/32 -j MASQUERADE") + lan, false},
		{"a pod's own device", "cali123", rules("nat", dnat), false},
	} {
		tr := follow(t, "10.9.0.7:40000", "10.96.0.20:80", c.in, c.rules)
		if got := strings.Contains(strings.Join(tr.Conditions, "\n"), "bridge-nf-call-iptables"); got != c.want {
			t.Errorf("%s: conditions %v, want one about the bridge: %v; ways %+v", c.name, tr.Conditions, c.want, tr.Ways)
		}
	}
}

// TestPacketOnABridge: rules see a packet that stays on a bridge only with br_netfilter.
func TestPacketOnABridge(t *testing.T) {
	for _, c := range []struct {
		name, in, to, rule string
		want               bool
	}{
		{"refused", "cni0", "10.9.0.2:80", "-A FORWARD -d 10.9.0.2/32 -j REJECT", true},
		{"accepted", "cni0", "10.9.0.2:80", "-A FORWARD -d 10.9.0.3/32 -j REJECT", false},
		{"to elsewhere", "cni0", "198.51.100.2:80", "-A FORWARD -d 198.51.100.2/32 -j DROP", false},
		{"no bridge", "eth1", "10.9.0.2:80", "-A FORWARD -d 10.9.0.2/32 -j DROP", false},
	} {
		tr := follow(t, "10.9.0.7:40000", c.to, c.in, rules("filter", "-A FORWARD -s 10.9.0.0/24 -i "+c.in+" -m mark --mark 0x9 -j ACCEPT", c.rule))
		if got := strings.Contains(strings.Join(tr.Conditions, "\n"), "does not pass the rules unless"); got != c.want {
			t.Errorf("%s: conditions %v, want one about the bridge: %v; ways %+v", c.name, tr.Conditions, c.want, tr.Ways)
		}
	}
}

// TestDecisiveGuess: a guess is marked if the packet ends otherwise where it is wrong, and only then.
func TestDecisiveGuess(t *testing.T) {
	for _, c := range []struct {
		name, rules string
		want        bool
	}{
		{"dropped if it is for the host", rules("filter", "-A INPUT -p tcp -j DROP"), true},
		{"dropped either way", rules("raw", "-A PREROUTING -p tcp -j DROP"), false},
	} {
		tr := follow(t, "10.20.30.9:40000", "10.20.30.41:80", "", c.rules)
		if got := slices.Contains(tr.Assuming, "10.20.30.41 is an address of this host"); got != c.want {
			t.Errorf("%s: assuming %q, notes %q", c.name, tr.Assuming, tr.Notes)
		}
	}
}

// TestWays: the probabilities are 1 together, and JSON has the verdicts of all ways and replies.
func TestWays(t *testing.T) {
	tr := follow(t, "10.9.0.7:40000", "10.96.0.20:80", "", rules("nat",
		"-A PREROUTING -d 10.96.0.20/32 -p tcp -m statistic --mode random --probability 0.25 -j DNAT --to-destination 10.9.1.2:80",
		"-A PREROUTING -d 10.96.0.20/32 -p tcp -j DNAT --to-destination 10.9.1.3:80")+rules("filter", "-A FORWARD -d 10.9.1.3/32 -j DROP"))
	sum, ends := 0.0, map[string]float64{}
	for _, w := range tr.Ways {
		sum += w.Probability
		ends[w.Verdict+" "+w.Destination] = w.Probability
	}
	if sum != 1 || ends["sent 10.9.1.2:80"] != 0.25 || ends["dropped 10.9.1.3:80"] != 0.75 {
		t.Errorf("ways %v", ends)
	}
	b, err := json.Marshal(tr)
	if err != nil {
		t.Fatal(err)
	}
	var read Trace
	if err := json.Unmarshal(b, &read); err != nil {
		t.Fatal(err)
	}
	for i, w := range tr.Ways {
		got := read.Ways[i]
		if got.Verdict != w.Verdict || got.Line != w.Line || (got.Reply == nil) != (w.Verdict == "dropped") || got.Reply != nil && got.Reply.Source != "10.96.0.20:80" {
			t.Errorf("way %d: %+v; in JSON %+v", i, w, got)
		}
	}
}
