//go:build linux

package netfilter

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	inHooks    = "prerouting input forward"
	outHooks   = "forward output postrouting"
	localHooks = "output postrouting"
)

// lonely are conditions that are alone in their rules. Behind a device's type, nft has fields of IP depend on the type in the
// Ethernet frame, which it does not list; in front of such fields, or of ports, it does not list the
// protocol.
var lonely = []shape{
	{kind: "protocol of the frame", always: true, forms: []string{"meta protocol ip", "meta protocol { ip, ip6 }", "meta protocol != ip6"}},
	{kind: "ct protocols", forms: []string{"ct $dir protocol $not tcp", "ct $dir protocol != udp"}},
	{kind: "ct l3proto", always: true, forms: []string{"ct l3proto ipv4", "ct $dir l3proto != ipv6"}},
	{kind: "device type", forms: []string{"meta iiftype ether", "meta iiftype != ether", "meta iiftype loopback"}},
}

// conditions are those that rules are made of.
var conditions = []shape{
	{kind: "saddr", forms: []string{"$ip saddr $not$addr", "$ip saddr $not$net", "$ip saddr $not$range"}},
	{kind: "daddr", forms: []string{"$ip daddr $not$addr", "$ip daddr $not$net", "$ip daddr $not$range", "$ip daddr $op$addr"}},
	{kind: "addr list", forms: []string{"$ip saddr $not$addrlist", "$ip daddr $not$addrlist"}},
	{kind: "addr set", forms: []string{"$ip saddr $not$addrset", "$ip daddr $not$addrset"}},
	{kind: "addr mask", only: "ip", forms: []string{"ip saddr & 255.255.255.0 == 10.244.1.0", "ip daddr & 0.0.0.255 == { 0.0.0.1, 0.0.0.10 }", "ip daddr & 0.0.0.255 < 0.0.0.5", "ip saddr & 0.0.0.255 != 0.0.0.10"}},
	{kind: "addr mask6", only: "ip6", forms: []string{"ip6 saddr & ffff:: == fd00::", "ip6 daddr & ::ffff != ::10"}},
	{kind: "two addresses", forms: []string{"$ip saddr . $ip daddr { $addr . $addr, $addr . $any }", "$ip saddr . $ip daddr { $addr . $addr }"}},
	{kind: "dscp", forms: []string{"$ip dscp $dscp", "$ip dscp != cs0", "$ip dscp >= cs1"}},
	{kind: "ecn", forms: []string{"$ip ecn $not not-ect", "$ip ecn { ect0, ce }", "$ip ecn ect0"}},
	{kind: "ttl", only: "ip", forms: []string{"ip ttl $op 64", "ip ttl { 1, 5, 63 }", "ip ttl 2-64"}},
	{kind: "hoplimit", only: "ip6", forms: []string{"ip6 hoplimit $op 64", "ip6 hoplimit { 1, 5, 63 }"}},
	{kind: "length", forms: []string{"$ip length $op 44", "$ip length 30-50"}},
	{kind: "id", only: "ip", forms: []string{"ip id $op 256", "ip id 0-300"}},
	{kind: "frag-off", only: "ip", forms: []string{"ip frag-off & 0x1fff == 0", "ip frag-off & 0x1fff != 0", "ip frag-off 0"}},
	{kind: "version", always: true, forms: []string{"$ip version 4", "$ip version 6"}},
	{kind: "hdrlength", only: "ip", always: true, forms: []string{"ip hdrlength $op 5"}},
	{kind: "protocol", only: "ip", forms: []string{"ip protocol $not tcp", "ip protocol { tcp, udp }"}},
	{kind: "nexthdr", only: "ip6", forms: []string{"ip6 nexthdr $not tcp", "ip6 nexthdr { tcp, udp }"}},
	{kind: "flowlabel", only: "ip6", always: true, forms: []string{"ip6 flowlabel $op 5", "ip6 flowlabel 0"}},
	{kind: "tcp port", proto: "tcp", forms: []string{"tcp dport $op$port", "tcp dport $not$ports", "tcp sport $not$ports", "tcp dport $not$portlist", "tcp dport $not$portset"}},
	{kind: "udp port", proto: "udp", forms: []string{"udp dport $op$port", "udp dport $not$ports", "udp sport $not$portlist", "udp dport $not$portset"}},
	{kind: "sctp port", proto: "sctp", forms: []string{"sctp dport $op$port", "sctp dport $not$ports", "sctp sport $not$portlist"}},
	{kind: "th port", forms: []string{"meta l4proto { tcp, udp } th dport $not$ports", "meta l4proto { tcp, udp, sctp } th sport $portlist", "meta l4proto != { icmp, ipv6-icmp } th dport $op$port"}},
	{kind: "tcp flags", proto: "tcp", forms: []string{
		"tcp flags $tcpflags", "tcp flags == $tcpflags", "tcp flags != $tcpflags", "tcp flags & (fin|syn|rst|ack) == syn", "tcp flags & (fin|syn|rst|ack) != syn",
		"tcp flags & (syn|ack) == (syn|ack)", "tcp flags syn / syn,ack", "tcp flags ! syn,rst", "tcp flags { syn, ack, syn|ack }", "tcp flags & syn != 0",
	}},
	{kind: "tcp fields", proto: "tcp", forms: []string{"tcp window $not 32767", "tcp doff $op 5", "tcp sequence $not 1000", "tcp ackseq $not 0", "tcp urgptr 0"}},
	{kind: "tcp option", proto: "tcp", forms: []string{"tcp option maxseg exists", "tcp option maxseg missing", "tcp option maxseg size $op 1000", "tcp option maxseg size 536-1460", "tcp option timestamp missing", "tcp option sack-perm exists", "tcp option 8 exists"}},
	{kind: "tcp option fields", proto: "tcp", forms: []string{
		"tcp option timestamp tsval $op 1000", "tcp option timestamp tsecr 0", "tcp option window count $not 7", "tcp option maxseg length 4", "tcp option @8,16,32 $not 1000",
		"tcp option sack left 5", "tcp option mptcp subtype 1",
	}},
	{kind: "udp length", proto: "udp", always: true, forms: []string{"udp length $op 14"}},
	{kind: "sctp fields", proto: "sctp", forms: []string{"sctp vtag $not 0", "sctp chunk init exists", "sctp chunk data missing", "sctp chunk init-ack exists"}},
	{kind: "sctp chunk fields", proto: "sctp", forms: []string{"sctp chunk init init-tag $op 7", "sctp chunk init num-outbound-streams $op 256", "sctp chunk init-ack a-rwnd > 5", "sctp chunk init flags 0", "sctp chunk data stream 1"}},
	{kind: "inner header", forms: []string{"meta l4proto udp @ih,0,8 $not 0x47", "meta l4proto udp @ih,0,32 0x47455420", "meta l4proto icmp @ih,0,8 0", "meta l4proto sctp @ih,0,8 1"}},
	{kind: "icmp", proto: "icmp", only: "ip", forms: []string{"icmp type $not echo-request", "icmp type { echo-request, echo-reply }", "icmp id $op 2", "icmp sequence 0", "icmp code 0", "icmp type echo-request icmp id 1"}},
	{kind: "icmpv6", proto: "icmpv6", only: "ip6", forms: []string{"icmpv6 type $not echo-request", "icmpv6 type { echo-request, echo-reply }", "icmpv6 id $op 2", "icmpv6 code 0"}},
	{kind: "raw payload", forms: []string{"meta l4proto { tcp, udp } @th,16,16 $not 80", "meta l4proto tcp @th,0,16 40000", "@nh,0,4 4", "@nh,0,4 6", "@nh,64,8 > 5", "@nh,72,8 { 6, 17 }", "meta l4proto { tcp, udp } @th,13,3 != 2", "meta l4proto { tcp, udp } @th,20,12 80", "meta l4proto { tcp, udp } @th,0,32 & 0xffff == 80", "@nh,96,32 $not 0x0af40102", "@ll,48,48 0x020000000101", "@ll,96,16 0x800"}},
	{kind: "address and port", proto: "tcp", forms: []string{"$ip daddr . tcp dport $not$svcset", "$ip daddr . tcp dport $not$svcrangeset", "$ip saddr . tcp dport $not$svclist", "$ip daddr . tcp dport $svcranges"}},
	{kind: "udp address and port", proto: "udp", forms: []string{"$ip daddr . udp dport $not$svcset", "$ip daddr . udp dport $svcranges"}},
	{kind: "protocol and port", forms: []string{"meta l4proto . th dport $not$protoset", "$ip daddr . meta l4proto . th dport { $addr . tcp . 80, $addr . udp . 53 }"}},
	{kind: "mark", forms: []string{"meta mark $op$mark", "meta mark $not$marks", "meta mark $not$markset", "meta mark & 0x3 == 0x1", "meta mark & 0x3 != 0x1", "meta mark & 0x1 == 0x1", "meta mark >> 1 == 1", "meta mark & 0x7 < 0x3", "meta mark & 0x6 == { 0x2, 0x4 }", "meta mark . ct mark { 0x0-0x3 . 0x0-0x1 }"}},
	{kind: "meta length", forms: []string{"meta length $op 44", "meta length 30-50"}},
	{kind: "l4proto", forms: []string{"meta l4proto $not tcp", "meta l4proto $not { tcp, udp }", "meta l4proto $not 132", "meta l4proto >= 17"}},
	{kind: "nfproto", always: true, inet: true, forms: []string{"meta nfproto ipv4", "meta nfproto $not ipv6"}},
	{kind: "iifname", hooks: inHooks, forms: []string{"iifname $not$dev", `iifname { "eth0", "veth*" }`, "iifname $not$devset"}},
	{kind: "oifname", hooks: outHooks, forms: []string{"oifname $not$dev", `oifname { "eth0", "veth*" }`, "oifname $devset"}},
	{kind: "iif", hooks: inHooks, forms: []string{"iif $not$device", `iif { "eth0", "lo" }`, "meta iif != 1"}},
	{kind: "oif", hooks: outHooks, forms: []string{"oif $not$device", `oif { "eth0", "lo" }`}},
	{kind: "iifname elsewhere", hooks: localHooks, forms: []string{"iifname $not$dev", "iif $not$device"}},
	{kind: "oifname elsewhere", hooks: "prerouting input", always: true, forms: []string{"oifname $not$dev", "oif $not$device", "meta oiftype ether"}},
	{kind: "devices", hooks: "forward", forms: []string{`iifname . oifname $not { "eth0" . "veth1", "veth1" . "eth0", "veth*" . "eth0" }`}},
	{kind: "user", hooks: "forward output postrouting", forms: []string{"meta skuid $not 0", "meta skuid < 1000", "meta skgid { 0, 5 }", "meta skuid root"}},
	{kind: "pkttype", forms: []string{"meta pkttype $not host", "meta pkttype { broadcast, multicast }"}},
	{kind: "cgroup", hooks: "prerouting forward", always: true, forms: []string{"meta cgroup 1", "meta cgroup != 1"}},
	{kind: "iifgroup", hooks: inHooks, forms: []string{"iifgroup $not default", "iifgroup { 5, 6 }", "iifgroup != 5"}},
	{kind: "oifgroup", hooks: outHooks, forms: []string{"oifgroup $not default", "oifgroup 5-6"}},
	{kind: "priority", forms: []string{"meta priority $not none", "meta priority 5", "meta priority { 5, 6 }", "meta priority 1-2"}},
	// Of local packets of IPv6, the next hop is the address that the raw socket of the test asked a route for (RTF_CACHE,
	// rt6_nexthop), also if a rule has changed it since: that is so for no other socket.
	{kind: "next hop", hooks: "forward", only: "ip6", forms: []string{"rt ip6 nexthop $not$addr", "rt ip6 nexthop $not$hop", "rt ip6 nexthop { $hop, $one }"}},
	{kind: "next hop", hooks: outHooks, only: "ip", forms: []string{"rt $ip nexthop $not$addr", "rt $ip nexthop $not$hop", "rt $ip nexthop { $hop, $one }"}},
	{kind: "cpu", forms: []string{"meta cpu 0", "meta cpu != 0", "meta cpu 1"}},
	{kind: "ipsec", hooks: inHooks, always: true, forms: []string{"meta ipsec missing", "meta ipsec exists"}},
	{kind: "ipsec out", hooks: outHooks, always: true, forms: []string{"rt ipsec missing", "rt ipsec exists"}},
	{kind: "time", always: true, forms: []string{`meta time > "2020-01-01 00:00:00"`, `meta time < "2020-01-01"`, `meta hour "00:00"-"23:59"`, `meta hour >= "12:00"`, "meta day { Monday, Tuesday, Wednesday }", "meta day != Sunday"}},
	{kind: "ct state", forms: []string{"ct state $state", "ct state { new, established }", "ct state $stateset", "ct state != established", "ct state == new", "ct state != { new, invalid }", "ct state & (established|related) != 0"}},
	{kind: "ct direction", forms: []string{"ct direction $not original", "ct direction reply"}},
	{kind: "ct status", forms: []string{"ct status dnat", "ct status snat,dnat", "ct status & (seen-reply|assured) != 0", "ct status confirmed", "ct status seen-reply", "ct status ! dnat", "ct status == confirmed", "ct status != dnat", "ct status & dnat == 0"}},
	{kind: "ct label", forms: []string{"ct label 5", "ct label 6", "ct label != 5", "ct label != 0"}},
	{kind: "ct mark", forms: []string{"ct mark $op$mark", "ct mark $marks", "ct mark & 0x1 == 0x1"}},
	{kind: "ct zone", always: true, forms: []string{"ct zone 5", "ct zone $not 0"}},
	{kind: "ct expiration", forms: expirations()},
	{kind: "ct addresses", forms: []string{"ct original $ip saddr $not$addr", "ct original $ip daddr $net", "ct reply $ip saddr $not$addrlist", "ct reply $ip daddr $addrset"}},
	{kind: "ct ports", proto: "tcp", forms: []string{"meta l4proto tcp ct original proto-dst $not$port", "meta l4proto tcp ct original proto-src $ports", "meta l4proto tcp ct $dir proto-dst $op$port"}},
	{kind: "ct traffic", forms: []string{"ct packets $op 2", "ct $dir packets 1-2", "ct $dir bytes > 60", "ct bytes < 200", "ct avgpkt 30-60", "ct $dir avgpkt > 45", "ct $dir packets 0"}},
	{kind: "ct zone of a direction", always: true, forms: []string{"ct $dir zone 5", "ct $dir zone $not 0"}},
	{kind: "ct helper", forms: []string{`ct helper $not"ftp"`, `ct helper { "ftp", "sip" }`}},
	{kind: "ct helper", proto: "tcp", hooks: "prerouting output", types: "filter", forms: []string{`ct helper set "$helper" ct helper "ftp"`}}, // it has none although it is set
	{kind: "ct key", proto: "tcp", forms: []string{"ct state . ct mark { new . 0x0, established . 0x1 }", "ct mark . meta mark { 0x0 . 0x0, 0x1 . 0x1 }"}},
	{kind: "fib type", forms: []string{"fib daddr type $type", "fib saddr type $type", "fib daddr type != local"}},
	{kind: "fib type in", hooks: inHooks, forms: []string{"fib daddr . iif type $type", "fib saddr . iif type $type", "fib daddr . iif type != local"}},
	{kind: "fib type out", hooks: outHooks, forms: []string{"fib daddr . oif type $type", "fib saddr . oif type local"}},
	{kind: "fib route", hooks: inHooks, forms: []string{"fib saddr . iif oif missing", "fib saddr . iif oif exists", "fib saddr oif exists", "fib daddr oif missing", "fib saddr . mark . iif oif exists"}},
	{kind: "fib device", hooks: inHooks, forms: []string{`fib saddr oifname $not "eth0"`, `fib daddr oifname { "veth1", "lo" }`, `fib daddr oif "eth0"`, `fib saddr . iif oifname "eth0"`}},
	{kind: "socket", hooks: "prerouting input", types: "filter", forms: []string{"socket transparent 1", "socket transparent 0", "socket wildcard 1", "socket wildcard 0"}},
	{kind: "socket", hooks: "input", types: "filter", forms: []string{"socket transparent 1", "socket transparent 0", "socket wildcard 1", "socket wildcard 0"}}, // where there is one more often
	{kind: "numgen inc", last: true, forms: []string{"numgen inc mod 2 0", "numgen inc mod 3 != 1", "numgen inc mod 4 offset 10 < 12", "numgen inc mod 5 { 0, 2-3 }"}},
	{kind: "numgen random", last: true, forms: []string{"numgen random mod 2 0", "numgen random mod 10 < 5", "numgen random mod 4 offset 10 { 10, 12-13 }", "meta random < 2147483648"}},
	{kind: "symhash", last: true, forms: []string{"symhash mod 2 1", "symhash mod 4 offset 3 < 5"}},
	{kind: "jhash", forms: []string{
		"jhash $ip saddr mod 2 seed $seed 0", "jhash $ip saddr . $ip daddr mod 10 seed $seed < 5", "jhash $ip daddr mod 4 seed $seed offset 3 { 3, 5 }",
		"jhash meta mark mod 2 seed $seed 1", "jhash $ip saddr . meta mark mod 2 seed $seed 0",
	}},
	{kind: "jhash port", proto: "tcp", forms: []string{"jhash $ip saddr . tcp sport mod 2 seed $seed 0", "jhash $ip saddr . tcp sport . tcp dport mod 3 seed $seed != 1", "jhash tcp dport mod 2 seed $seed 0"}},
	{kind: "limit", forms: []string{"limit rate 1/hour burst 2 packets", "limit rate over 1/hour burst 3 packets", "limit rate 1/day", "limit rate 1 bytes/day burst 100 bytes", "limit rate over 1 bytes/day burst 60 bytes"}},
	{kind: "limit object", forms: []string{"limit name $limit"}},
	{kind: "quota", forms: []string{"quota 100 bytes", "quota over 100 bytes", "quota 150 bytes", "quota over 400 bytes used 300 bytes"}},
	{kind: "quota object", forms: []string{"quota name $quota"}},
	{kind: "limit by map", forms: []string{"limit name $ip saddr map { $one : \"$limit\", $two : \"$limit\" }", "limit name meta l4proto map { tcp : \"$limit\", udp : \"$limit\" }", "limit name $ip saddr map $limitmap"}},
	{kind: "quota by map", forms: []string{"quota name $ip daddr map { $one : \"$quota\", $two : \"$quota\" }", "quota name meta l4proto map { tcp : \"$quota\", udp : \"$quota\" }"}},
	{kind: "limit of an element", forms: []string{"$ip saddr { $one limit rate 1/hour burst 2 packets, $two counter }", "$ip daddr $limitset", "$ip saddr . meta l4proto { $one . tcp limit rate over 1/hour burst 2 packets, $two . udp }", "$ip saddr $not$quotaset"}},
	{kind: "exthdr", only: "ip6", always: true, forms: []string{"exthdr frag missing", "exthdr frag exists", "exthdr hbh missing", "exthdr rt exists", "exthdr dst missing", "frag more-fragments 1", "frag frag-off != 0", "hbh nexthdr tcp", "rt type 0", "rt seg-left != 1"}},
	{kind: "ip option", only: "ip", always: true, forms: []string{"ip option rr exists", "ip option ssrr missing", "ip option ra exists", "ip option lsrr missing", "ip option rr ptr 4", "ip option ra value 0"}},
	{kind: "ether", hooks: "prerouting input", forms: []string{"ether saddr $not 02:00:00:00:01:01", "ether saddr { 02:00:00:00:01:01, 02:00:00:00:01:02 }"}},
}

// expirations are conditions on the rest of an entry's life. Until a host has been up for as long as the longest timeout and
// five minutes, a connection that is not in the table has such a rest, too: jiffies begin five minutes before 0
// (INITIAL_JIFFIES), and its timeout does not count from them yet.
func expirations() []string {
	const always, settled = "ct expiration < 10d", 20 * time.Minute
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil || time.Duration(i.Uptime)*time.Second < settled {
		return []string{always, always, always}
	}
	return []string{"ct expiration > 5s", always, "ct expiration >= 10s"}
}
