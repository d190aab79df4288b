package iptables

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestErrors has one fault each, with its place and the beginning of the message.
func TestErrors(t *testing.T) {
	rule := func(args string) string { return "*filter\n:own - [0:0]\n-A INPUT " + args + "\nCOMMIT\n" }
	nat := func(args string) string { return "*nat\n:own - [0:0]\n-A OUTPUT " + args + "\nCOMMIT\n" }
	for _, c := range []struct{ text, want string }{
		{"-A INPUT -j ACCEPT\n", "line 1, column 1: a rule outside of a table"},
		{":INPUT ACCEPT\n", "line 1, column 1: a chain outside of a table"},
		{"COMMIT\n", "line 1, column 1: COMMIT outside of a table"},
		{"*filter\n", "line 2, column 1: the file ends inside table filter: want COMMIT"},
		{"*filter\nCOMMIT\nhello\n", "line 3, column 1: unknown line"},
		{"*filter\nhello\nCOMMIT\n", "line 2, column 1: unknown line"},
		{"*filter\nCOMMIT now\nCOMMIT\n", "line 2, column 1: unknown line"},
		{"*filter\n*nat\nCOMMIT\n", "line 2, column 1: table nat begins inside table filter"},
		{"*other\nCOMMIT\n", `line 1, column 2: unknown table "other": want raw, mangle`},
		{"*nat\nCOMMIT\n*nat\nCOMMIT\n", "line 3, column 2: table nat is there already, at line 1"},
		{"*nat\n:INPUT QUEUE [0:0]\nCOMMIT\n", `line 2, column 8: unknown policy "QUEUE"`},
		{"*nat\n:INPUT\nCOMMIT\n", "line 2, column 7: the chain's policy is missing"},
		{"*nat\n:" + strings.Repeat("a", 29) + " - [0:0]\nCOMMIT\n", "line 2, column 2: the chain's name"},
		{"*nat\n-A a\nCOMMIT\n", `line 2, column 4: table nat has no chain "a"`},
		{"*nat\n-D INPUT 1\nCOMMIT\n", `line 2, column 1: command "-D"`},
		{"*nat\n-A\nCOMMIT\n", "line 2, column 3: -A without a chain"},
		{"*nat\n[1] -A INPUT\nCOMMIT\n", `line 2, column 1: "[1]" are no counters`},
		{rule(`-m comment --comment "a`), "line 3, column 31: a quote is opened"},
		{rule("-j missing"), `line 3, column 13: table filter has no chain "missing"`},
		{rule("-g missing"), `line 3, column 13: table filter has no chain "missing"`},
		{rule("-j INPUT"), "line 3, column 13: INPUT is a built-in chain"},
		{rule("-j own -j own"), "line 3, column 17: a second target"},
		{rule("-j"), "line 3, column 10: -j at the end of the rule"},
		{rule("-s 1.2.3.4 -s 1.2.3.4"), "line 3, column 21: -s is given a second time"},
		{rule("-s 1.2.3.400"), `line 3, column 13: "1.2.3.400" is not an IPv4 network`},
		{rule("-s 1.2.3.4/33"), `line 3, column 13: "1.2.3.4/33" is not an IPv4 network`},
		{rule("-i a-device-too-long"), `line 3, column 13: "a-device-too-long" is not the name of a device`},
		{rule("-p nothing"), `line 3, column 13: "nothing" is not a protocol`},
		{rule("--dport 80"), "line 3, column 10: option --dport of a module that was not loaded: want -m sctp or -m tcp or -m udp before it"},
		{rule(`-m "" x`), "line 3, column 13: -m without a module: want its name"},
		{rule("--never"), "line 3, column 10: unknown option --never"},
		{rule("stray"), `line 3, column 10: a stray word "stray"`},
		{rule("-m tcp --dport 80"), "line 3, column 13: -m tcp in a rule that is not for the protocol: want -p tcp"},
		{rule("-p tcp -m tcp --dport 65536"), `line 3, column 32: "65536" is not a port: want 0 to 65535`},
		{rule("-p tcp -m tcp --dport 9:8"), `line 3, column 32: "9:8" is not a port`},
		{rule("-p tcp -m tcp --dport 8 --dport 9"), "line 3, column 34: --dport is given a second time"},
		{rule("-p tcp -m tcp --tcp-flags SYN"), "line 3, column 24: --tcp-flags at the end of the rule: want 2 values"},
		{rule("-p tcp -m tcp --tcp-flags SYN OOPS"), `line 3, column 40: "OOPS" is not a list of TCP flags`},
		{rule("-p tcp -m tcp --what"), "line 3, column 24: tcp has no option --what: want one of --dport, --sport"},
		{rule("-p udp -m multiport --dports 1:2,3:4,5:6,7:8,9:10,11:12,13:14,15:16"), "line 3, column 39"},
		{rule("-p icmp -m icmp --icmp-type what"), `line 3, column 38: "what" is not an ICMP type`},
		{rule("-m icmp6 --icmpv6-type 1 -s 1.2.3.4"), "line 3, column"},
		{rule("-m conntrack --ctstate OLD"), `line 3, column 33: "OLD" is not a list of conntrack states`},
		{rule("-m conntrack ! --ctdir REPLY"), "line 3, column 23: --ctdir cannot be negated"},
		{rule("-m state --state DNAT"), `line 3, column 27: "DNAT" is not a list of states`},
		{rule("-m mark --mark 0x100000000"), `line 3, column 25: "0x100000000" is not a mark`},
		{rule("-m addrtype --dst-type HOME"), `line 3, column 33: "HOME" is not a list of address types`},
		{rule("-m statistic --mode random --probability 1.5"), `line 3, column 51: "1.5" is not a probability: want 0 to 1`},
		{rule("-m statistic --mode nth --probability 0.5"), "line 3, column 34: --probability with --mode nth"},
		{rule("-m statistic --mode nth --every 3 --packet 3"), "line 3, column 13: packet 3 of 3"},
		{rule("-m recent --set --seconds 5"), "line 3, column 26: --seconds with --set"},
		{rule("-m recent --set --rcheck"), "line 3, column 26: --rcheck together with --set"},
		{rule("-m set --match-set a up"), `line 3, column 31: "up" is not a list of directions`},
		{rule("-m limit --limit 20000/sec"), `line 3, column 27: "20000/sec" is not a rate`},
		{rule("-m mac --mac-source 00:11"), `line 3, column 30: "00:11" is not an Ethernet address`},
		{rule("-m length --length 70000"), "line 3, column 29"},
		{rule("-j REJECT --reject-with icmp-nothing"), "line 3, column 34"},
		{rule("-j REJECT --reject-with tcp-reset"), "line 3, column 34: tcp-reset in a rule that is not for the protocol"},
		{rule("-j LOG --log-level 9"), "line 3, column 29"},
		{rule("-j MARK --set-mark 1 --or-mark 2"), "line 3, column 31: --or-mark together with --set-mark"},
		{nat("-j DNAT --to-destination 1.2.3.4:80"), "line 3, column 36: a port in a rule that is not for the protocol"},
		{rule("-j NFQUEUE --queue-balance 5:5"), "line 3, column 37"},
		{rule("-j own --random"), "line 3, column 17: option --random of a module that was not loaded"},
	} {
		_, err := Parse(strings.NewReader(c.text), Options{})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s\n got %v\nwant %s", c.text, err, c.want)
		}
		for _, e := range Errors(err) {
			if e.Line < 1 || e.Column < 1 {
				t.Errorf("%+v", e)
			}
		}
	}
}

// TestManyErrors are all reported, up to a dozen, in the order of the file.
func TestManyErrors(t *testing.T) {
	text := "*filter\n" + strings.Repeat("-A INPUT --never\n", 20) + "COMMIT\n"
	_, err := Parse(strings.NewReader(text), Options{})
	all := Errors(err)
	if len(all) != 12 || all[0].Line != 2 || all[11].Line != 13 || !strings.HasSuffix(err.Error(), "and 8 more") {
		t.Errorf("%v", err)
	}
}

func TestFamily(t *testing.T) {
	const header = "# Generated by %s v1.8.9 on Sat Nov 21 11:23:43 2026\n*filter\n%sCOMMIT\n"
	for _, c := range []struct {
		program, rules string
		given, want    Family
	}{
		{"iptables-save", "", FamilyUnknown, IPv4},
		{"ip6tables-save", "", FamilyUnknown, IPv6},
		{"ip6tables-nft-save", "", IPv4, IPv6},
		{"xtables-save", "", FamilyUnknown, IPv4},
		{"xtables-save", "", IPv6, IPv6},
		{"xtables-save", "-A INPUT -j ACCEPT\n-A INPUT ! -s fd00::/8\n", FamilyUnknown, IPv6},
		{"xtables-save", "-A INPUT -d 10.0.0.0/8\n", IPv6, IPv4},
	} {
		d, err := Parse(strings.NewReader(fmt.Sprintf(header, c.program, c.rules)), Options{Family: c.given})
		if err != nil || d.Family != c.want {
			t.Errorf("%+v: %v, %v", c, d, err)
		}
	}
}

// FuzzParse looks for text that makes Parse panic, or that is printed as something
// else than it was.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.rules")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		// A whole dump is too much to change usefully: a rule each is more like it.
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "-A") {
				f.Add("*nat\n" + line + "COMMIT\n")
			}
		}
	}
	f.Add("# Generated by ip6tables-save\n*raw\n:a - [1:2]\n[3:4] -A a -m \"x\"y ! -z -g a\n\nCOMMIT\n#")
	for _, c := range accepted {
		f.Add(restoreText(c.table, c.rule))
	}
	f.Add("*nat\n-p tcp --append=OUTPUT -j DNAT [unsupported revision]\n-A OUTPUT -m comment --comment \"a\nb\" -m mark -6\nCOMMIT\n")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = ParseSets(strings.NewReader(text))
		d, err := Parse(strings.NewReader(text), Options{})
		if err != nil {
			if len(Errors(err)) == 0 && !strings.HasPrefix(err.Error(), "the file ") {
				t.Fatalf("no place: %v", err)
			}
			return
		}
		printed := d.String()
		again, err := Parse(strings.NewReader(printed), Options{Family: d.Family})
		if err != nil {
			t.Fatalf("%v\n%q\n%q", err, text, printed)
		}
		if again.String() != printed || again.Family != d.Family {
			t.Fatalf("%q\n%q", printed, again.String())
		}
		// The typed matches and the target are a rule of the same meaning.
		for _, table := range d.Tables {
			for _, r := range table.Rules {
				r.SetArgs(Tokens(r.Matches, r.Target))
			}
		}
		typed := d.String()
		again, err = Parse(strings.NewReader(typed), Options{Family: d.Family})
		if err != nil {
			t.Fatalf("%v\n%q\n%q", err, text, typed)
		}
		for _, table := range again.Tables {
			for _, r := range table.Rules {
				r.SetArgs(Tokens(r.Matches, r.Target))
			}
		}
		if again.String() != typed {
			t.Fatalf("%q\n%q", typed, again.String())
		}
	})
}

// BenchmarkParse reads what kube-proxy writes for 5,000 services: 50,000 rules.
func BenchmarkParse(b *testing.B) {
	var text strings.Builder
	text.WriteString("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n")
	for i := range 5000 {
		fmt.Fprintf(&text, ":KUBE-SVC-%d - [0:0]\n:KUBE-SEP-%d-A - [0:0]\n:KUBE-SEP-%d-B - [0:0]\n", i, i, i)
	}
	rules := 0
	rule := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...); rules++ }
	for i := range 5000 {
		ip := fmt.Sprintf("10.96.%d.%d", i/250, i%250)
		rule(`-A KUBE-SERVICES -d %s/32 -p tcp -m comment --comment "ns/name-%d:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-%d`, ip, i, i)
		rule(`-A KUBE-SVC-%d ! -s 10.244.0.0/16 -d %s/32 -p tcp -m comment --comment "ns/name-%d:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ`, i, ip, i)
		rule(`-A KUBE-SVC-%d -m comment --comment "ns/name-%d:http -> 10.244.1.2:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-%d-A`, i, i, i)
		rule(`-A KUBE-SVC-%d -m comment --comment "ns/name-%d:http -> 10.244.1.3:80" -j KUBE-SEP-%d-B`, i, i, i)
		for _, e := range []string{"A", "B"} {
			rule(`-A KUBE-SEP-%d-%s -s 10.244.1.2/32 -m comment --comment "ns/name-%d:http" -j KUBE-MARK-MASQ`, i, e, i)
			rule(`-A KUBE-SEP-%d-%s -p tcp -m comment --comment "ns/name-%d:http" -m tcp -j DNAT --to-destination 10.244.1.2:80`, i, e, i)
			rule(`-A KUBE-SEP-%d-%s -m comment --comment plain -j RETURN`, i, e)
		}
	}
	text.WriteString("COMMIT\n")
	b.ReportMetric(float64(rules), "rules")
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(strings.NewReader(text.String()), Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
