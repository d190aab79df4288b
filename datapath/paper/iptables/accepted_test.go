package iptables

import (
	"strings"
	"testing"
)

// accepted are rules in forms that iptables-save does not print, and what it prints once they are loaded
// (1.8.9; see TestKernelLoadsTheSame). Several rules are separated by line ends.
var accepted = []struct{ table, rule, saved string }{
	// Addresses.
	{"filter", "INPUT -s 10/8 -d 10.1", "INPUT -s 10.0.0.0/8 -d 10.1.0.0/32"},
	{"filter", "INPUT -s 010.0.0.1", "INPUT -s 8.0.0.1/32"},
	{"filter", "INPUT -s localhost", "INPUT -s 127.0.0.1/32"},
	{"filter", "INPUT -s 10.0.0.1,10.0.0.2 -d 1.1.1.1,2.2.2.0/24 -j ACCEPT",
		"INPUT -s 10.0.0.1/32 -d 1.1.1.1/32 -j ACCEPT\nINPUT -s 10.0.0.1/32 -d 2.2.2.0/24 -j ACCEPT\n" +
			"INPUT -s 10.0.0.2/32 -d 1.1.1.1/32 -j ACCEPT\nINPUT -s 10.0.0.2/32 -d 2.2.2.0/24 -j ACCEPT"},
	{"filter", "INPUT -m iprange --src-range 10.0.0.9-10.0.0.1", "INPUT -m iprange --src-range 10.0.0.9-10.0.0.1"},
	{"filter", "INPUT -m mac --mac-source 0:1:2:3:4:5", "INPUT -m mac --mac-source 00:01:02:03:04:05"},
	{"filter", "INPUT -m addrtype --src-type loc", "INPUT -m addrtype --src-type LOCAL"},
	{"filter", "INPUT -m pkttype --pkt-type HOST", "INPUT -m pkttype --pkt-type unicast"},

	// Forms of options.
	{"filter", "INPUT -p tcp --destination-por 80 --jump ACCEPT", "INPUT -p tcp -m tcp --dport 80 -j ACCEPT"},
	{"filter", "INPUT --proto tcp --dport=80 -j ACCEPT", "INPUT -p tcp -m tcp --dport 80 -j ACCEPT"},
	{"filter", "INPUT -p tcp -m multiport --dport 1,2", "INPUT -p tcp -m multiport --dports 1,2"},
	{"filter", "INPUT -j ACCEPT -c 5 6", "INPUT -j ACCEPT"},
	{"filter", "INPUT -j ACCEPT -4", "INPUT -j ACCEPT"},
	{"filter", "INPUT -j ACCEPT -6", ""},

	// Ports and protocols.
	{"filter", "INPUT -p tcp --dport http:443", "INPUT -p tcp -m tcp --dport 80:443"},
	{"filter", "INPUT -p UDP -m udp --dport 9:5", "INPUT -p udp -m udp --dport 9:5"},
	{"filter", "INPUT -p tcp -m multiport --dports ssh,http:https", "INPUT -p tcp -m multiport --dports 22,80:443"},
	{"filter", `INPUT -p tcp -m tcp --tcp-flags SYN,ALL ""`, "INPUT -p tcp -m tcp --tcp-flags FIN,SYN,RST,PSH,ACK,URG NONE"},
	{"filter", "INPUT -p icmp -m icmp --icmp-type echo-req", "INPUT -p icmp -m icmp --icmp-type 8"},
	{"filter", "INPUT -p tcp -m conntrack --ctproto tcp --ctorigsrcport http", "INPUT -p tcp -m conntrack --ctproto 6 --ctorigsrcport 80"},

	// Numbers.
	{"filter", "INPUT -m length --length 100:50", "INPUT -m length --length 100:50"},
	{"filter", "INPUT -m conntrack --ctexpire 9:5", "INPUT -m conntrack --ctexpire 9:5"},
	{"filter", "INPUT -m conntrack --ctstate new,EST", "INPUT -m conntrack --ctstate NEW,ESTABLISHED"},
	{"filter", "INPUT -m limit --limit 20000/min", "INPUT -m limit --limit 333/sec"},
	{"filter", "INPUT -m limit --limit 9:5", "INPUT -m limit --limit 9/sec"},
	{"filter", "INPUT -m hashlimit --hashlimit-upto 1000000/s --hashlimit-name a", "INPUT -m hashlimit --hashlimit-upto 1000000/sec --hashlimit-burst 5 --hashlimit-name a"},
	{"filter", "INPUT -m hashlimit --hashlimit-upto 30000/s --hashlimit-burst 2k --hashlimit-name a", "INPUT -m hashlimit --hashlimit-upto 30303/sec --hashlimit-burst 2048 --hashlimit-name a"},
	{"filter", "INPUT -m connlimit --connlimit-above 5 --connlimit-mask 99", "INPUT -m connlimit --connlimit-above 5 --connlimit-mask 32 --connlimit-saddr"},
	{"filter", `INPUT -m u32 --u32 "0=5:3"`, `INPUT -m u32 --u32 "0x0=0x5:0x3"`},
	{"filter", "INPUT -m policy --dir in", "INPUT -m policy --dir in --pol ipsec"},

	// Texts.
	{"filter", "INPUT -j LOG --log-prefix " + strings.Repeat("x", 40), "INPUT -j LOG --log-prefix " + strings.Repeat("x", 29)},
	{"filter", "INPUT -m comment --comment " + strings.Repeat("x", 300), "INPUT -m comment --comment " + strings.Repeat("x", 255)},
	{"filter", `INPUT -m comment --comment "it's \\ and \"q\""`, `INPUT -m comment --comment "it\'s \\ and \"q\""`},

	// Targets.
	{"filter", "INPUT -j REJECT --reject-with icmp-host", "INPUT -j REJECT --reject-with icmp-host-unreachable"},
	{"filter", "INPUT -j NFQUEUE --queue-balance 5:", "INPUT -j NFQUEUE --queue-balance 5:65535"},
	{"filter", "INPUT -j NFLOG --nflog-threshold 0", "INPUT -j NFLOG"},
	{"raw", "PREROUTING -j CT --zone 1 --zone-orig 2", "PREROUTING -j CT --zone-orig 2"},
	{"mangle", "PREROUTING -p tcp -j TPROXY --on-port http", "PREROUTING -p tcp -j TPROXY --on-port 80 --on-ip 0.0.0.0 --tproxy-mark 0x0/0x0"},
	{"raw", "PREROUTING -j CT --zone MARK", "PREROUTING -j CT --zone mark"},
	{"raw", "PREROUTING -j CT --zone-orig 2 --zone-reply 3", "PREROUTING -j CT --zone 3"},
	{"mangle", "INPUT -j CONNMARK --set-mark 1 --ctmask 2", "INPUT -j CONNMARK --set-xmark 0x1/0x2"},
	{"mangle", "INPUT -j CONNMARK --set-mark 1 --left-shift-mark 3 --right-shift-mark 1", "INPUT -j CONNMARK --set-xmark 0x1/0xffffffff --right-shift-mark 1"},
	{"mangle", "INPUT -m recent --set --rdest --rsource", "INPUT -m recent --set --name DEFAULT --mask 255.255.255.255 --rsource"},
	{"mangle", "FORWARD -p tcp -m tcp --syn -j TCPMSS --set-mss 5 --clamp-mss-to-pmtu", "FORWARD -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j TCPMSS --clamp-mss-to-pmtu"},
	{"nat", "PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1:0", "PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1:0"},
	{"nat", "PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1:http", "PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1:80"},
	{"nat", "PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1:0-90", "PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1:0-90"},
	{"nat", "PREROUTING -p tcp -j DNAT --to-destination 10.0.0.9-10.0.0.1", "PREROUTING -p tcp -j DNAT --to-destination 10.0.0.9-10.0.0.1"},
	{"nat", "PREROUTING -p tcp -j REDIRECT --to-port 0", "PREROUTING -p tcp -j REDIRECT --to-ports 0"},
	{"nat", "POSTROUTING -p tcp -j MASQUERADE --to-ports 0", "POSTROUTING -p tcp -j MASQUERADE --to-ports 0"},
	{"nat", "POSTROUTING -p tcp -j SNAT --to-source 10.0.0.1:0", "POSTROUTING -p tcp -j SNAT --to-source 10.0.0.1:0"},
	{"nat", "POSTROUTING ! -p tcp -j MASQUERADE --to-ports 80", "POSTROUTING ! -p tcp -j MASQUERADE --to-ports 80"},
}

// restoreText is a file for iptables-restore with a rule.
func restoreText(table, rule string) string { return "*" + table + "\n-A " + rule + "\nCOMMIT\n" }

// TestAccepted reads each rule as what iptables-save prints of it.
func TestAccepted(t *testing.T) {
	for _, c := range accepted {
		d, err := Parse(strings.NewReader(restoreText(c.table, c.rule)), Options{})
		if err != nil {
			t.Errorf("%s: %v", c.rule, err)
			continue
		}
		if got := typedText(d); got != c.saved {
			t.Errorf("%s:\n got %s\nwant %s", c.rule, got, c.saved)
		}
		saved := strings.ReplaceAll(c.saved, "\n", "\n-A ")
		if again, err := Parse(strings.NewReader(restoreText(c.table, saved)), Options{}); c.saved != "" && (err != nil || typedText(again) != c.saved) {
			t.Errorf("%s: not read as it is printed: %v", c.saved, err)
		}
	}
}

// TestOldPrints reads what iptables before 1.4.3 prints: the "!" behind its option.
func TestOldPrints(t *testing.T) {
	for rule, want := range map[string]string{
		"INPUT -s ! 10.0.0.1 -i ! eth0 -p ! tcp":                  "INPUT ! -s 10.0.0.1/32 ! -i eth0 ! -p tcp",
		"INPUT -p tcp -m tcp --dport ! 80":                        "INPUT -p tcp -m tcp ! --dport 80",
		"INPUT -p tcp -m tcp --tcp-flags ! SYN,RST SYN":           "INPUT -p tcp -m tcp ! --tcp-flags SYN,RST SYN",
		"INPUT -m set --set a src":                                "INPUT -m set --match-set a src",
		"INPUT -m hashlimit --hashlimit 5/sec --hashlimit-name a": "INPUT -m hashlimit --hashlimit-upto 5/sec --hashlimit-burst 5 --hashlimit-name a",
	} {
		d, err := Parse(strings.NewReader(restoreText("filter", rule)), Options{})
		if err != nil || typedText(d) != want {
			t.Errorf("%s: %v\n got %s\nwant %s", rule, err, typedText(d), want)
		}
	}
}

// typedText is what the typed rules print, without -A.
func typedText(d *Dump) string {
	if d == nil {
		return ""
	}
	var rules []string
	for _, r := range d.Tables[0].Rules {
		typed := Rule{Chain: r.Chain, words: new(Tokens(r.Matches, r.Target))}
		rules = append(rules, strings.TrimPrefix(typed.String(), "-A "))
	}
	return strings.Join(rules, "\n")
}

// TestCommands finds -A in each of its forms.
func TestCommands(t *testing.T) {
	for _, rule := range []string{
		"-A INPUT -p tcp -j ACCEPT", "--append INPUT -p tcp -j ACCEPT", "--app INPUT -p tcp -j ACCEPT", "--append=INPUT -p tcp -j ACCEPT",
		"-AINPUT -p tcp -j ACCEPT", "-p tcp -A INPUT -j ACCEPT", "-c 5 6 -A INPUT -p tcp -j ACCEPT",
	} {
		d, err := Parse(strings.NewReader("*filter\n"+rule+"\nCOMMIT\n"), Options{})
		if err != nil || typedText(d) != "INPUT -p tcp -j ACCEPT" {
			t.Errorf("%s: %v, %s", rule, err, typedText(d))
		}
	}
}

// TestLineEndInText reads what iptables-save prints of a comment with line ends.
func TestLineEndInText(t *testing.T) {
	const text = "*filter\n-A INPUT -m comment --comment \"a\nb \\\"c\\\"\n\nd\" -j ACCEPT\n[1:2] -A INPUT -m comment --comment \"-\n-\" -j DROP\nCOMMIT\n# end\n"
	d, err := Parse(strings.NewReader(text), Options{})
	if err != nil {
		t.Fatal(err)
	}
	rules := d.Tables[0].Rules
	if len(rules) != 2 || rules[0].Matches[0] != (Comment{"a\nb \"c\"\n\nd"}) || rules[0].Line != 2 || rules[1].Line != 6 || rules[1].Target != Drop {
		t.Errorf("%+v", rules)
	}
	if d.String() != text {
		t.Errorf("printed:\n%s", d)
	}
	// A line that was cut off does not take the next ones with it.
	cut := "*filter\n-A INPUT -m comment --comment \"a\n-A INPUT -m comment --comment \"b\" -j ACCEPT\nCOMMIT\n"
	_, err = Parse(strings.NewReader(cut), Options{})
	if found := Errors(err); len(found) != 1 || found[0].Line != 2 {
		t.Errorf("%v", err)
	}
}

// FuzzCutRule looks for text of which cutRule loses or invents lines.
func FuzzCutRule(f *testing.F) {
	f.Add("-A INPUT -m comment --comment \"a\nb\\\"\n\" -j ACCEPT\r\n-A INPUT\n")
	f.Add("[1:2] -A INPUT -m comment --comment \"a\n-A INPUT -m comment --comment \"b\"")
	f.Fuzz(func(t *testing.T, text string) {
		for left := text; left != ""; {
			line, rest, breaks := cutRule(left)
			if len(rest) >= len(left) || !strings.HasPrefix(left, line) || !strings.HasSuffix(left, rest) {
				t.Fatalf("%q: %q, %q", left, line, rest)
			}
			if end := left[len(line) : len(left)-len(rest)]; strings.Trim(end, "\r\n") != "" || strings.Count(line, "\n") > breaks {
				t.Fatalf("%q: %q, %d, %q", left, line, breaks, end)
			}
			left = rest
		}
	})
}
