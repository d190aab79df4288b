package iptables

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func readListing(t *testing.T, text string) *Dump {
	t.Helper()
	d, err := Read(text, Options{})
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	if d.Listing == nil {
		t.Fatalf("%s\nwas not read as a listing", text)
	}
	return d
}

func notesOf(d *Dump) (notes []string) {
	for _, n := range d.Listing.Incomplete {
		notes = append(notes, n.String())
	}
	return notes
}

func sameLines(t *testing.T, what string, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		g, w := "", ""
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Errorf("%s %d:\n got %s\nwant %s", what, i, g, w)
		}
	}
}

// TestListings reads what people posted.
func TestListings(t *testing.T) {
	for _, c := range []struct {
		file         string
		rules        int
		chains       string // as listed
		some         map[int]string
		first        []Match
		target       Target
		notes        []string
		known, blank string // a chain that is listed, and one that is not
	}{
		{
			file: "grafana-nodeport-31577.listing", rules: 19,
			chains: "PREROUTING KUBE-SERVICES KUBE-SVC-OIUYAK75OI4PJHUN KUBE-SEP-LAT64KIID4KEQMCP",
			some: map[int]string{
				6:  `-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER`,
				22: `-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports;" -m "the end of the line, which is cut off" comment -j KUBE-NODEPORTS`,
				27: `-A KUBE-SVC-OIUYAK75OI4PJHUN ! -s 10.244.0.0/16 -d 10.111.189.177/32 -p tcp -m comment --comment "monitoring/grafana-example-service cluster IP" -m tcp --dport 3000 -j KUBE-MARK-MASQ`,
				34: `-A KUBE-SEP-LAT64KIID4KEQMCP -p tcp -m comment --comment "monitoring/grafana-example-service" -m tcp -j DNAT --to-destination 10.244.0.115:3000`,
			},
			first: []Match{Comment{"cali:6gwbT8clXdHdC1b1"}}, target: Jump{"cali-PREROUTING"},
			notes: []string{
				"tables are not listed: raw, mangle, filter, security",
				"line 2: table nat: built-in chains are not listed: INPUT, OUTPUT, POSTROUTING",
				`line 4: listed without -v, so interfaces are not shown: a rule with -i or -o, like "-i lo -j ACCEPT", looks like a rule for every interface`,
				"line 4: listed without -n: names of services and networks are read as the usual numbers (http is 80)",
				"line 4: table nat: rules jump to chains that are not listed: cali-PREROUTING, DOCKER, KUBE-SVC-MDD5UT6CKUVXRUP3, " +
					"KUBE-SVC-FJOCBQUA67AJTJ4Y, KUBE-SVC-GWDJ4KONO5OOHRT4, KUBE-SVC-XBIRSKPJDNCMT43V, KUBE-SVC-UZFDVIVO2N6QXLRQ, KUBE-SVC-L5JLFDCUFDUOSAFE and 6 more",
				"line 22: the line is cut off inside a comment: the conditions after it are missing",
			},
			known: "KUBE-SERVICES", blank: "KUBE-NODEPORTS",
		},
		{
			file: "kube-dns-hairpin.listing", rules: 15,
			chains: "KUBE-SEP-V7KWRXXOBQHQVWAT KUBE-SERVICES KUBE-SVC-ERIFXISQEP7F7OF4",
			some: map[int]string{
				5:  `-A KUBE-SEP-V7KWRXXOBQHQVWAT -p tcp -m comment --comment "kube-system/kube-dns:dns-tcp" -m tcp -j DNAT --to-destination 172.18.1.5:53`,
				10: `-A KUBE-SERVICES ! -s 172.18.1.0/24 -d 10.0.62.222/32 -p tcp -m comment --comment "kube-system/metrics-server cluster IP" -m tcp --dport 443 -j KUBE-MARK-MASQ`,
				17: `-A KUBE-SERVICES -d 10.0.0.10/32 -p udp -m comment --comment "kube-system/kube-dns:dns cluster IP" -m udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU`,
				25: `-A KUBE-SVC-ERIFXISQEP7F7OF4 -m comment --comment "kube-system/kube-dns:dns-tcp" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-V7KWRXXOBQHQVWAT`,
			},
			notes: []string{
				"tables are not listed: raw, mangle, filter, security",
				"line 2: table nat: built-in chains are not listed: PREROUTING, INPUT, OUTPUT, POSTROUTING",
				`line 4: listed without -v, so interfaces are not shown: a rule with -i or -o, like "-i lo -j ACCEPT", looks like a rule for every interface`,
				"line 4: listed without -n: names of services and networks are read as the usual numbers (http is 80)",
				"line 4: table nat: rules jump to chains that are not listed: KUBE-MARK-MASQ, KUBE-SVC-QMWWTXBG7KFJQKLO, " +
					"KUBE-SVC-WT3SFWJ44Q74XUPR, KUBE-SVC-NPX46M4PTMTKRN6Y, KUBE-SVC-TCOU7JCQXEZGVUNU, KUBE-NODEPORTS, KUBE-SEP-BWCLCJLZ5KI6FXBW",
			},
			known: "KUBE-SERVICES", blank: "PREROUTING",
		},
		{
			file: "nodeport-30007.listing", rules: 9,
			chains: "KUBE-EXT-ABCD1234EFGH5678 KUBE-SVC-ABCD1234EFGH5678 KUBE-SEP-PQRSTU9876543210 PREROUTING OUTPUT KUBE-SERVICES KUBE-NODEPORTS",
			some: map[int]string{
				15: `-A KUBE-SEP-PQRSTU9876543210 -p tcp -m comment --comment "web/web-service" -m tcp -j DNAT --to-destination 10.244.1.5:80`,
				31: `-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS`,
			},
			first: []Match{}, target: Jump{"KUBE-SVC-ABCD1234EFGH5678"},
			notes: []string{
				"tables are not listed: raw, mangle, filter, security",
				"line 2: table nat: built-in chains are not listed: INPUT, POSTROUTING",
				"line 4: listed without -n: names of services and networks are read as the usual numbers (http is 80)",
				"line 10: table nat: rules jump to chains that are not listed: KUBE-SEP-VWXYZA1234567890",
				"line 23: counters are rounded (K is 1000, M a million): list with -x to see all digits",
			},
			known: "KUBE-NODEPORTS", blank: "KUBE-SEP-VWXYZA1234567890",
		},
	} {
		t.Run(c.file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", c.file))
			if err != nil {
				t.Fatal(err)
			}
			d := readListing(t, string(text))
			if d.Family != IPv4 || len(d.Tables) != 1 || d.Tables[0].Name != "nat" {
				t.Fatalf("%s, %d tables", d.Family, len(d.Tables))
			}
			table := d.Tables[0]
			var chains []string
			for _, chain := range table.Chains {
				chains = append(chains, chain.Name)
			}
			if got := strings.Join(chains, " "); got != c.chains {
				t.Errorf("chains %s\nwant   %s", got, c.chains)
			}
			if len(table.Rules) != c.rules {
				t.Errorf("%d rules, want %d", len(table.Rules), c.rules)
			}
			for line, want := range c.some {
				i := slices.IndexFunc(table.Rules, func(r *Rule) bool { return r.Line == line })
				if i < 0 || table.Rules[i].String() != want {
					t.Errorf("line %d:\n got %v\nwant %s", line, table.Rules[max(i, 0)], want)
				}
			}
			if first := table.Rules[0]; c.target != nil && (!reflect.DeepEqual(first.Matches, c.first) || first.Target != c.target) {
				t.Errorf("first rule %#v, %#v", first.Matches, first.Target)
			}
			sameTyped(t, d)
			sameLines(t, "note", notesOf(d), c.notes)
			if !d.Lists("nat", c.known) || d.Lists("nat", c.blank) || d.Lists("filter", "INPUT") {
				t.Error("Lists")
			}
		})
	}
}

// TestListingCounters are those of chains and rules.
func TestListingCounters(t *testing.T) {
	text, err := os.ReadFile("testdata/nodeport-30007.listing")
	if err != nil {
		t.Fatal(err)
	}
	nat := readListing(t, string(text)).Table("nat")
	if c := nat.Chain("OUTPUT"); c.Policy != PolicyAccept || *c.Counters != (Counters{3355, 202000}) || c.Line != 23 {
		t.Errorf("%+v", c)
	}
	if c := nat.Chain("KUBE-SERVICES"); c.Policy != PolicyNone || c.Counters != nil {
		t.Errorf("%+v", c)
	}
	if r := nat.ByChain()["OUTPUT"][0]; *r.Counters != (Counters{29961, 1801000}) {
		t.Errorf("%+v", r.Counters)
	}
	for text, want := range map[string]uint64{"0": 0, "99999": 99999, "100K": 100000, "2M": 2e6, "3G": 3e9, "4T": 4e12, "5P": 5e15} {
		if n, rounded, ok := parseCount(text); n != want || !ok || rounded != (n >= 1e5) {
			t.Errorf("%s: %d, %v, %v", text, n, rounded, ok)
		}
	}
	for _, text := range []string{"", "K", "5X", "1KK", "99999999999P", "-1"} {
		if _, _, ok := parseCount(text); ok {
			t.Errorf("%q is a number", text)
		}
	}
}

// TestListingTable derives tables and the family from the lines above the chains.
func TestListingTable(t *testing.T) {
	const (
		names   = "target     prot opt source               destination\n"
		own     = "Chain own (0 references)\n" + names
		input   = "Chain INPUT (policy ACCEPT)\n" + names
		forward = "Chain FORWARD (policy DROP)\n" + names
		output  = "Chain OUTPUT (policy ACCEPT)\n" + names
		pre     = "Chain PREROUTING (policy ACCEPT)\n" + names
		post    = "Chain POSTROUTING (policy ACCEPT)\n" + names
		rule    = "ACCEPT all -- 0.0.0.0/0 0.0.0.0/0\n"
	)
	target := func(name string) string { return own + name + "\n" }
	for _, c := range []struct {
		text, want string // tables with their chains, and the family
		note       string // how a table was guessed: a part of the note
	}{
		{"# iptables -t nat -L own\n" + own, "nat:own IPv4", ""},
		{"# iptables -t nat -L own\n\n#\n# a comment: iptables -t mangle\n" + own, "nat:own IPv4", ""},
		{"$ sudo iptables -vnL own -t mangle | column -t\n" + own, "mangle:own IPv4", ""},
		{"root@node:~# ip6tables-legacy-save\nroot@node:~# /usr/sbin/ip6tables-legacy --table=raw --list\n" + own, "raw:own IPv6", ""},
		{"[root@node ~]# iptables --line -nvxL\n[sudo] password for me:\n" + own + "[root@node ~]#\n", "filter:own IPv4", ""},
		{"kubectl exec -n kube-system kube-proxy-x -- iptables-nft -tnat -L\n" + own, "nat:own IPv4", ""},
		{"> docker exec kind-worker iptables --table nat --list -n\n" + own, "nat:own IPv4", ""},
		{"/ # iptables -t raw -F; iptables -nL -t nat|more\n" + own, "nat:own IPv4", ""},
		{"$ iptables -nL\n" + input + "$ iptables -t nat -nL\n" + input + "$ iptables -t nat -nL own\n" + own, "filter:INPUT nat:INPUT,own IPv4", ""},
		{target("DNAT tcp -- 0.0.0.0/0 0.0.0.0/0 to:1.2.3.4"), "nat:own IPv4", "assuming nat, the only one that may have the target DNAT (line 3)"},
		{"  " + target("NOTRACK tcp -- 0.0.0.0/0 0.0.0.0/0"), "raw:own IPv4", "assuming raw"},
		{target("CHECKSUM\u00a0tcp \u2013 0.0.0.0/0 0.0.0.0/0 CHECKSUM fill"), "mangle:own IPv4", "assuming mangle"},
		{pre + input + output + post + rule, "nat:PREROUTING,INPUT,OUTPUT,POSTROUTING IPv4", "the built-in chains INPUT, OUTPUT, POSTROUTING, PREROUTING"},
		{input + forward + output + rule, "filter:INPUT,FORWARD,OUTPUT IPv4", "assuming filter, the one with the built-in chains"},
		{pre + output, "raw:PREROUTING,OUTPUT IPv4", "assuming raw"},
		{pre + "KUBE-SEP-X all -- 0.0.0.0/0 0.0.0.0/0\n", "nat:PREROUTING IPv4", "the one where chain KUBE-SEP-X is usual"},
		{"Chain DOCKER-USER (1 references)\n" + names, "filter:DOCKER-USER IPv4", "the one where chain DOCKER-USER is usual"},
		{pre + rule, "nat:PREROUTING IPv4", "assuming nat, the most usual one"},
		{forward + rule, "filter:FORWARD IPv4", "assuming filter, the most usual one"},
		{forward + post, "mangle:FORWARD,POSTROUTING IPv4", "assuming mangle, the most usual one"},
		{input + forward + output + pre + input + output + post, "filter:INPUT,FORWARD,OUTPUT nat:PREROUTING,INPUT,OUTPUT,POSTROUTING IPv4", ""},
		{own + "DNAT all -- 0.0.0.0/0 0.0.0.0/0 to:1.2.3.4\n" + own + "CT all -- 0.0.0.0/0 0.0.0.0/0 NOTRACK\n", "nat:own raw:own IPv4", "the target CT (line 6)"},
		{own + "ACCEPT all -- anywhere fd00::/8\n", "filter:own IPv6", ""},
		{own + "ACCEPT ipv6-icmp anywhere anywhere\n", "filter:own IPv6", ""},
		{own + "REJECT all anywhere anywhere reject-with icmp6-no-route\n", "filter:own IPv6", ""},
		{own + "DNAT tcp anywhere anywhere to:[fd00::1]:80\n", "nat:own IPv6", ""},
	} {
		d, err := Read(c.text, Options{})
		if err != nil {
			t.Errorf("%s\n%v", c.text, err)
			continue
		}
		var got []string
		for _, table := range d.Tables {
			var chains []string
			for _, chain := range table.Chains {
				chains = append(chains, chain.Name)
			}
			got = append(got, table.Name+":"+strings.Join(chains, ","))
		}
		if got := strings.Join(append(got, d.Family.String()), " "); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.text, got, c.want)
		}
		notes := strings.Join(notesOf(d), "\n")
		if !strings.Contains(notes, c.note) || strings.Contains(c.text, "tables") == strings.Contains(notes, "no command line") {
			t.Errorf("%s\nnotes %s\nwant %s", c.text, notes, c.note)
		}
	}
}

// TestListingNotes are those that a rule's own text is the reason of.
func TestListingNotes(t *testing.T) {
	for text, want := range map[string]string{
		"own all -- 0.0.0.0/0 0.0.0.0/0 statistic mode random probability 0.333330":      "line 3: probabilities are rounded to 6 digits",
		"own all -- 0.0.0.0/0 0.0.0.0/0 limit: above 10/sec burst 5 mode srcip":          "line 3: names of hashlimit tables are not listed",
		"own all -- 0.0.0.0/0 0.0.0.0/0 owner UID match nobody":                          "line 3: users and groups are listed by name",
		"own all -- node1.example !node2.example/24":                                     "line 3: host names like node2.example are listed instead of addresses",
		"own all -- localhost anywhere":                                                  "line 3: listed without -n",
		"own all -- 0.0.0.0/0 0.0.0.0/0 statistic mode random probability 0.33333333349": "",
	} {
		d := readListing(t, "Chain own (1 references)\ntarget prot opt source destination\n"+text+"\n")
		notes := strings.Join(notesOf(d), "\n")
		for _, kind := range []string{"probabilities", "hashlimit", "users", "host names"} {
			if strings.Contains(notes, kind) != strings.Contains(want, kind) {
				t.Errorf("%s: note about %s in\n%s", text, kind, notes)
			}
		}
		if !strings.Contains(notes, want) {
			t.Errorf("%s:\n%s\nwant %s", text, notes, want)
		}
	}
	d := readListing(t, "Chain own (1 references)\ntarget prot opt source destination\nown all -- node1.example !node2.example/24\nown all -- localhost !anywhere\n")
	for i, want := range []string{`-A own -m "host name node1.example" source -m "host name node2.example" ! destination -j own`, "-A own -s 127.0.0.1/32 ! -d 0.0.0.0/0 -j own"} {
		if got := d.Tables[0].Rules[i].String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestRead distinguishes the forms.
func TestRead(t *testing.T) {
	for text, listing := range map[string]bool{
		"":                                     false,
		"# Generated by iptables-save\n*nat\n": false,
		"*nat\nCOMMIT\n# iptables -L\n":        false,
		"hello\n":                              false,
		"-A INPUT -j ACCEPT\n":                 false,
		"# iptables -t nat -L\n*nat\n":         true,
		"hello\nChain INPUT (policy ACCEPT)\n": true,
		"# iptables -t nat -S\n-P INPUT\n":     false,
	} {
		if got := isListing(text); got != listing {
			t.Errorf("%q: %v", text, got)
		}
	}
	d, err := Read("*nat\n:INPUT ACCEPT [0:0]\nCOMMIT\n", Options{})
	if err != nil || d.Listing != nil || !d.Lists("nat", "OUTPUT") || d.Lists("nat", "own") || !d.Lists("raw", "OUTPUT") {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestListingErrors has one fault each, with its place and the beginning of the message.
func TestListingErrors(t *testing.T) {
	const names = "target     prot opt source               destination\n"
	rule := func(row string) string { return "$ iptables -L\nChain INPUT (policy ACCEPT)\n" + names + row + "\n" }
	verbose := func(row string) string {
		return "Chain INPUT (policy ACCEPT)\nnum pkts bytes target prot opt in out source destination\n" + row + "\n"
	}
	for _, c := range []struct{ text, want string }{
		{"", "line 1, column 1: the file ends without any chain"},
		{"# iptables -L\n", "line 1, column 1: the file ends without any chain"},
		{"hello\nChain INPUT (policy ACCEPT)\n" + names, `line 1, column 1: unknown line "hello": want "Chain NAME (...)"`},
		{"# iptables -t none -L\nChain INPUT (policy ACCEPT)\n" + names, `line 1, column 15: unknown table "none": want raw, mangle`},
		{"# iptables -L\n# ip6tables -L\n", "line 2, column 3: a listing of IPv6 behind one of IPv4: want one family in a file"},
		{"Chain INPUT (policy ACCEPT)\n", "line 1, column 7: nothing below the line of chain INPUT"},
		{"Chain INPUT (policy ACCEPT)\nACCEPT all anywhere anywhere\n", `line 2, column 1: "ACCEPT" below the line of chain INPUT: want the names of the columns`},
		{"Chain INPUT (policy QUEUE)\n" + names, `line 1, column 13: "(policy QUEUE)" behind the name of chain INPUT: want "(2 references)"`},
		{"Chain INPUT (policy ACCEPT 5 packets, many bytes)\n" + names, "line 1, column 13:"},
		{"Chain own (a references)\n" + names, "line 1, column 11: \"(a references)\" behind the name"},
		{"Chain -x (1 references)\n" + names, `line 1, column 7: "-x" cannot be the name of a chain`},
		{"Chain " + strings.Repeat("a", 29) + " (1 references)\n" + names, "line 1, column 7: the chain's name"},
		{"# iptables -L\n  Chain own (1 references)\n" + names + "Chain own (1 references)\n" + names, "line 4, column 7: chain own of table filter is listed already, at line 2: want each chain once"},
		{"# iptables -t nat -L\nChain FORWARD (policy DROP)\n" + names, "line 2, column 7: chain FORWARD has a policy, but table nat has no such built-in chain: want the command line of this listing above it; that in line 1 is for table nat"},
		{"# iptables -L\nChain INPUT (1 references)\n" + names, "line 2, column 7: the built-in chain INPUT of table filter has no policy"},
		{rule("ACCEPT none -- anywhere anywhere"), `line 4, column 8: "none" in column prot: want a protocol`},
		{rule("ACCEPT all -- anywhere"), "line 4, column 23: the line ends before the destination"},
		{rule("ACCEPT"), "line 4, column 7: the line ends before the protocol"},
		{rule("ACCEPT all -- 1.2.3.400 anywhere"), `line 4, column 15: "1.2.3.400" is not an IPv4 network`},
		{rule("ACCEPT all -- anywhere !1.2.3.0/33"), `line 4, column 25: "1.2.3.0/33" is not an IPv4 network`},
		{rule("ACCEPT all -- anywhere fd00::1"), `line 4, column 24: "fd00::1" is not an IPv4 network`},
		{rule("INPUT all -- anywhere anywhere"), "line 4, column 1: INPUT is a built-in chain"},
		{rule(`a"b all -- anywhere anywhere`), `line 4, column 1: "a\"b" cannot be the name of a chain: want a target or a chain`},
		{rule("ACCEPT tcp -- anywhere anywhere tcp dpt:70000"), `line 4, column 41: "70000" is not a port: want 0 to 65535`},
		{rule("ACCEPT tcp -- anywhere anywhere tcp dpts:9:8"), `line 4, column 42: "9:8" is not a port`},
		{rule("ACCEPT all -- anywhere anywhere tcp dpt:80"), "line 4, column 33: -m tcp in a rule that is not for the protocol: want -p tcp"},
		{rule("ACCEPT all -- anywhere anywhere statistic mode sometimes"), `line 4, column 33: "statistic mode sometimes" is not how iptables lists its module statistic: want the whole line`},
		{rule("ACCEPT all -- anywhere anywhere statistic mode random probability 1.5"), `line 4, column 67: "1.5" is not a probability`},
		{rule("ACCEPT all -- anywhere anywhere ctstate OLD"), `line 4, column 41: "OLD" is not a list of conntrack states`},
		{rule("REJECT all -- anywhere anywhere reject-with nothing"), `line 4, column 45: "nothing" is not an answer of IPv4`},
		{"Chain own (0 references)\n" + names + "DNAT tcp anywhere anywhere /* fd00::1 */ to:[fd00::1]:80\n", `line 3, column 45: "[fd00::1]:80" is not an IPv4 address to translate to`},
		{verbose("x 0 0 ACCEPT all -- any any anywhere anywhere"), `line 3, column 1: "x" in column num`},
		{verbose("1 0 0x ACCEPT all -- any any anywhere anywhere"), `line 3, column 5: "0x" in column bytes: want a number`},
		{verbose("1 0 0 ACCEPT all -- lo"), "line 3, column 23: the line ends before the output interface"},
		{verbose("1 0 0 ACCEPT all -- a-device-too-long any anywhere anywhere"), `line 3, column 21: "a-device-too-long" is not the name of a device`},
		{"Chain own (0 references)\n" + names + "a\x00b\n", "line 3, column 2: a NUL byte"},
	} {
		_, err := parseListing(c.text, Options{})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s\n got %v\nwant %s", c.text, err, c.want)
		}
		for _, e := range Errors(err) {
			if e.Line < 1 || e.Column < 1 {
				t.Errorf("%+v", e)
			}
		}
	}
	// One fault is reported once, whatever it breaks below it.
	_, err := parseListing("Chain INPUT (policy ACCEPT)\n"+strings.Repeat("ACCEPT all anywhere anywhere\n", 9), Options{})
	if len(Errors(err)) != 1 {
		t.Error(err)
	}
}

// FuzzListing looks for text that makes parseListing panic, or that becomes a dump which
// cannot be printed and read again.
func FuzzListing(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.listing")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	for _, c := range wordings {
		f.Add(rowListing(c.row, c.rest))
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := parseListing(text, Options{})
		if err != nil {
			if len(Errors(err)) == 0 && !strings.HasPrefix(err.Error(), "the file ") {
				t.Fatalf("no place: %v", err)
			}
			return
		}
		for _, n := range d.Listing.Incomplete {
			if strings.Contains(n.String(), "\n") || n.Line < 0 || n.Line > strings.Count(text, "\n")+1 {
				t.Fatalf("note %q", n)
			}
		}
		for _, table := range d.Tables {
			for _, r := range table.Rules {
				if r.Line < 1 || r.Line > strings.Count(text, "\n")+1 || !d.Lists(table.Name, r.Chain) {
					t.Fatalf("rule %+v", r)
				}
				if u, ok := r.Target.(UnknownTarget); ok && targets[u.Target] != nil {
					return // "DNAT [unsupported revision]" is nothing that can be written
				} else if ok && !isOtherTarget(u.Target) {
					return
				}
				// Those that are not listed have to be declared to be read.
				if chain := r.JumpsTo(); chain != "" && table.Chain(chain) == nil {
					table.Chains = append(table.Chains, &Chain{Name: chain})
				}
			}
		}
		printed := d.String()
		again, err := Parse(strings.NewReader(printed), Options{Family: d.Family})
		if err != nil {
			t.Fatalf("%v\n%q\n%s", err, text, printed)
		}
		if again.Family != d.Family && strings.Contains(printed, "-A") {
			return // an address of the other family in the words of an unknown match
		}
		if again.String() != printed {
			t.Fatalf("%s\n%s", printed, again.String())
		}
	})
}

// TestListingWithoutColumns: grep -v took the names of the columns, and each form of rows is told by the rows.
func TestListingWithoutColumns(t *testing.T) {
	for _, head := range []string{"target prot opt source destination", "num target prot opt source destination", "pkts bytes target prot opt in out source destination", "num pkts bytes target prot opt in out source destination"} {
		var rows strings.Builder
		for i, target := range []string{"ACCEPT", "", "KUBE-FORWARD"} {
			for word := range strings.FieldsSeq(head) {
				rows.WriteString(map[string]string{
					"num": fmt.Sprint(i + 1), "pkts": "12K", "bytes": "720K", "target": target, "prot": "tcp", "opt": "--", "in": "*", "out": "eth0", "source": "10.0.0.0/8", "destination": "anywhere",
				}[word] + " ")
			}
			rows.WriteString("tcp dpt:80\n")
		}
		for _, order := range []string{rows.String(), rows.String()[strings.Index(rows.String(), "\n")+1:]} { // a rule with a target first, or one without
			const empty = "Chain INPUT (policy ACCEPT)\n%s\nChain FORWARD (policy DROP)\n%s"
			want, err := parseListing(fmt.Sprintf(empty, head+"\n", head+"\n"+order)+"\nChain KUBE-FORWARD (1 references)\n"+head+"\n", Options{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := parseListing(fmt.Sprintf(empty, "", order)+"\nChain KUBE-FORWARD (1 references)\n", Options{})
			if err != nil {
				t.Errorf("%s: %v", head, err)
				continue
			}
			texts := func(d *Dump) (texts []string) {
				for _, r := range d.Table("filter").Rules {
					texts = append(texts, r.String())
				}
				return texts
			}
			if a, b := texts(got), texts(want); !slices.Equal(a, b) || len(a) == 0 {
				t.Errorf("%s: %q, want %q", head, a, b)
			}
		}
	}
	for _, text := range []string{
		"Chain INPUT (policy ACCEPT)\nsomething else\n",
		"Chain INPUT (policy ACCEPT)\ntarget prot opt source destination\nChain FORWARD (policy DROP)\nACCEPT all -- anywhere anywhere\n", // a line is missing
	} {
		if _, err := parseListing(text, Options{}); err == nil {
			t.Errorf("no error of %q", text)
		}
	}
}

// TestInterfacesThatAreNotListed: without -v, a rule that would make others useless is for an interface.
func TestInterfacesThatAreNotListed(t *testing.T) {
	const all = " all -- 0.0.0.0/0 0.0.0.0/0"
	for _, c := range []struct {
		chain string
		rows  []string
		want  []bool
	}{
		{"INPUT (policy DROP)", []string{"ACCEPT" + all, "ACCEPT tcp -- 0.0.0.0/0 0.0.0.0/0 tcp dpt:22", "ACCEPT" + all}, []bool{true, false, true}},
		{"INPUT (policy ACCEPT)", []string{"ACCEPT" + all + " ctstate RELATED,ESTABLISHED", "ACCEPT" + all + " /* lo */", "DROP" + all}, []bool{false, true, false}},
		{"FORWARD (policy ACCEPT)", []string{"REJECT" + all + " reject-with icmp-host-prohibited", "REJECT" + all + " reject-with icmp-port-unreachable", "ACCEPT all -- 10.42.0.0/16 0.0.0.0/0"}, []bool{false, true, false}},
		{"LIBVIRT_FWI (1 references)", []string{"REJECT" + all + " reject-with icmp-port-unreachable"}, []bool{true}},
		{"CILIUM_FORWARD (1 references)", []string{"ACCEPT" + all}, []bool{true}},
		{"DOCKER-USER (1 references)", []string{"RETURN" + all}, []bool{false}},
	} {
		text := "# iptables -t filter -L -n\nChain " + c.chain + "\ntarget prot opt source destination\n" + strings.Join(c.rows, "\n") + "\n"
		d, err := Read(text, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range d.Tables[0].Rules {
			hidden := slices.ContainsFunc(r.Matches, func(m Match) bool { return m.module() == notListed })
			if hidden != c.want[i] {
				t.Errorf("%s: %s: hidden %t, want %t", c.chain, r, hidden, c.want[i])
			}
		}
	}
}

// TestFaultsAreBounded: a large file of another kind is not read to its end.
func TestFaultsAreBounded(t *testing.T) {
	for name, text := range map[string]string{
		"dump":    "*filter\n" + strings.Repeat("nonsense\n", 100*maxFaults),
		"listing": "Chain INPUT (policy ACCEPT)\ntarget prot opt source destination\n" + strings.Repeat("nonsense\n", 100*maxFaults),
	} {
		_, err := Read(text, Options{})
		if err == nil || !strings.HasSuffix(err.Error(), "and 989 more") && !strings.HasSuffix(err.Error(), "and 990 more") {
			t.Errorf("%s: %.80v ... %v", name, err, err.Error()[max(0, len(err.Error())-30):])
		}
	}
	if _, err := ParseSets(strings.NewReader(strings.Repeat("nonsense\n", 100*maxFaults))); err == nil || !strings.HasSuffix(err.Error(), "and 989 more") {
		t.Errorf("sets: %v", err)
	}
}
