package iptables

import (
	"fmt"
	"strings"
	"testing"
)

// wordings are rows in the spelling of several versions of iptables.
var wordings = []struct {
	// row is what stands in front of the addresses; "6:" in front of it: IPv6.
	row string
	// rest stands behind them.
	rest string
	want string // the rule's arguments
}{
	{"ACCEPT all --", "", "-j ACCEPT"},
	{"ACCEPT 0 --", "", "-j ACCEPT"},
	{"ACCEPT ! tcp --", "", "! -p tcp -j ACCEPT"},
	{"all --", "", ""},
	{"! 253 -f", "", "! -p 253 -f"},
	{"tcp tcp --", "", "-p tcp -j tcp"}, // a chain of that name
	{"6:ACCEPT tcp", "", "-p tcp -j ACCEPT"},
	{"6:tcp", "", "-p tcp"},
	{"6:ACCEPT !tcp", "", "! -p tcp -j ACCEPT"},
	{"own all --", "[goto]", "-g own"},
	{"own tcp --", "[goto]  tcp dpt:80", "-p tcp -m tcp --dport 80 -g own"},

	{"own all --", "/* a   b */", `-m comment --comment "a b" -j own`},
	{"own all --", "/*  */ /* -j own */", `-m comment --comment "" -m comment --comment "-j own" -j own`},
	{"own tcp --", "/* x */ tcp /* y */", "-p tcp -m comment --comment x -m tcp -m comment --comment y -j own"},
	{"own all --", "/* cut off", `-m comment --comment "cut off" -m "the end of the line, which is cut off" comment -j own`},

	{"own tcp --", "tcp dpt:domain", "-p tcp -m tcp --dport 53 -j own"},
	{"own tcp --", "tcp spts:http:https dpt:!http-alt", "-p tcp -m tcp --sport 80:443 ! --dport 8080 -j own"},
	{"own tcp --", "tcp dpts:ftp-data:ftp", "-p tcp -m tcp --dport 20:21 -j own"},
	{"own tcp --", "tcp dpt:nosuch spt:!alike:80 option=5", `-p tcp -m tcp --tcp-option 5 -m "port name nosuch" dport -m "port name alike:80" ! sport -j own`},
	{"own tcp --", "tcp flags:0x17/0x02", "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j own"},
	{"own tcp --", "tcpflags: 0x17/0x02 limit: avg 1/sec burst 5", "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -m limit --limit 1/sec -j own"},
	{"own tcp --", "tcp dpt:ssh flags:!FIN,SYN,RST,ACK/SYN", "-p tcp -m tcp --dport 22 ! --tcp-flags FIN,SYN,RST,ACK SYN -j own"},
	{"own tcp --", "tcp flags:0xFF/0x02", "-p tcp -m tcp -m flags:0xFF/0x02 -j own"}, // ECE and CWR
	{"own sctp --", "sctp dpt:5 any 0x0000:I,0x0001", "-p sctp -m sctp --dport 5 --chunk-types any DATA:I,INIT -j own"},
	{"own sctp --", "sctp any 0x0077", "-p sctp -m sctp -m any 0x0077 -j own"},
	{"own tcp --", "multiport dports http,https,8000:8010", "-p tcp -m multiport --dports 80,443,8000:8010 -j own"},
	{"own tcp --", "multiport sports  !80", "-p tcp -m multiport ! --sports 80 -j own"},
	{"own udp --", "multiport ports mdns,nosuch", `-p udp -m "port names mdns,nosuch" ports -j own`},
	{"own icmp --", "icmp echo-request", "-p icmp -m icmp --icmp-type 8 -j own"},
	{"own icmp --", "icmp !any", "-p icmp -m icmp ! --icmp-type any -j own"},
	{"own icmp --", "icmp type 8", "-p icmp -m icmp --icmp-type 8 -j own"},
	{"own icmp --", "icmp !type 3 code 4", "-p icmp -m icmp ! --icmp-type 3/4 -j own"},
	{"own icmp --", "icmptype 3 code 4", "-p icmp -m icmp --icmp-type 3/4 -j own"},
	{"own icmp --", "icmptype 3 codes 1 to 5", "-p icmp -m icmptype 3 codes 1 to 5 -j own"},
	{"6:own ipv6-icmp", "ipv6-icmptype 135", "-p ipv6-icmp -m icmp6 --icmpv6-type 135 -j own"},
	{"6:own icmpv6 --", "ipv6-icmp neighbour-solicitation", "-p ipv6-icmp -m icmp6 --icmpv6-type 135 -j own"},

	{"own all --", "ctstate RELATED,ESTABLISHED", "-m conntrack --ctstate RELATED,ESTABLISHED -j own"},
	{"own all --", "! ctstate DNAT ctdir REPLY ctstate NEW", "-m conntrack ! --ctstate DNAT --ctdir REPLY -m conntrack --ctstate NEW -j own"},
	{"own all --", "state NEW", "-m state --state NEW -j own"},
	{"own all --", "! state NEW", "-m state ! --state NEW -j own"},
	{"own all --", "state !NEW", "-m state ! --state NEW -j own"},
	{"own all --", "mark match 0x4000/0x4000", "-m mark --mark 0x4000/0x4000 -j own"},
	{"own all --", "MARK match !0x1", "-m mark ! --mark 0x1 -j own"},
	{"own all --", "connmark match  0x20/0x20", "-m connmark --mark 0x20/0x20 -j own"},
	{"own all --", "ADDRTYPE match dst-type !LOCAL limit-out", "-m addrtype ! --dst-type LOCAL --limit-iface-out -j own"},
	{"own all --", "statistic mode nth every 3", "-m statistic --mode nth --every 3 --packet 0 -j own"},
	{"own all --", "recent: CHECK seconds: 10800 reap name: KUBE-SEP-X side: source mask: 255.255.255.255",
		"-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-X --mask 255.255.255.255 --rsource -j own"},
	{"own all --", "recent: SET name: X side: source", "-m recent --set --name X --mask 255.255.255.255 --rsource -j own"},
	{"own all --", "match-set KUBE-CLUSTER-IP dst,dst", "-m set --match-set KUBE-CLUSTER-IP dst,dst -j own"},
	{"own all --", "! match-set foo6 dst,src ! update-counters ! update-subcounters",
		"-m set ! --match-set foo6 dst,src ! --update-counters ! --update-subcounters -j own"},
	{"own all --", "match-set a src return-nomatch packets-lt 10 ! bytes-eq 1",
		"-m set --match-set a src --return-nomatch --packets-lt 10 ! --bytes-eq 1 -j own"},
	{"own all --", "PHYSDEV match ! --physdev-is-bridged", "-m physdev ! --physdev-is-bridged -j own"},
	{"own all --", "rpfilter invert", "-m rpfilter --invert -j own"},
	{"own all --", "socket --transparent", "-m socket --transparent -j own"},
	{"own all --", "limit: up to 1mb/s burst 2mb mode srcip-dstport htable-size 99 srcmask 24",
		"-m hashlimit --hashlimit-upto 1mb/s --hashlimit-burst 2mb --hashlimit-mode srcip,dstport --hashlimit-name line-3 --hashlimit-htable-size 99 --hashlimit-srcmask 24 -j own"},
	{"own all --", "owner UID match 0 ! owner GID match 5-9", "-m owner --uid-owner 0 ! --gid-owner 5-9 -j own"},
	{"own all --", "owner UID match root", "-m owner --uid-owner 0 -j own"},
	{"own tcp --", "! owner UID match nobody tcp", `-p tcp -m "user name nobody" ! owner -m tcp -j own`},
	{"own all --", "owner GID match adm incl. suppl. groups owner UID match 5", `-m owner --uid-owner 5 -m "group name adm" owner -j own`},
	{"own all --", "MAC !00:11:22:AA:BB:CC", "-m mac ! --mac-source 00:11:22:aa:bb:cc -j own"},
	{"own tcp --", "match bpf 48 0 0 9,21 0 1 6,6 0 0 1,6 0 0 0  tcp dpt:80",
		`-p tcp -m bpf --bytecode "4,48 0 0 9,21 0 1 6,6 0 0 1,6 0 0 0" -m tcp --dport 80 -j own`},
	{"own all --", "match bpf 6 0 0 1 cpu 0", `-m bpf --bytecode "1,6 0 0 1" -m cpu --cpu 0 -j own`},
	{"own all --", "match bpf pinned /sys/fs/bpf/x", "-m bpf --object-pinned /sys/fs/bpf/x -j own"},
	{"own all --", "cpu ! 1", "-m cpu ! --cpu 1 -j own"},
	{"own all --", "! connbytes 20:400 connbytes mode avgpkt connbytes direction both",
		"-m connbytes ! --connbytes 20:400 --connbytes-mode avgpkt --connbytes-dir both -j own"},
	{"own all --", "connbytes 1000 connbytes mode bytes connbytes direction original cpu 2",
		"-m connbytes --connbytes 1000 --connbytes-mode bytes --connbytes-dir original -m cpu --cpu 2 -j own"},
	{"TARPIT tcp --", "tcp dpt:25 -j TARPIT --honeypot", "-p tcp -m tcp --dport 25 -j TARPIT --honeypot"},
	{"own all --", "destination IP range ! 1.2.3.4-1.2.3.9", "-m iprange ! --dst-range 1.2.3.4-1.2.3.9 -j own"},
	{"own all --", "length !5:10", "-m length ! --length 5:10 -j own"},
	{"own all --", "nfacct-name  localhost_nps_accepted_pkts", "-m nfacct --nfacct-name  localhost_nps_accepted_pkts -j own"},
	{"own all --", "PKTTYPE != multicast", "-m pkttype ! --pkt-type multicast -j own"},

	{"own all --", `STRING match "length 5" ALGO name bm TO 65535`, `-m string --string "length 5" --algo bm --to 65535 -j own`},
	{"own tcp --", `STRING match "a b /* c" tcp dpt:80`, `-p tcp -m STRING match "a b /* c" -m tcp --dport 80 -j own`},
	{"own all --", "policy match dir in pol ipsec /* x */", "-m policy --dir in --pol ipsec -m comment --comment x -j own"},
	{"own all --", "-m ipp2p --dc", `-m -m ipp2p "--dc" -j own`},
	{"own all --", "UNKNOWN match `ndpi'", "-m UNKNOWN match `ndpi' -j own"},
	{"own all --", "recent [unsupported revision] mark match 0x1", `-m "recent [unsupported revision]" match -m mark --mark 0x1 -j own`},
	{"DNAT tcp --", "tcp DNAT [unsupported revision]", `-p tcp -m tcp -j DNAT "DNAT [unsupported revision]"`},
	{"TEE all --", "[40 bytes of unknown target data] ", `-j TEE "[40 bytes of unknown target data]"`},
	{"TTL all --", "TTL match TTL < 5 TTL set to 64", "-m ttl --ttl-lt 5 -j TTL --ttl-set 64"},
	{"6:HL all", "HL match HL != 5 HL decrement by 2", "-m hl ! --hl-eq 5 -j HL --hl-dec 2"},
	{"own all --", "tos match0x10/0xff", "-m tos --tos 0x10/0xff -j own"},
	{"own all --", "tos match!0x08/0x3f", "-m tos ! --tos 0x08/0x3f -j own"},
	{"own all --", "tos match! Maximize-Throughput", "-m tos ! --tos 0x08/0x3f -j own"},
	{"own all --", "tos match Minimize-Delay", "-m tos --tos 0x10/0x3f -j own"},
	{"own all --", "DSCP match !0x2e", "-m dscp ! --dscp 0x2e -j own"},
	{"own tcp --", "ECN match !ECE CWR ECT=1", "-p tcp -m ecn ! --ecn-tcp-ece --ecn-tcp-cwr --ecn-ip-ect 1 -j own"},
	{"own tcp --", "tcpmss match !1:500", "-p tcp -m tcpmss ! --mss 1:500 -j own"},
	{"own all --", "#conn src/32 > 3", "-m connlimit --connlimit-above 3 --connlimit-mask 32 --connlimit-saddr -j own"},
	{"own all --", "#conn dst/24 <= 3", "-m connlimit --connlimit-upto 3 --connlimit-mask 24 --connlimit-daddr -j own"},
	{"own all --", "quota: 1000 bytes", "-m quota --quota 1000 -j own"},
	{"own all --", "TIME from 22:00:00 to 06:00:00 on Mon,Tue on 2nd,11st UTC contiguous", "-m time --timestart 22:00:00 --timestop 06:00:00 --monthdays 2,11 --weekdays Mon,Tue --contiguous -j own"},
	{"own all --", "TIME starting from 2020-01-01 10:00:00 until date 2030-01-01 00:00:00", "-m time --datestart 2020-01-01T10:00:00 --datestop 2030-01-01T00:00:00 --kerneltz -j own"},
	{"own all --", `STRING match ! "|0d0a7800|" ALGO name kmp FROM 5 TO 20 ICASE`, `-m string ! --hex-string "|0d0a7800|" --algo kmp --from 5 --to 20 --icase -j own`},
	{"own all --", `u32 ! "0x0>>0x16&0x3c@0x4=0x1:0x3,0x5&&0x6=0x11"`, `-m u32 ! --u32 "0x0>>0x16&0x3c@0x4=0x1:0x3,0x5&&0x6=0x11" -j own`},
	{"own all --", `helper match ! "ftp-2121"`, `-m helper ! --helper ftp-2121 -j own`},
	{"own all --", "policy match dir in pol ipsec strict [0] spi 0x10 mode tunnel [1] ! reqid 3", "-m policy --dir in --pol ipsec --strict --spi 0x10 --mode tunnel --next ! --reqid 3 -j own"},
	{"6:own all", "rt type:!0 segslefts:1:3 length:!24 reserved", "-m rt ! --rt-type 0 --rt-segsleft 1:3 ! --rt-len 24 --rt-0-res -j own"},
	{"LED all --", "led-trigger-id:\"x\"", `-m "led-trigger-id:\"x\"" -j LED`},

	{"DNAT tcp --", "to:10.1.1.1:80 random persistent", "-p tcp -j DNAT --to-destination 10.1.1.1:80 --random --persistent"},
	{"SNAT all --", "to:10.1.1.1 random-fully", "-j SNAT --to-source 10.1.1.1 --random-fully"},
	{"6:DNAT tcp", "to:[fd00::1]:80", "-p tcp -j DNAT --to-destination [fd00::1]:80"},
	{"MASQUERADE tcp --", "masq ports: 1024-65535 random", "-p tcp -j MASQUERADE --to-ports 1024-65535 --random"},
	{"MASQUERADE all --", "/* x */ random-fully", "-m comment --comment x -j MASQUERADE --random-fully"},
	{"REDIRECT tcp --", "redir ports 15001", "-p tcp -j REDIRECT --to-ports 15001"},
	{"NETMAP all --", "10.0.0.0/8", "-j NETMAP --to 10.0.0.0/8"},
	{"REJECT all --", "reject-with icmp-port-unreachable", "-j REJECT --reject-with icmp-port-unreachable"},
	{"LOG all --", `LOG flags 0 level 4 prefix "x"`, "-j LOG --log-prefix x"},
	{"LOG all --", `LOG flags 9 level 4 prefix "a"b\ c "`, `-j LOG --log-prefix "a\"b\\ c " --log-tcp-sequence --log-uid`},
	{"LOG all --", "LOG level warning tcp-options prefix `x '", `-j LOG --log-prefix "x " --log-tcp-options`},
	{"LOG all --", "LOG flags 16 level 4", "-m LOG flags 16 level 4 -j LOG"},
	{"NFLOG all --", `nflog-prefix "a\"b  c" nflog-group 3`, `-j NFLOG --nflog-prefix "a\"b c" --nflog-group 3`},
	{"NFLOG all --", "nflog-prefix ab", "-j NFLOG --nflog-prefix ab"},
	{"NFQUEUE all --", "NFQUEUE num 0 bypass", "-j NFQUEUE --queue-num 0 --queue-bypass"},
	{"MARK all --", "MARK or 0x4000", "-j MARK --set-xmark 0x4000/0x4000"},
	{"MARK all --", "mark match 0x1 MARK xset 0x4000/0x4000", "-m mark --mark 0x1 -j MARK --set-xmark 0x4000/0x4000"},
	{"MARK all --", "MARK set 0x4d415351", "-j MARK --set-xmark 0x4d415351/0xffffffff"},
	{"CONNMARK all --", "CONNMARK restore", "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff"},
	{"CONNMARK all --", "CONNMARK save nfmask 0xf ctmask ~0xff right-shift-mark 3",
		"-j CONNMARK --save-mark --nfmask 0xf --ctmask 0xff --right-shift-mark 3"},
	{"CONNMARK all --", "CONNMARK and 0x0", "-j CONNMARK --set-xmark 0x0/0xffffffff"},
	{"CT all --", "CT notrack", "-j CT --notrack"},
	{"CT all --", "NOTRACK", "-j NOTRACK"},
	{"NOTRACK all --", "", "-j NOTRACK"},
	{"TCPMSS tcp --", "tcp flags:0x06/0x02 TCPMSS clamp to PMTU", "-p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu"},
	{"TPROXY tcp --", "TPROXY redirect 0.0.0.0:13001 mark 0x239c9/0x239c9", "-p tcp -j TPROXY --on-port 13001 --on-ip 0.0.0.0 --tproxy-mark 0x239c9/0x239c9"},
	{"6:TPROXY tcp", "TPROXY redirect :::50080 mark 0x0/0x0", "-p tcp -j TPROXY --on-port 50080 --on-ip :: --tproxy-mark 0x0/0x0"},
	{"TOS all --", "TOS setMinimize-Delay", "-j TOS --set-tos 0x10/0x3f"},
	{"TOS all --", "TOS and 0x08", "-j TOS --set-tos 0x00/0xf7"},
	{"TOS all --", "TOS or 0x08", "-j TOS --set-tos 0x08/0x08"},
	{"TOS all --", "TOS xor 0x08", "-j TOS --set-tos 0x08/0x00"},
}

// rowListing is a listing of one rule.
func rowListing(row, rest string) string {
	row, address := rowAddress(row)
	return fmt.Sprintf("Chain own (1 references)\ntarget prot opt source destination\n%s %s %s %s\n", row, address, address, rest)
}

// verboseListing is the same with -v.
func verboseListing(row, rest string) string {
	row, address := rowAddress(row)
	return fmt.Sprintf("Chain own (1 references)\npkts bytes target prot opt in out source destination\n7 1K %s any * %s %s %s\n", row, address, address, rest)
}

func rowAddress(row string) (withoutFamily, address string) {
	if six, ok := strings.CutPrefix(row, "6:"); ok {
		return six, "::/0"
	}
	return row, "0.0.0.0/0"
}

// columnT does with lines what column -t does, but for the widths of the columns.
func columnT(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.Join(strings.Fields(line), "   ") + "\n")
	}
	return b.String()
}

// TestWordings reads each with and without -v, and through column -t.
func TestWordings(t *testing.T) {
	for _, c := range wordings {
		for _, text := range []string{
			rowListing(c.row, c.rest), columnT(rowListing(c.row, c.rest)), verboseListing(c.row, c.rest),
		} {
			d, err := parseListing(text, Options{})
			if err != nil {
				t.Errorf("%s%v", text, err)
				continue
			}
			got := d.Tables[0].Rules[0]
			if want := strings.TrimSpace("-A own " + c.want); got.String() != want {
				t.Errorf("%s\n got %s\nwant %s", text, got, want)
			}
			sameTyped(t, d)
		}
	}
}
