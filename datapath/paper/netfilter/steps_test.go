package netfilter

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftrules"
)

// TestStepTexts has rules and the texts of their steps, for UDP from 10.244.1.2:40000 that comes in
// by veth1 for 172.20.0.2:53, or is made by user 1000 of group 100 on the host.
func TestStepTexts(t *testing.T) {
	sets, err := iptables.ParseSets(strings.NewReader("create some hash:net family inet\nadd some 10.244.1.2\ncreate ports hash:net,port family inet\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ rule, want string }{
		{"-A INPUT -p udp -m multiport --dports 80,8000:8080 -j DROP", "the destination port is 53, not 80 or 8000:8080"},
		{"-A INPUT -p udp -m multiport ! --dports 53,80 -j DROP", "the destination port is 53"},
		{"-A INPUT -p udp -m multiport --sports 80 -j DROP", "the source port is 40000, not 80"},
		{"-A INPUT -p udp -m multiport --ports 80,90 -j DROP", "the ports are 40000 and 53, not 80 or 90"},
		{"-A OUTPUT -m owner --uid-owner 1337 -j DROP", "its user is 1000, not 1337"},
		{"-A OUTPUT -m owner ! --uid-owner 1000 -j DROP", "its user is 1000"},
		{"-A OUTPUT -m owner --uid-owner 1000 --gid-owner 5-9 -j DROP", "its group is 100, not 5 to 9"},
		{"-A INPUT -m owner --uid-owner 1337 -j DROP", "no program on this host sent it"},
		{"-A INPUT -m set ! --match-set some src -j DROP", "10.244.1.2 is in the ipset some"},
		{"-A INPUT -m set --match-set some dst -j DROP", "172.20.0.2 is not in the ipset some"},
		{"-A INPUT -m set --match-set ports dst,dst -j DROP", "10.244.1.2:40000 -> 172.20.0.2:53, as dst,dst, is not in the ipset ports"},
		{"-A PREROUTING -m rpfilter --invert -j DROP", "the route back to 10.244.1.2 is by veth1, as it came"},
		{"-A PREROUTING -i veth1 -m rpfilter -j ACCEPT", "accepted; the other rules of this table are skipped: it arrives on veth1"},
		{"-A INPUT -m recent --rcheck --name seen -j DROP", "10.244.1.2 is not on the list seen"},
		{"-A INPUT -m recent --set --name seen --rdest --mask 255.255.0.0", "172.20.0.0 is added to the list seen"},
		{"-A INPUT -m recent --rcheck --seconds 60 --hitcount 3 --name knocked -j DROP", "10.244.1.2 is on the list knocked, but was not seen 3 times in the last 60 s"},
		{"-A INPUT -m recent --update --name knocked", "10.244.1.2 is updated on the list knocked"},
		{"-A INPUT -m recent ! --rcheck --name knocked -j DROP", "10.244.1.2 is on the list knocked"},
		{"-A INPUT -m recent --remove --name knocked", "10.244.1.2 is removed from the list knocked"},
		{"-A INPUT -m nfacct --nfacct-name  localhost_nps_accepted_pkts -s 10.244.1.2/32 -j RETURN", "back: the source is 10.244.1.2"},
		{"-A PREROUTING -j CT --notrack", "connection tracking will ignore it"},
		{"-A PREROUTING -j CT --zone 7", "its connection is of zone 7"},
		{"-A PREROUTING -j CT --helper tftp", "its connection gets the helper tftp"},
		{"-A INPUT -m cpu --cpu 1 -j DROP", "processor 0 handles it, not 1"},
		{"-A INPUT -m connbytes --connbytes 2 --connbytes-mode packets --connbytes-dir original -j DROP", "packets of its connection in its own direction: 1, not 2 or more"},
		{"-A INPUT -m connbytes --connbytes 1:1 --connbytes-mode packets --connbytes-dir reply -j DROP", "packets of its connection in the reply direction: 0, not 1 to 1"},
		{"-A PREROUTING -m connbytes --connbytes 0 --connbytes-mode packets --connbytes-dir both -j DROP", "it has no connection that is counted"},
		{`-A INPUT -m bpf --bytecode "4,48 0 0 9,21 0 1 6,6 0 0 1,6 0 0 0" -j DROP`, "the program returns 0"},
		{`-A INPUT -m bpf --bytecode "4,48 0 0 9,21 0 1 17,6 0 0 1,6 0 0 0" -j RETURN`, "back"},
		{"-A INPUT -m bpf --object-pinned /sys/fs/bpf/x -j DROP", "unknown whether this rule matches"},
		{`-A INPUT -m bpf --bytecode "2,48 0 0 30,22 0 0 0" -j DROP`, "unknown whether this rule matches"}, // a byte of the payload
		{"-A INPUT -m string --string x --algo bm -j LOG", "unknown whether this rule matches, which makes no difference"},
		{"-A INPUT -m string --string x --algo bm -j DROP", "unknown whether this rule matches"},
		{"-A INPUT -m string --string x --algo bm -m recent --set --name seen", "unknown whether this rule matches"},
		{"-A INPUT -j SYNPROXY", "the effect of this rule is unknown"},
	} {
		table := "filter"
		if strings.HasPrefix(c.rule, "-A PREROUTING") {
			table = "raw"
		}
		lines := []string{"*mangle", "-A PREROUTING -m recent --set --name knocked", "COMMIT", "*" + table, c.rule, "COMMIT"}
		d, err := iptables.Parse(strings.NewReader(strings.Join(lines, "\n")+"\n"), iptables.Options{})
		if err != nil {
			t.Fatal(err)
		}
		m, err := New([]*iptables.Dump{d}, sets, worker(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		p := packet(protoUDP, "10.244.1.2:40000", "172.20.0.2:53", "veth1")
		if strings.HasPrefix(c.rule, "-A OUTPUT") {
			p = packet(protoUDP, "172.20.0.2:40000", "10.244.1.2:53", "")
			p.Owner = &iptables.SocketOwner{UID: 1000, GID: 100}
		}
		r := m.Send(p, &State{}, nil)
		var got []string
		for _, s := range r.Steps {
			if s.Line == 5 {
				got = append(got, s.Text)
			}
		}
		if !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: got %q, want %q", c.rule, got, c.want)
		}
		if stopped := c.want == "unknown whether this rule matches" || strings.HasSuffix(c.rule, "SYNPROXY"); (r.Verdict == Stopped) != stopped {
			t.Errorf("%s: %s", c.rule, r.Verdict)
		}
	}
}

// TestGroups: only hosts that have joined get what is sent to a group, and there is no answer.
func TestGroups(t *testing.T) {
	h := worker()
	p := packet(protoUDP, "172.20.0.9:5353", "224.0.0.251:5353", "eth0")
	if r := parse(t, h, "*filter", "COMMIT").Send(p, &State{}, nil); r.Verdict != Dropped {
		t.Errorf("without the group: %s", r.Verdict)
	}
	h.Groups = []netip.Addr{netip.MustParseAddr("224.0.0.251")}
	r := parse(t, h, "*filter", "COMMIT").Send(p, &State{}, nil)
	if _, answered := r.Answer(); r.Verdict != Delivered || r.Why != "" || answered {
		t.Errorf("in the group: %s %q, answered %v", r.Verdict, r.Why, answered)
	}
}

// parseNative makes a machine of a ruleset of nftables.
func parseNative(t *testing.T, text string) *Machine {
	t.Helper()
	ruleset, err := nftables.Read("f", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	d, _ := nftrules.Compile(ruleset, iptables.IPv4)
	m, err := New([]*iptables.Dump{d}, nil, worker(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestMasqueradedElsewhere: a masqueraded connection ends when a packet of it leaves by another device.
func TestMasqueradedElsewhere(t *testing.T) {
	m := parseNative(t, `table ip t {
	chain o { type route hook output priority 300; meta mark 1 ip daddr set 10.244.1.2; }
	chain p { type nat hook postrouting priority srcnat; masquerade; }
}
`)
	p, s := packet(protoUDP, "172.20.0.2:40000", "192.0.2.9:53", ""), new(State)
	for _, tt := range []struct {
		mark uint32
		want Verdict
		why  string
	}{
		{0, Sent, ""},
		{1, Dropped, "its connection was masqueraded on eth0, and veth1 is another device: the kernel ends the connection"},
		{0, Sent, ""}, // of another entry
	} {
		p.Mark = tt.mark
		if r := m.Send(p, s, nil); r.Verdict != tt.want || r.Why != tt.why {
			t.Errorf("mark %d: %s, %q, want %s, %q", tt.mark, r.Verdict, r.Why, tt.want, tt.why)
		}
	}
}

// TestNativeEffects: a rule of nftables without a verdict says what it has done to the packet.
func TestNativeEffects(t *testing.T) {
	for statements, want := range map[string]string{
		"counter packets 3 bytes 180":       "is counted",
		"ip protocol udp":                   "matches",
		"dup to 10.0.0.9 device eth1":       "a copy is sent to 10.0.0.9 on eth1",
		"dup to 10.0.0.9":                   "a copy is sent to 10.0.0.9",
		"flow add @fast":                    "its connection enters the flowtable fast",
		"notrack":                           "connection tracking will ignore it",
		`notrack comment "no entry for it"`: "connection tracking will ignore it (no entry for it)",
	} {
		text := "table ip t {\n flowtable fast { hook ingress priority 0; devices = { eth0 }; }\n chain c {\n  type filter hook prerouting priority raw;\n  " + statements + "\n }\n}\n"
		r := parseNative(t, text).Send(packet(protoUDP, "10.244.1.2:40000", "172.20.0.2:53", "veth1"), &State{}, nil)
		if i := slices.IndexFunc(r.Steps, func(s flow.Step) bool { return s.Line == 5 }); i < 0 || r.Steps[i].Text != want {
			t.Errorf("%s: %+v, want %q", statements, r.Steps, want)
		}
	}
}
