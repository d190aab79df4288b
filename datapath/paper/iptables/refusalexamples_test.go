package iptables

import "strings"

// example is a rule that is refused, or a whole file.
type example struct {
	family Family // FamilyUnknown: IPv4
	table  string // empty: rule is the file
	rule   string // what follows -A
	fault  string // how the fault begins
	// loads is why it is refused although iptables-restore loads it; empty: it does not.
	loads string
}

// examples has at least one for each refusal in the source: see TestRefusals. Neither iptables-restore loads one:
// see TestKernelRefuses.
var examples = []example{
	// Files.
	{rule: "*filter\n-A INPUT -m comment --comment \"a\x00b\"\nCOMMIT\n", fault: "a NUL byte", loads: "the rest of the line is lost"},
	{rule: "*filter\n-A INPUT -j ACCEPT\n", fault: "the file ends inside table filter"},
	{rule: "COMMIT\n", fault: "COMMIT outside of a table"},
	{rule: "what\n", fault: `unknown line "what"`},
	{rule: "*filter\nwhat\nCOMMIT\n", fault: `unknown line "what"`},
	{rule: "*filter\n*nat\nCOMMIT\n", fault: "table nat begins inside table filter"},
	{rule: "*what\nCOMMIT\n", fault: `unknown table "what"`},
	{rule: "*filter\nCOMMIT\n*filter\nCOMMIT\n", fault: "table filter is there already", loads: "the second replaces the first, which the file of a dump does not mean"},
	{rule: ":own - [0:0]\n", fault: "a chain outside of a table"},
	{rule: "*filter\n:" + strings.Repeat("a", 40) + " - [0:0]\nCOMMIT\n", fault: "the chain's name"},
	{rule: "*filter\n: - [0:0]\nCOMMIT\n", fault: `"" cannot be the name of a chain`},
	{rule: "*filter\n:own\nCOMMIT\n", fault: "the chain's policy is missing"},
	{rule: "*filter\n:INPUT WHAT [0:0]\nCOMMIT\n", fault: `unknown policy "WHAT"`},
	{rule: "-A INPUT\n", fault: "a rule outside of a table"},
	{rule: "*filter\n[0] -A INPUT\nCOMMIT\n", fault: `"[0]" are no counters`},
	{rule: "*filter\n[0:0]\nCOMMIT\n", fault: "no rule behind the counters"},
	{rule: "*filter\n-D INPUT 1\nCOMMIT\n", fault: `command "-D"`},
	{rule: "*filter\n-A\nCOMMIT\n", fault: "-A without a chain"},
	{rule: "*filter\n-A missing\nCOMMIT\n", fault: `table filter has no chain "missing"`},

	// Options.
	{table: "filter", rule: `INPUT -m comment --comment "a`, fault: "a quote is opened and never closed", loads: "a line that was cut off ends so"},
	{table: "filter", rule: "INPUT ! -j ACCEPT", fault: "-j cannot be negated"},
	{table: "filter", rule: "INPUT -s", fault: "-s at the end of the rule"},
	{table: "filter", rule: "INPUT -s 1.2.3.4 -s 1.2.3.4", fault: "-s is given a second time"},
	{table: "filter", rule: `INPUT -m ""`, fault: "-m without a module"},
	{table: "filter", rule: "INPUT -s 1.2.3.4 -m icmp6 --icmpv6-type 1", fault: "module icmp6 is not for IPv4"},
	{table: "filter", rule: "INPUT -j own -j own", fault: "a second target"},
	{table: "filter", rule: "INPUT -j missing", fault: `table filter has no chain "missing"`},
	{table: "filter", rule: "INPUT -j INPUT", fault: "INPUT is a built-in chain"},
	{table: "mangle", rule: "INPUT -s 1.2.3.4 -j HL --hl-inc 1", fault: "target HL is not for IPv4"},
	{table: "filter", rule: "INPUT what", fault: `a stray word "what"`},
	{table: "filter", rule: "INPUT --dport 80", fault: "option --dport of a module that was not loaded"},
	{table: "filter", rule: "INPUT -p tcp -m tcp --what", fault: "tcp has no option --what"},
	{table: "filter", rule: "INPUT --what", fault: "unknown option --what"},

	{table: "filter", rule: "INPUT -s 1.2.3.4 -j MASQUERADE", fault: "the kernel has no target MASQUERADE in table filter"},
	{table: "nat", rule: "PREROUTING -j SNAT --to-source 1.2.3.4", fault: "the kernel has no target SNAT in chain PREROUTING"},

	// Generic matches.
	{table: "filter", rule: "INPUT -s 1.2.3.4/33", fault: `"1.2.3.4/33" is not an IPv4 network`},
	{table: "filter", rule: "INPUT -i a-device-too-long", fault: `"a-device-too-long" is not the name of a device`},
	{table: "filter", rule: "INPUT -p what", fault: `"what" is not a protocol`},
	{table: "filter", rule: "INPUT ! -p all", fault: "a rule for no protocol never matches"},
	{family: IPv6, table: "filter", rule: "INPUT -f", fault: "-f is not for IPv6"},

	// Numbers.
	{table: "mangle", rule: "INPUT -m ttl --ttl-eq 256", fault: `"256" is not a number of 8 bits`},
	{table: "filter", rule: "INPUT -j NFQUEUE --queue-num 65536", fault: `"65536" is not a number of 16 bits`},
	{table: "filter", rule: "INPUT -m cpu --cpu 4294967296", fault: `"4294967296" is not a number of 32 bits`},
	{table: "filter", rule: "INPUT -m quota --quota 18446744073709551616", fault: `"18446744073709551616" is not a number of 64 bits`},
	{table: "filter", rule: "INPUT -m mark --mark 0x100000000", fault: `"0x100000000" is not a mark`},
	{table: "filter", rule: "INPUT -m length --length 70000", fault: `"70000" is not a length`},

	// Transport.
	{table: "filter", rule: "INPUT -p tcp -m tcp --dport 9:8", fault: `"9:8" is not a port`},
	{table: "filter", rule: "INPUT -p udp -m udp --dport what", fault: `"what" is not a port`},
	{table: "filter", rule: "INPUT -m tcp --dport 80", fault: "-m tcp in a rule that is not for the protocol"},
	{table: "filter", rule: "INPUT -p tcp -m tcp --tcp-flags SYN WHAT", fault: `"WHAT" is not a list of TCP flags`},
	{table: "filter", rule: "INPUT -p tcp -m tcp --tcp-option 0", fault: `"0" is not a TCP option`},
	{table: "filter", rule: "INPUT -p tcp -m tcp --syn --tcp-flags SYN SYN", fault: "--tcp-flags together with --syn"},
	{table: "filter", rule: "INPUT -p tcp -m udp --dport 80", fault: "-m udp in a rule that is not for the protocol"},
	{table: "filter", rule: "INPUT -p tcp -m multiport --dports 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", fault: `"1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16" is not a list of ports`},
	{table: "filter", rule: "INPUT -m multiport --dports 80", fault: "-m multiport in a rule that is not for the protocol"},
	{table: "filter", rule: "INPUT -p tcp -m multiport --sports 1 --dports 2", fault: "--dports together with --sports"},
	{table: "filter", rule: "INPUT -p tcp -m sctp --dport 80", fault: "-m sctp in a rule that is not for the protocol"},
	{table: "filter", rule: "INPUT -p sctp -m sctp --chunk-types most INIT", fault: `"most" is not a mode`},
	{table: "filter", rule: "INPUT -p sctp -m sctp --chunk-types any WHAT", fault: `"WHAT" is not a list of chunk types`},
	{table: "filter", rule: "INPUT -p icmp -m icmp --icmp-type what", fault: `"what" is not an ICMP type`},
	{table: "filter", rule: "INPUT -p tcp -m icmp --icmp-type 8", fault: "-m icmp in a rule that is not for the protocol"},
	{family: IPv6, table: "filter", rule: "INPUT -p tcp -m icmp6 --icmpv6-type 1", fault: "-m icmp6 in a rule that is not for the protocol"},
	{table: "filter", rule: "INPUT -p udp -m tcpmss --mss 5", fault: "-m tcpmss in a rule that is not for the protocol"},
	{table: "filter", rule: "INPUT -p tcp -m tcpmss --mss 9:5", fault: `"9:5" is not a segment size`},

	// Connections.
	{table: "filter", rule: "INPUT -m conntrack --ctstate OLD", fault: `"OLD" is not a list of conntrack states`},
	{table: "filter", rule: "INPUT -m conntrack --ctstatus OLD", fault: `"OLD" is not a list of conntrack statuses`},
	{table: "filter", rule: "INPUT -m conntrack --ctexpire x", fault: `"x" is not a time`},
	{table: "filter", rule: "INPUT -m conntrack --ctdir UP", fault: `"UP" is not a direction`},
	{table: "filter", rule: "INPUT -m state --state DNAT", fault: `"DNAT" is not a list of states`},
	{table: "raw", rule: "PREROUTING -j CT --ctevents what", fault: `"what" is not a list of events`},
	{table: "raw", rule: "PREROUTING -j CT --expevents what", fault: `"what" is not a list of events`},
	{table: "raw", rule: "PREROUTING -j CT --zone 65536", fault: `"65536" is not a zone`},
	{table: "filter", rule: "INPUT -m connbytes --connbytes 9:5 --connbytes-mode bytes --connbytes-dir both", fault: `"9:5" is not a range`},
	{table: "filter", rule: "INPUT -m connbytes --connbytes 5 --connbytes-mode bits --connbytes-dir both", fault: `"bits" is not a mode`},
	{table: "filter", rule: "INPUT -m connbytes --connbytes 5 --connbytes-mode bytes --connbytes-dir up", fault: `"up" is not a direction`},
	{table: "filter", rule: "INPUT -m connlimit --connlimit-above 5 --connlimit-mask x", fault: `"x" is not a prefix length`},
	{table: "filter", rule: "INPUT -m connlimit --connlimit-above 5 --connlimit-saddr --connlimit-daddr", fault: "--connlimit-daddr together with --connlimit-saddr"},
	{table: "filter", rule: "INPUT -m connlimit --connlimit-above 5 --connlimit-upto 6", fault: "--connlimit-upto together with --connlimit-above"},
	{table: "mangle", rule: "INPUT -j CONNMARK --set-mark 1 --left-shift-mark 32", fault: `"32" is not a number of bits`},
	{table: "mangle", rule: "INPUT -j MARK --set-mark 1 --or-mark 2", fault: "--or-mark together with --set-mark"},

	// Rates and chances.
	{table: "filter", rule: "INPUT -m limit --limit 10001/sec", fault: `"10001/sec" is not a rate`},
	{table: "filter", rule: "INPUT -m limit --limit 5/sec --limit-burst 10001", fault: `"10001" is not a burst`},
	{table: "filter", rule: "INPUT -m hashlimit --hashlimit-upto 1000001/sec --hashlimit-name a", fault: `"1000001/sec" is not a rate`},
	{table: "filter", rule: "INPUT -m hashlimit --hashlimit-upto 5/sec --hashlimit-burst 1000001 --hashlimit-name a", fault: `"1000001" is not a burst`},
	{table: "filter", rule: "INPUT -m hashlimit --hashlimit-upto 5kb/s --hashlimit-burst x --hashlimit-name a", fault: `"x" is not a burst`},
	{table: "filter", rule: "INPUT -m hashlimit --hashlimit-upto xkb/s --hashlimit-name a", fault: `"xkb/s" is not a rate in bytes`},
	{table: "filter", rule: "INPUT -m hashlimit --hashlimit-upto 5/sec --hashlimit-mode up --hashlimit-name a", fault: `"up" is not a mode`},
	{table: "filter", rule: "INPUT -m hashlimit --hashlimit-upto 5/sec --hashlimit-mode srcip --hashlimit-srcmask 33 --hashlimit-name a", fault: `"33" is not the length of a prefix`},
	{table: "filter", rule: "INPUT -m hashlimit --hashlimit-upto 5/sec --hashlimit-above 5/sec --hashlimit-name a", fault: "--hashlimit-above together with --hashlimit-upto"},
	{table: "filter", rule: "INPUT -m statistic --mode random --probability 1.5", fault: `"1.5" is not a probability`},
	{table: "filter", rule: "INPUT -m statistic --mode what", fault: `"what" is not a mode`},
	{table: "filter", rule: "INPUT -m statistic --mode nth --probability 0.5", fault: "--probability with --mode nth"},
	{table: "filter", rule: "INPUT -m statistic --mode nth --every 0", fault: `"0" is not a number of packets`},
	{table: "filter", rule: "INPUT -m statistic --mode nth --every 3 --packet 3", fault: "packet 3 of 3"},
	{table: "filter", rule: "INPUT -m recent --set --seconds 5", fault: "--seconds with --set"},
	{table: "filter", rule: "INPUT -m recent --rcheck --reap", fault: "--reap without --seconds"},

	// Addresses and devices.
	{table: "filter", rule: "INPUT -m addrtype --dst-type HOME", fault: `"HOME" is not a list of address types`},
	{table: "filter", rule: "INPUT -m addrtype --dst-type LOCAL --limit-iface-in --limit-iface-out", fault: "--limit-iface-out together with --limit-iface-in"},
	{table: "filter", rule: "INPUT -m iprange --src-range 1.2.3.400-1.2.3.4", fault: `"1.2.3.400-1.2.3.4" is not a range of IPv4 addresses`},
	{table: "filter", rule: "INPUT -m mac --mac-source 00:11", fault: `"00:11" is not an Ethernet address`},
	{table: "filter", rule: "INPUT -m recent --set --mask what", fault: `"what" is not an IPv4 address`},
	{table: "filter", rule: "INPUT -m pkttype --pkt-type what", fault: `"what" is not a type of packet`},
	{table: "filter", rule: "INPUT -m set --match-set a up", fault: `"up" is not a list of directions`},

	// Headers and contents.
	{table: "mangle", rule: "INPUT -p udp -m ecn --ecn-tcp-ece", fault: "a TCP flag of -m ecn in a rule that is not for the protocol"},
	{table: "mangle", rule: "INPUT -m ecn --ecn-ip-ect 4", fault: `"4" is not an ECN codepoint`},
	{table: "mangle", rule: "INPUT -m tos --tos what", fault: `"what" is not a type of service`},
	{table: "mangle", rule: "INPUT -m dscp --dscp 64", fault: `"64" is not a code point`},
	{table: "mangle", rule: "INPUT -m dscp --dscp-class what", fault: `"what" is not a class`},
	{table: "mangle", rule: "INPUT -m dscp --dscp 1 --dscp-class EF", fault: "--dscp-class together with --dscp"},
	{family: IPv6, table: "mangle", rule: "INPUT -m rt --rt-segsleft what", fault: `"what" is not a number of segments`},
	{family: IPv6, table: "mangle", rule: "INPUT -m rt --rt-type 0 --rt-0-addrs what --rt-0-not-strict", fault: `"what" is not a list of IPv6 addresses`},
	{table: "mangle", rule: "PREROUTING -j TTL --ttl-inc 0", fault: "a change by 0"},
	{table: "filter", rule: "INPUT -m string --algo bm --string " + strings.Repeat("x", 129), fault: `"` + strings.Repeat("x", 60)},
	{table: "filter", rule: "INPUT -m string --algo bm --hex-string |0d", fault: `"|0d" is not a text with hexadecimal digits`},
	{table: "filter", rule: "INPUT -m string --algo what --string x", fault: `"what" is not an algorithm`},
	{table: "filter", rule: "INPUT -m string --algo bm --string x --hex-string |0d|", fault: "--hex-string together with --string"},
	{table: "filter", rule: "INPUT -m u32 --u32 0", fault: `"0" is not a list of tests`},
	{table: "filter", rule: `INPUT -m bpf --bytecode "2,6 0 0 1"`, fault: `"2,6 0 0 1" is not a program`},
	{table: "filter", rule: "INPUT -m time --timestart 25:00", fault: `"25:00" is not a time of the day`},
	{table: "filter", rule: "INPUT -m time --datestart 2040", fault: `"2040" is not a date`},
	{table: "filter", rule: "INPUT -m time --monthdays 32", fault: `"32" is not a list of days of the month`},
	{table: "filter", rule: "INPUT -m time --weekdays Xyz", fault: `"Xyz" is not a list of days of the week`},

	// IPsec.
	{table: "filter", rule: "INPUT -m policy --dir up", fault: `"up" is not a direction`},
	{table: "filter", rule: "INPUT -m policy --dir in --pol what", fault: `"what" is not a policy`},
	{table: "filter", rule: "INPUT -m policy --dir in --pol ipsec --proto tcp", fault: `"tcp" is not a protocol of IPsec`},
	{table: "filter", rule: "INPUT -m policy --dir in --pol ipsec --mode what", fault: `"what" is not a mode`},
	{table: "filter", rule: "INPUT -m policy --dir in --pol ipsec --next", fault: "--next without --strict"},
	{table: "filter", rule: "INPUT -m policy --dir in --pol ipsec --reqid 5 --reqid 6", fault: "--reqid is given a second time"},
	{table: "filter", rule: "INPUT -m policy --dir in --pol none --strict", fault: "--pol none with --strict"},
	{table: "filter", rule: "INPUT -m policy --dir in --pol ipsec --strict", fault: "--strict without an element"},
	{table: "filter", rule: "INPUT -m policy --dir in --pol ipsec --strict --reqid 1 --next --reqid 2 --next --reqid 3 --next --reqid 4 --next --reqid 5", fault: "too many elements of a policy"},

	// Targets.
	{table: "filter", rule: "INPUT -j REJECT --reject-with what", fault: `"what" is not an answer of IPv4`},
	{table: "filter", rule: "INPUT -j REJECT --reject-with tcp-reset", fault: "tcp-reset in a rule that is not for the protocol"},
	{table: "filter", rule: "INPUT -j TARPIT", fault: "TARPIT in a rule that is not for the protocol"},
	{table: "filter", rule: "INPUT -p tcp -j TARPIT --tarpit --reset", fault: "--reset together with --tarpit"},
	{table: "filter", rule: "INPUT -j NFQUEUE --queue-balance 5:5", fault: `"5:5" is not a range of queues`},
	{table: "filter", rule: "INPUT -j NFQUEUE --queue-num 5 --queue-balance 5:6", fault: "--queue-balance together with --queue-num"},
	{table: "filter", rule: "INPUT -j NFQUEUE --queue-num 5 --queue-cpu-fanout", fault: "--queue-cpu-fanout for one queue"},
	{table: "filter", rule: "INPUT -j LOG --log-level 9", fault: `"9" is not a level`},
	{table: "filter", rule: "INPUT -j NFLOG --nflog-range 5 --nflog-size 5", fault: "--nflog-size together with --nflog-range"},
	{table: "filter", rule: "INPUT -j AUDIT --type what", fault: `"what" is not a type`},
	{table: "mangle", rule: "FORWARD -p udp -j TCPMSS --set-mss 5", fault: "TCPMSS in a rule that is not for the protocol"},
	{table: "mangle", rule: "PREROUTING -p icmp -j TPROXY --on-port 5", fault: "TPROXY in a rule that is not for the protocol"},
	{table: "mangle", rule: "PREROUTING -j TOS --set-tos what", fault: `"what" is not a type of service`},
	{table: "mangle", rule: "PREROUTING -j DSCP --set-dscp 64", fault: `"64" is not a DSCP`},
	{table: "mangle", rule: "PREROUTING -j DSCP --set-dscp 5 --set-dscp-class EF", fault: "--set-dscp-class together with --set-dscp"},
	{table: "mangle", rule: "POSTROUTING -j CLASSIFY --set-class what", fault: `"what" is not a class`},
	{table: "nat", rule: "PREROUTING -j DNAT --to-destination what", fault: `"what" is not an IPv4 address to translate to`},
	{table: "nat", rule: "PREROUTING -j DNAT --to-destination 1.2.3.4:80", fault: "a port in a rule that is not for the protocol"},
	{table: "nat", rule: "POSTROUTING -p tcp -j MASQUERADE --to-ports 9-5", fault: `"9-5" is not a range of ports`},
}
