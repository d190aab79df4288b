package nftables

import (
	"strings"
	"testing"
)

// handWritten are files, and how nft would list them.
var handWritten = []struct{ name, text, want string }{
	{"a table in one line", "table t { chain c { accept; }; }", "table ip t {\n\tchain c {\n\t\taccept\n\t}\n}\n"},
	{
		"a type that nft 1.0.6 lost", "table t { chain c { ct original proto-dst { 0x35 [invalid type], 0x50 [invalid type] } accept; }; }",
		"table ip t {\n\tchain c {\n\t\tct original proto-dst { 0x35, 0x50 } accept\n\t}\n}\n",
	},
	{"definitions", `
define lan = 10.0.0.0/8
define ports = { 22,
	80 } # of the server
define all = { $ports, 443 }
define flags = fin | syn
redefine lan = 192.168.0.0/16
table inet t {
	define inside = "eth0"
	chain c {
		iifname $inside ip saddr $lan tcp dport $all accept
		tcp flags & $flags == syn drop
	}
}`, `table inet t {
	chain c {
		iifname "eth0" ip saddr 192.168.0.0/16 tcp dport { 22, 80, 443 } accept
		tcp flags & (fin | syn) == syn drop
	}
}
`},
	{"commands", `
flush ruleset
delete table ip absent
flush chain ip absent c
delete rule ip absent c handle 5
delete element ip absent s { 1 }
add table ip old
add table inet t { comment "mine"; }
add chain inet t in { type filter hook input priority -5 ; }
add chain inet t gone
delete chain inet t gone
create chain inet t other
rename chain inet t other others
add set inet t s { type ipv4_addr ; flags interval ; }
add element inet t s { 10.0.0.1, 10.0.0.0/24, 10.2.0.0/16 }
delete element inet t s { 10.2.0.0/16 }
add rule inet t in ip saddr @s accept
add inet t in drop
insert rule inet t in iif lo accept
add rule inet t in index 0 counter
insert rule inet t in index 1 log
add counter inet t hits
add quota inet t q { 10 mbytes ; }
add map inet t m { type inet_service : verdict ; elements = { 22 : jump others } ; }
flush chain inet t others
destroy table ip old
list ruleset
`, `table inet t {
	comment "mine"
	counter hits {
	}

	quota q {
		10 mbytes
	}

	set s {
		type ipv4_addr
		flags interval
		elements = { 10.0.0.1, 10.0.0.0/24 }
	}

	map m {
		type inet_service : verdict
		elements = { 22 : jump others }
	}

	chain in {
		type filter hook input priority -5;
		iif lo accept
		log
		counter
		ip saddr @s accept
		drop
	}

	chain others {
	}
}
`},
	{"tables listed twice", "table t {\n chain a {\n accept\n }\n}\ntable ip t {\n chain a {\n drop\n }\n chain b {\n }\n}\n", "table ip t {\n\tchain a {\n\t\taccept\n\t\tdrop\n\t}\n\n\tchain b {\n\t}\n}\n"},
	{"lines that go on", "table t {\n chain c {\n ip saddr \\\n  10.0.0.1 \\\n  accept\n }\n}\n", "table ip t {\n\tchain c {\n\t\tip saddr 10.0.0.1 accept\n\t}\n}\n"},
	{"older forms", "table t {\n chain c {\n tcp dport ne 22 mark and 0xff eq 1\n ct helper set \"ftp\"\n set update ip saddr timeout 5s @s\n queue num 1 bypass,fanout\n reject with icmp type host-unreachable\n icmp seq 1\n}\n}\n",
		"table ip t {\n\tchain c {\n\t\ttcp dport != 22 meta mark & 0xff == 1\n\t\tct helper set \"ftp\"\n\t\tupdate @s { ip saddr timeout 5s }\n\t\tqueue flags bypass,fanout num 1\n\t\treject with icmp type host-unreachable\n\t\ticmp sequence 1\n\t}\n}\n"},
	{"what few kernels have", whatFewKernelsHave, whatFewKernelsHave},
	{"spaces and signs", `table inet t{
	set s{type ipv4_addr;elements={10.0.0.1,10.0.0.2};};
	set m { type ether_addr; elements = { aa:bb:cc:dd:ee:ff, # the first
		00:11:22:33:44:55, } }
	map v { type mac_proto . ipv6_addr : verdict
		elements = { ip . fe80::1 : jump x,
			ip6 . ::1
			: drop } }
	chain x {}
	chain c { type filter hook input priority -150 ; policy drop ;
		tcp dport{22,80:443} accept;ip6 saddr fe80::1-fe80::5 drop
		tcp dport vmap { 22: accept, 80 :drop, 443 : jump x, }
		iifname eth0.100 oifname wg* ct state new,established accept
		iifname { eth0, "eth1" } ip protocol tcp tcp flags&(fin|syn)==(fin|syn) drop
		meta l4proto{tcp,udp}th dport 53 redirect to :5353
		dnat ip6 to [fd00::1]:80
		ip daddr 10.0.0.1 tcp dport 80 dnat 10.1.1.1:8080
		snat to 10.0.0.1:1000-2000
		meta priority 1:2 meta priority set 0:10
		meta hour "10:00"-"17:00" meta day Monday
		limit rate over 1 mbytes / second drop
		not-a-statement
	}
}
`, `table inet t {
	set s {
		type ipv4_addr
		elements = { 10.0.0.1, 10.0.0.2 }
	}

	set m {
		type ether_addr
		elements = { aa:bb:cc:dd:ee:ff,
			     00:11:22:33:44:55 }
	}

	map v {
		type mac_proto . ipv6_addr : verdict
		elements = { ip . fe80::1 : jump x,
			     ip6 . ::1 : drop }
	}

	chain x {
	}

	chain c {
		type filter hook input priority -150; policy drop;
		tcp dport { 22, 80:443 } accept
		ip6 saddr fe80::1-fe80::5 drop
		tcp dport vmap { 22 : accept, 80 : drop, 443 : jump x }
		iifname eth0.100 oifname wg* ct state new,established accept
		iifname { eth0, "eth1" } ip protocol tcp tcp flags & (fin | syn) == fin | syn drop
		meta l4proto { tcp, udp } th dport 53 redirect to :5353
		dnat ip6 to [fd00::1]:80
		ip daddr 10.0.0.1 tcp dport 80 dnat to 10.1.1.1:8080
		snat to 10.0.0.1:1000-2000
		meta priority 1:2 meta priority set 0:10
		meta hour "10:00"-"17:00" meta day Monday
		limit rate over 1 mbytes/second drop
		not-a-statement
	}
}
`},
	{"iptables-nft", "# Warning: table ip filter is managed by iptables-nft, do not touch!\ntable ip filter {\n\tchain c {\n\t\tcounter packets 1 bytes 2 xt match \"comment\" xt target \"REJECT\"\n\t\tcounter packets 0 bytes 0 # xt_recent jump x\n\t}\n}\n",
		"# Warning: table ip filter is managed by iptables-nft, do not touch!\ntable ip filter {\n\tchain c {\n\t\tcounter packets 1 bytes 2 xt match \"comment\" xt target \"REJECT\"\n\t\tcounter packets 0 bytes 0 # xt_recent jump x\n\t}\n}\n"},
	{"iptables-nft, translated", `table ip filter {
	chain INPUT {
		 counter packets 0 bytes 0 accept
		comment "hello" counter packets 0 bytes 0 accept
		xt match recent counter packets 0 bytes 0 reject
		meta l4proto tcp tcp dport { 22, 80 } meta random & 2147483647 < 1073741824 counter packets 0 bytes 0 drop
		meter h { ip saddr limit rate over 5/second } counter packets 0 bytes 0 drop
		meta mark & 0x00004000 == 0x00004000 fib daddr type local counter packets 0 bytes 0 return
		counter packets 0 bytes 0 meta mark set mark or 0x4000
	}
}`, `table ip filter {
	chain INPUT {
		counter packets 0 bytes 0 accept
		comment "hello" counter packets 0 bytes 0 accept
		xt match recent counter packets 0 bytes 0 reject
		meta l4proto tcp tcp dport { 22, 80 } meta random & 2147483647 < 1073741824 counter packets 0 bytes 0 drop
		meter h { ip saddr limit rate over 5/second } counter packets 0 bytes 0 drop
		meta mark & 0x00004000 == 0x00004000 fib daddr type local counter packets 0 bytes 0 return
		counter packets 0 bytes 0 meta mark set meta mark | 0x4000
	}
}
`},
	{"times", "table t {\n set s { type ipv4_addr; timeout 1ms; gc-interval 1d2h3m4s5ms; }\n}\n",
		"table ip t {\n\tset s {\n\t\ttype ipv4_addr\n\t\ttimeout 1ms\n\t\tgc-interval 1d2h3m4s5ms\n\t}\n}\n"},
	{"unknown statements", "table t {\n chain c {\n counter frobnicate { a, b; } now comment \"x\"\n accept\n ip newfield 5 accept\n }\n tunnel tt {\n id 5\n }\n}\n",
		"table ip t {\n\ttunnel tt {\n\t\tid 5\n\t}\n\n\tchain c {\n\t\tcounter frobnicate { a, b; } now comment \"x\"\n\t\taccept\n\t\tip newfield 5 accept\n\t}\n}\n"},
}

// whatFewKernelsHave is as nft prints it; see the log of TestListingsReadAndPrint for what a kernel refuses.
const whatFewKernelsHave = `table inet t {
	secmark sm {
		"system_u:object_r:ssh_server_packet_t:s0"
	}

	map names {
		type ifname : verdict
		flags interval
		elements = { "lo" : accept,
			     "eth*" : drop }
	}

	flowtable ft {
		hook ingress priority filter
		devices = { "eth0", "eth1" }
		flags offload
		counter
	}

	chain c {
		type filter hook ingress devices = { "eth0", "eth1" } priority filter; policy accept;
		flags offload
		queue
		queue flags bypass num 3
		queue flags bypass,fanout num 1-5
		queue flags bypass to numgen inc mod 3 offset 4
		queue to symhash mod 2 offset 65
		queue flags bypass to oifname map { "eth0" : 0, "ppp0" : 2 }
		ct state established flow add @ft
		meta secmark set "sm"
		meta l4proto tcp tproxy ip6 to [fd00::1]:50080
		udp dport 4789 vxlan vni 10 vxlan ip saddr 10.0.0.1
		udp dport 6081 geneve vni 10 geneve tcp dport 22
		meta broute set 1
		meta ibrname "br0" meta ibrpvid 100
		srh sid[1] ::1
		socket cgroupv2 level 2 "system.slice/sshd.service" accept
		ct label "foo"
		icmpv6 parameter-problem 5
	}
}
`

func TestHandWritten(t *testing.T) {
	for _, test := range handWritten {
		t.Run(test.name, func(t *testing.T) {
			got := printed(t, readString(t, "file", test.text), Format{})
			if d := firstDifference(test.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestErrors: an error names the place, what stands there, and what was expected.
func TestErrors(t *testing.T) {
	for text, want := range map[string]string{
		"table ip t {\n\tchain c {\n\t\taccept\n":         "f:4:1: the end of the file: want “}”",
		"table ip t\nchain {":                             "f:2:7: “{”: want the name of a table",
		"frob":                                            "f:1:1: “frob”: want table, chain, rule, set, map, element, flowtable or an object",
		"table ip t {\n bogus x {\n}\n}":                  "f:2:2: “bogus”: want chain, set, map, flowtable or an object of the table",
		"table ip t {\n set s {\n type ipv4_addr 5\n}\n}": "f:3:17: “5”: want the end of the line or “;”",
		"table ip t {\n set s {\n timeout soon\n}\n}":     "f:3:10: “soon”: want a time such as 1h30m",
		"table ip t {\n set s {\n elements = { 1, , }\n}": "f:3:18: “,”: want a value",
		"table ip t {\n chain c {\n type filter hook input priority often;\n}\n}": "f:3:34: “often”: want a priority: a number, or a name such as filter",
		"table ip t {\n chain c {\n ip saddr $x\n}\n}":                            "f:3:11: “$”: want a variable that is defined in front of here, not $x",
		"include \"x\"\n":                      "f:1:9: \"x\" is not read: there is no folder for includes",
		"table t {\n}\n}\n":                    "f:3:1: “}”: want a command such as table or add",
		"{\"nftables\": [ {\"table\": 5} ]}":   "f:1:26: “5”: want an object",
		"{\"nftables\": [\n {\"rule\": {}} ]}": "f:2:11: “{”: want a member \"table\"",
		"{\"nftables\": [ {\"table\" ":         "f:1:25: the end of the file: want “:”",
		"{\"other\": []}":                      "f:1:1: “{”: want an object with an array \"nftables\"",
		"{\"nftables\": [ {}, ]}":              "f:1:16: “{”: want an object of one member such as \"table\"",
	} {
		_, err := Read("f", strings.NewReader(text))
		if err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestUnknownsNameTheirPlace(t *testing.T) {
	r := readString(t, "f", "table ip t {\n\tchain c {\n\t\tip saddr 10.0.0.1 frobnicate { 1, 2 } accept\n\t}\n}\n")
	rule := r.Tables[0].Chains[0].Rules[0]
	u, ok := rule.Statements[len(rule.Statements)-1].(Unknown)
	if !ok || u.String() != "f:3:21" || u.Text != "frobnicate { 1, 2 } accept" {
		t.Errorf("%#v", u)
	}
	if want := "f:3:21: “frobnicate”: want a statement or an expression such as ip saddr"; u.Err == nil || u.Err.Error() != want {
		t.Errorf("%v, want %s", u.Err, want)
	}
	if rule.Text != "ip saddr 10.0.0.1 frobnicate { 1, 2 } accept" || len(rule.Statements) != 2 {
		t.Errorf("%q %v", rule.Text, rule.Statements)
	}
}

// TestPlaces: rules, chains, sets and tables have the place where they begin, and handles.
func TestPlaces(t *testing.T) {
	r := readString(t, "f", "table ip t { # handle 7\n\tset s { # handle 2\n\t\ttype mark\n\t}\n\tchain c { # handle 3\n\t\taccept # handle 9\n\t}\n}\n")
	table := r.Tables[0]
	for what, got := range map[string][3]int{
		"table": {table.Line, table.Column, int(table.Handle)}, "set": {table.Sets[0].Line, table.Sets[0].Column, int(table.Sets[0].Handle)},
		"chain": {table.Chains[0].Line, table.Chains[0].Column, int(table.Chains[0].Handle)},
		"rule":  {table.Chains[0].Rules[0].Line, table.Chains[0].Rules[0].Column, int(table.Chains[0].Rules[0].Handle)},
	} {
		want := map[string][3]int{"table": {1, 7, 7}, "set": {2, 2, 2}, "chain": {5, 2, 3}, "rule": {6, 3, 9}}[what]
		if got != want {
			t.Errorf("%s: line, column and handle are %v, want %v", what, got, want)
		}
	}
}

// TestJSONCommands reads what programs give to nft -j.
func TestJSONCommands(t *testing.T) {
	r := readString(t, "f", `{"nftables": [
		{"flush": {"ruleset": null}},
		{"add": {"table": {"family": "inet", "name": "t"}}},
		{"add": {"chain": {"family": "inet", "table": "t", "name": "c", "type": "filter", "hook": "input", "prio": -150, "policy": "drop"}}},
		{"add": {"chain": {"family": "inet", "table": "t", "name": "gone"}}},
		{"delete": {"chain": {"family": "inet", "table": "t", "name": "gone"}}},
		{"add": {"set": {"family": "inet", "table": "t", "name": "s", "type": "ipv4_addr", "flags": ["interval"], "elem": ["10.0.0.1"]}}},
		{"add": {"element": {"family": "inet", "table": "t", "name": "s", "elem": [{"prefix": {"addr": "10.1.0.0", "len": 16}}]}}},
		{"add": {"rule": {"family": "inet", "table": "t", "chain": "c", "expr": [{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}}, {"accept": null}], "comment": "ssh"}}},
		{"insert": {"rule": {"family": "inet", "table": "t", "chain": "c", "expr": [{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}, {"frob": 1}]}}},
		{"add": {"rule": {"family": "inet", "table": "t", "chain": "c", "index": 0, "expr": [{"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"|": [{"meta": {"key": "mark"}}, 16384]}}}]}}}
	]}`)
	const want = `table inet t {
	set s {
		type ipv4_addr
		flags interval
		elements = { 10.0.0.1, 10.1.0.0/16 }
	}

	chain c {
		type filter hook input priority mangle; policy drop;
		ct state established,related {"frob": 1}
		meta mark set meta mark | 0x00004000
		tcp dport 22 accept comment "ssh"
	}
}
`
	if d := firstDifference(want, printed(t, r, Format{})); d != "" {
		t.Error(d)
	}
}

func TestDefine(t *testing.T) {
	r := readString(t, "f", "define name = t\ndefine ports = { 1, 2 }\ndefine prio = \"filter - 10\"\n"+
		"table ip $name {\n chain c {\n type filter hook input priority $prio;\n tcp dport $ports accept\n }\n}\n")
	if d := firstDifference("table ip t {\n\tchain c {\n\t\ttype filter hook input priority filter - 10;\n\t\ttcp dport { 1, 2 } accept\n\t}\n}\n", printed(t, r, Format{})); d != "" {
		t.Error(d)
	}
	if p := r.Tables[0].Chains[0].Base.Priority; p != -10 {
		t.Error(p)
	}
}
