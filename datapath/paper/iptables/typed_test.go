package iptables

import (
	"cmp"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// TestTyped has the values that rules become. That they print as the same text is
// tested for all of them with what iptables-save wrote: see TestDumpsUnchanged.
func TestTyped(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	network := func(a, m string) Network { return Network{addr(a), addr(m)} }
	yes := func(n bool) Condition[bool] { return Condition[bool]{true, n, !n} }
	every := Ports{Range: anyPort}
	tcp := Protocol{Number: 6}
	for _, c := range []struct {
		rule    string
		matches []Match
		target  Target
	}{
		{"", nil, nil},
		{"-s 10.1.0.0/255.0.255.0 ! -d 1.2.3.4/24 -i eth+ ! -o lo ! -p udp ! -f -g own", []Match{
			Source{network("10.0.0.0", "255.0.255.0"), false}, Destination{network("1.2.3.0", "255.255.255.0"), true},
			InInterface{Interface{"eth", true}, false}, OutInterface{Interface{"lo", false}, true}, Protocol{17, true}, Fragment{true},
		}, Goto{"own"}},
		// What Calico's "-p 4" is called by Debian, and by Red Hat and Alpine.
		{"-p ipencap -j DROP", []Match{Protocol{Number: 4}}, Drop},
		{"-p ipv4 -j DROP", []Match{Protocol{Number: 4}}, Drop},
		{"-p ospfigp", []Match{Protocol{Number: 89}}, nil},
		{"-p tcp --dport 80 --syn -j own", []Match{tcp, TCP{
			Source: every, Destination: Ports{PortRange{80, 80}, false},
			Flags: Condition[FlagTest]{true, false, FlagTest{FIN | SYN | RST | ACK, SYN}},
		}}, Jump{"own"}},
		{"-p tcp -m tcp ! --sport :1023 --tcp-option 5 ! --tcp-flags ALL NONE", []Match{tcp, TCP{
			Source: Ports{PortRange{0, 1023}, true}, Destination: every, Option: Condition[uint8]{true, false, 5},
			Flags: Condition[FlagTest]{true, true, FlagTest{FIN | SYN | RST | PSH | ACK | URG, 0}},
		}}, nil},
		{"-p sctp -m sctp --chunk-types all INIT,DATA:UBe", []Match{Protocol{Number: 132}, SCTP{every, every, Condition[ChunkTest]{
			true, false, ChunkTest{ChunksAll, []ChunkType{{0, 7, 6}, {Type: 1}}},
		}}}, nil},
		{"-p icmp -m icmp ! --icmp-type fragmentation-needed", []Match{Protocol{Number: 1}, ICMP{icmpCode(3, 4), true}}, nil},
		{"-p tcp -m multiport ! --dports 80,443,8000:8080", []Match{tcp, Multiport{
			DestinationPorts, []PortRange{{80, 80}, {443, 443}, {8000, 8080}}, true,
		}}, nil},
		{"-m conntrack --ctstate NEW,DNAT ! --ctorigdst 10.0.0.1 --ctstatus NONE --ctexpire 5: --ctdir REPLY", []Match{Conntrack{
			State: Condition[States]{true, false, StateNew | StateDNAT}, OriginalDestination: Condition[Network]{true, true, network("10.0.0.1", "255.255.255.255")},
			Status: Condition[CtStatus]{true, false, 0}, Expire: Condition[Range[uint32]]{true, false, Range[uint32]{5, 1<<32 - 1}},
			Direction: Condition[Direction]{true, false, Reply},
		}}, nil},
		{"-m nfacct --nfacct-name  localhost_nps_accepted_pkts", []Match{Accounting{"localhost_nps_accepted_pkts"}}, nil},
		{"-m state ! --state RELATED,ESTABLISHED", []Match{State{StateRelated | StateEstablished, true}}, nil},
		{"-m mark ! --mark 0x4000/0x4000 -m connmark --mark 010 -j MARK --set-mark 1/3", []Match{
			Mark{MaskedValue{0x4000, 0x4000}, true}, Connmark{MaskedValue{8, ^uint32(0)}, false},
		}, SetMark{MaskedValue{1, 3}}},
		{"-j MARK --and-mark 0xff", nil, SetMark{MaskedValue{0, 0xffffff00}}},
		{"-j MARK --or-mark 0xff", nil, SetMark{MaskedValue{0xff, 0xff}}},
		{"-j MARK --xor-mark 0xff", nil, SetMark{MaskedValue{0xff, 0}}},
		{"-j CONNMARK --restore-mark --mask 0xf", nil, SetConnmark{Mode: ConnmarkRestore, PacketMask: 0xf, ConnectionMask: 0xf}},
		{"-j CONNMARK --set-xmark 0x1/0x1 --right-shift-mark 3", nil, SetConnmark{Mark: MaskedValue{1, 1}, Shift: -3}},
		{"-m addrtype --src-type LOCAL,UNICAST ! --dst-type LOCAL --limit-iface-in", []Match{Addrtype{
			Source: Condition[AddrTypes]{true, false, AddrLocal | AddrUnicast}, Destination: Condition[AddrTypes]{true, true, AddrLocal}, LimitIn: true,
		}}, nil},
		{"-m statistic --mode random --probability 0.50000000000", []Match{Statistic{Probability: 1 << 30}}, nil},
		{"-m statistic --mode nth ! --every 3 --packet 2", []Match{Statistic{Nth: true, Every: 3, Packet: 2, Negated: true}}, nil},
		{"-m recent ! --update --seconds 10 --hitcount 3 --name ssh --mask 255.255.255.0 --rdest", []Match{Recent{
			Mode: RecentUpdate, Negated: true, Seconds: 10, HitCount: 3, Name: "ssh", Mask: addr("255.255.255.0"), Destination: true,
		}}, nil},
		{"-m set ! --match-set blocked src,dst --return-nomatch ! --update-counters --packets-gt 5 ! --bytes-eq 6", []Match{SetMatch{
			Set: "blocked", Directions: []SetDirection{SetSource, SetDestination}, Negated: true, ReturnNomatch: true,
			KeepCounters: true, Packets: CounterTest{CompareGreater, 5}, Bytes: CounterTest{CompareNotEqual, 6},
		}}, nil},
		{"-m physdev --physdev-in veth+ ! --physdev-is-bridged", []Match{Physdev{
			In: Condition[Interface]{true, false, Interface{"veth", true}}, IsBridged: yes(true),
		}}, nil},
		{"-m rpfilter --loose --invert", []Match{Rpfilter{Loose: true, Invert: true}}, nil},
		{"-m limit --limit 5/minute --limit-burst 7", []Match{Limit{Rate{Interval: 120000}, 7}}, nil},
		{"-m hashlimit --hashlimit-upto 10/sec --hashlimit-mode srcip,dstport --hashlimit-name x --hashlimit-srcmask 24", []Match{Hashlimit{
			Rate: Rate{100000, true}, Burst: 5, Mode: HashSource | HashDestinationPort, Name: "x", SourceBits: 24, DestinationBits: 32,
		}}, nil},
		{"-m owner ! --uid-owner 0-99 --socket-exists", []Match{Owner{
			UID: Condition[Range[uint32]]{true, true, Range[uint32]{0, 99}}, SocketExists: yes(false),
		}}, nil},
		{"-m mac ! --mac-source 00:11:22:AA:BB:CC", []Match{MAC{MACAddress{0, 0x11, 0x22, 0xaa, 0xbb, 0xcc}, true}}, nil},
		{"-m iprange ! --src-range 1.2.3.4-1.2.3.9", []Match{IPRange{Source: Condition[AddrRange]{true, true, AddrRange{addr("1.2.3.4"), addr("1.2.3.9")}}}}, nil},
		{"-m length --length :99", []Match{Length{Range[uint16]{0, 99}, false}}, nil},
		{"-m socket --transparent --nowildcard --restore-skmark", []Match{Socket{true, true, true}}, nil},
		{"-m pkttype ! --pkt-type multicast", []Match{PacketType{LinkMulticast, true}}, nil},
		{"-j REJECT", nil, Reject{"icmp-port-unreachable"}},
		{`-j LOG --log-prefix "a b" --log-level debug --log-uid`, nil, Log{Prefix: "a b", Level: 7, UID: true}},
		{"-p tcp -j DNAT --to-destination 1.2.3.4-1.2.3.9:80-90/100 --persistent", []Match{tcp}, DNAT{NATRange{
			First: addr("1.2.3.4"), Last: addr("1.2.3.9"), FirstPort: 80, LastPort: 90, BasePort: 100, Persistent: true,
		}}},
		{"-j SNAT --to-source 1.2.3.4 --random-fully", nil, SNAT{NATRange{First: addr("1.2.3.4"), Last: addr("1.2.3.4"), RandomFully: true}}},
		{"-p udp -j MASQUERADE --to-ports 1-5 --random", []Match{Protocol{Number: 17}}, Masquerade{NATRange{FirstPort: 1, LastPort: 5, Random: true}}},
		{"-p tcp -j REDIRECT --to-ports 80", []Match{tcp}, Redirect{NATRange{FirstPort: 80, LastPort: 80}}},
		{"-j NETMAP --to 10.0.0.0/8", nil, Netmap{prefix("10.0.0.0/8")}},
		{"-j CT --zone-orig mark --helper ftp", nil, CT{Helper: "ftp", Zone: CtZone{Given: true, FromMark: true, Original: true}}},
		{"-j NFQUEUE --queue-balance 1:5 --queue-bypass", nil, NFQueue{Queues: Range[uint16]{1, 5}, Bypass: true}},
		{"-p tcp -j TPROXY --on-port 50080 --tproxy-mark 0x1/0x1", []Match{tcp}, TProxy{50080, addr("0.0.0.0"), MaskedValue{1, 1}}},
		{"-j NFLOG --nflog-group 3 --nflog-size 10", nil, NFLog{Group: 3, Size: 10, Threshold: 1}},
		{"-m xyz ! --u32 0x0=0x1 -s 1.2.3.4 -j TEE --gateway 1.2.3.4", []Match{
			Source{network("1.2.3.4", "255.255.255.255"), false},
			UnknownMatch{"xyz", []Token{{"!", false, 17}, {"--u32", false, 19}, {"0x0=0x1", false, 25}}},
		}, UnknownTarget{"TEE", []Token{{"--gateway", false, 51}, {"1.2.3.4", false, 61}}}},
		{"-m unheard --dir in --pol ipsec --proto esp -p tcp", []Match{
			tcp, UnknownMatch{"unheard", []Token{
				{"--dir", false, 21}, {"in", false, 27}, {"--pol", false, 30}, {"ipsec", false, 36}, {"--proto", false, 42}, {"esp", false, 50},
			}},
		}, nil},
		{"-m ttl ! --ttl-eq 5 -j TTL --ttl-dec 2", []Match{TTL{CompareNotEqual, 5}}, SetTTL{HopDecrement, 2}},
		{"-m ttl --ttl-lt 5 -j TTL --ttl-set 64", []Match{TTL{CompareLess, 5}}, SetTTL{HopSet, 64}},
		{"-m tos --tos Minimize-Delay", []Match{TOS{0x10, 0x3f, false}}, nil},
		{"-m tos ! --tos 0x08", []Match{TOS{0x08, 0xff, true}}, nil},
		{"-m dscp --dscp-class AF11", []Match{DSCP{10, false}}, nil},
		{"-m dscp ! --dscp 0x2e", []Match{DSCP{46, true}}, nil},
		{"-m ecn ! --ecn-ip-ect 2", []Match{ECN{IP: Condition[uint8]{true, true, 2}}}, nil},
		{"-p tcp -m tcpmss ! --mss 1:500", []Match{tcp, SegmentSize{Range[uint16]{1, 500}, true}}, nil},
		{"-m quota ! --quota 5000000000", []Match{Quota{5000000000, true}}, nil},
		{"-m connlimit ! --connlimit-above 3", []Match{Connlimit{3, true, 32, false}}, nil},
		{"-m connlimit --connlimit-above 3 --connlimit-mask 24 --connlimit-daddr", []Match{Connlimit{3, false, 24, true}}, nil},
		{`-m helper ! --helper ftp`, []Match{Helper{"ftp", true}}, nil},
		{"-m time --timestart 22:00 --timestop 06:00 --weekdays Mon,Su ! --monthdays 1,31 --datestart 2020-1-2 --kerneltz --contiguous", []Match{Time{
			Begin: Condition[uint32]{true, false, 1577923200}, From: 79200, To: 21600, WeekDays: 1<<1 | 1<<7, MonthDays: AllMonthDays &^ (1<<1 | 1<<31),
			KernelZone: true, Contiguous: true,
		}}, nil},
		{`-m string ! --hex-string "a|0d 0a|b" --algo kmp --from 5 --to 20 --icase`, []Match{String{
			"a\r\nb", "kmp", 5, Condition[uint16]{true, false, 20}, true, true,
		}}, nil},
		{`-m u32 ! --u32 "0>>22&0x3C@4>>8&0xff=1:3,5&&6&0xff=0x11"`, []Match{U32{[]U32Test{
			{0, []U32Step{{U32Right, 22}, {U32And, 0x3c}, {U32At, 4}, {U32Right, 8}, {U32And, 0xff}}, []Range[uint32]{{1, 3}, {5, 5}}},
			{6, []U32Step{{U32And, 0xff}}, []Range[uint32]{{17, 17}}},
		}, true}}, nil},
		{`-m bpf --bytecode "2,48 0 0 9,6 0 0 4294967295"`, []Match{BPF{Program: []Instruction{{48, 0, 0, 9}, {6, 0, 0, 1<<32 - 1}}}}, nil},
		{"-m bpf --object-pinned /sys/fs/bpf/x", []Match{BPF{Pinned: "/sys/fs/bpf/x"}}, nil},
		{"-m cpu ! --cpu 3", []Match{CPU{3, true}}, nil},
		{"-m connbytes --connbytes 5 --connbytes-mode avgpkt --connbytes-dir reply", []Match{Connbytes{
			Range[uint64]{5, 1<<64 - 1}, false, ConnbytesAverage, ConnbytesReply,
		}}, nil},
		{"-m connbytes ! --connbytes 5:10000000000 --connbytes-mode bytes --connbytes-dir both", []Match{Connbytes{
			Range[uint64]{5, 10000000000}, true, ConnbytesBytes, ConnbytesBoth,
		}}, nil},
		{"-p tcp -j TARPIT --honeypot", []Match{tcp}, Tarpit{"honeypot"}},
		{"-m policy --dir in --pol ipsec --proto esp -p tcp", []Match{tcp, IPsec{Elements: []IPsecElement{{Protocol: Condition[uint8]{true, false, 50}}}}}, nil},
		{"-m policy --dir out --pol none", []Match{IPsec{Out: true, None: true}}, nil},
		{"-m policy --dir in --pol ipsec --strict --spi 0x10 --mode tunnel --tunnel-src 1.2.3.0/24 --next ! --reqid 3", []Match{IPsec{Strict: true, Elements: []IPsecElement{
			{SPI: Condition[uint32]{true, false, 16}, Tunnel: yes(false), Source: Condition[Network]{true, false, network("1.2.3.0", "255.255.255.0")}},
			{RequestID: Condition[uint32]{true, true, 3}},
		}}}, nil},
		{`-m comment --comment "-j" -j own`, []Match{Comment{"-j"}}, Jump{"own"}},
	} {
		table := "mangle"
		if c.target != nil {
			table = cmp.Or(TargetTable(c.target.name()), table)
		}
		text := "*" + table + "\n:chain - [0:0]\n:own - [0:0]\n" + strings.TrimSpace("-A chain "+c.rule) + "\nCOMMIT\n"
		d, err := Parse(strings.NewReader(text), Options{})
		if err != nil {
			t.Errorf("%s: %v", c.rule, err)
			continue
		}
		r := d.Tables[0].Rules[0]
		if len(r.Matches) != len(c.matches) || len(c.matches) > 0 && !reflect.DeepEqual(r.Matches, c.matches) || !reflect.DeepEqual(r.Target, c.target) {
			t.Errorf("%s:\n got %#v, %#v\nwant %#v, %#v", c.rule, r.Matches, r.Target, c.matches, c.target)
		}
		if d.String() != text {
			t.Errorf("printed %s", d)
		}
	}
}

// TestPortOnlyIPv6 reads what ip6tables-save 1.8.9 prints for "--to-destination []:80".
func TestPortOnlyIPv6(t *testing.T) {
	for text, want := range map[string]NATRange{
		":80":  {FirstPort: 80, LastPort: 80},
		"::80": {First: netip.MustParseAddr("::80"), Last: netip.MustParseAddr("::80")},
	} {
		if r, ok := parseNATRange(IPv6, text); !ok || r != want || r.String() != text {
			t.Errorf("%s: %+v, %v, printed %s", text, r, ok, r)
		}
	}
}

// TestTokens prints rules that a program made.
func TestTokens(t *testing.T) {
	r := Rule{Chain: "INPUT", words: new(Tokens([]Match{Comment{`it's "so" \`}, Comment{"plain_text-1"}, Comment{""}}, Log{Prefix: "a/b", Level: 4}))}
	want := `-A INPUT -m comment --comment "it\'s \"so\" \\" -m comment --comment plain_text-1 -m comment --comment "" -j LOG --log-prefix "a/b"`
	if r.String() != want {
		t.Errorf("got  %s\nwant %s", &r, want)
	}
	table := &Table{Name: "nat", Rules: []*Rule{{Chain: "INPUT", words: new(Tokens([]Match{Comment{"a\nb"}}, nil))}}}
	d := Dump{Tables: []*Table{table}}
	if want := "*nat\n-A INPUT -m comment --comment \"a\nb\"\nCOMMIT\n"; d.String() != want {
		t.Errorf("printed %q", d.String())
	}
	table.Before = []string{"# a\nb"}
	if _, err := d.WriteTo(&strings.Builder{}); err == nil {
		t.Error("a line end in a comment line was written")
	}
}

// TestTypedIPv6 is for the modules of IPv6 alone, by which a dump without addresses is known.
func TestTypedIPv6(t *testing.T) {
	for _, c := range []struct {
		rule  string
		match Match
	}{
		{"-m hl --hl-eq 255", HopLimit{CompareEqual, 255}},
		{"-m rt --rt-type 0", RoutingHeader{Type: Condition[uint32]{true, false, 0}}},
		{"-m rt ! --rt-type 2 --rt-segsleft 1:3 ! --rt-len 24 --rt-0-res --rt-0-addrs ::1,::2 --rt-0-not-strict", RoutingHeader{
			Type: Condition[uint32]{true, true, 2}, SegmentsLeft: Condition[Range[uint32]]{true, false, Range[uint32]{1, 3}},
			Length: Condition[uint32]{true, true, 24}, Reserved: true, NotStrict: true,
			Addresses: []netip.Addr{netip.MustParseAddr("::1"), netip.MustParseAddr("::2")},
		}},
	} {
		text := "*mangle\n-A INPUT " + c.rule + " -j HL --hl-inc 3\nCOMMIT\n"
		d, err := Parse(strings.NewReader(text), Options{})
		if err != nil {
			t.Errorf("%s: %v", c.rule, err)
			continue
		}
		r := d.Tables[0].Rules[0]
		if d.Family != IPv6 || !reflect.DeepEqual(r.Matches, []Match{c.match}) || r.Target != (SetHopLimit{HopIncrement, 3}) {
			t.Errorf("%s: got %s %#v, %#v", c.rule, d.Family, r.Matches, r.Target)
		}
		if text := (&Rule{Chain: "INPUT", words: new(Tokens(r.Matches, r.Target))}).String(); text != "-A INPUT "+c.rule+" -j HL --hl-inc 3" {
			t.Errorf("%s: printed as %s", c.rule, text)
		}
	}
}

// TestTypedFaults are what iptables-restore refuses.
func TestTypedFaults(t *testing.T) {
	for rule, want := range map[string]string{
		"-m ttl --ttl-eq 256":                                `"256" is not a number of 8 bits`,
		"-m ttl ! --ttl-lt 5":                                "--ttl-lt cannot be negated",
		"-s 1.2.3.4 -m hl --hl-eq 5":                         "module hl is not for IPv4",
		"-m ecn --ecn-ip-ect 4":                              `"4" is not an ECN codepoint`,
		"-p udp -m ecn --ecn-tcp-ece":                        "not for the protocol",
		"-m dscp --dscp 64":                                  `"64" is not a code point`,
		"-m tcpmss --mss 5":                                  "-m tcpmss in a rule that is not for the protocol",
		"-m policy --dir in --pol ipsec --reqid 5 --reqid 6": "--reqid is given a second time",
		"-m policy --dir in --pol ipsec --next":              "--next without --strict",
		"-m time --timestart 25:00":                          `"25:00" is not a time of the day`,
		"-m time --weekdays Mon,Xyz":                         "is not a list of days of the week",
		"-m time --datestart 2040":                           `"2040" is not a date`,
		"-m string --algo bm --hex-string |0d":               "is not a text with hexadecimal digits",
		"-m u32 --u32 0":                                     "is not a list of tests",
		"-m u32 --u32 0<5=1":                                 "is not a list of tests",
		`-m bpf --bytecode "2,6 0 0 1"`:                      "is not a program",
		`-m bpf --bytecode "1,6 0 0"`:                        "is not a program",
		`-m bpf --bytecode "1,65536 0 0 0"`:                  "is not a program",
		`-m bpf --bytecode ""`:                               "is not a program",
		"-m cpu --cpu -1":                                    "is not a number of 32 bits",
		"-m connbytes --connbytes 9:5 --connbytes-mode bytes --connbytes-dir both": "is not a range",
		"-m connbytes --connbytes 5 --connbytes-mode bits --connbytes-dir both":    `"bits" is not a mode`,
		"-j TARPIT":          "TARPIT in a rule that is not for the protocol",
		"-j TTL --ttl-inc 0": "a change by 0",
	} {
		_, err := Parse(strings.NewReader("*mangle\n-A INPUT "+rule+"\nCOMMIT\n"), Options{Family: IPv4})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", rule, err, want)
		}
	}
}
