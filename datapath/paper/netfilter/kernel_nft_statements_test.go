//go:build linux

package netfilter

import "slices"

// statements are those after which a rule goes on.
var statements = slices.Concat([]shape{
	{kind: "counter", forms: []string{"counter", "counter name $counter"}},
	{kind: "log", forms: []string{`log prefix "x "`, "log group 5"}},
	{kind: "set mark", forms: []string{
		"meta mark set $mark", "meta mark set meta mark | 0x4", "meta mark set meta mark & 0xfffffff0", "meta mark set meta mark ^ 0x1",
		"meta mark set meta mark & 0xfffffff8 | 0x2", "meta mark set meta mark & 0xffffff00 ^ 0x10",
		"meta mark set meta mark << 1", "meta mark set meta mark >> 1", "meta mark set ct mark >> 1 & 0x3",
	}},
	{kind: "set mark from ct", forms: []string{"meta mark set ct mark", "meta mark set ct mark & 0x3", "meta mark set ct mark | 0x10"}},
	{kind: "set mark from map", forms: []string{"meta mark set $ip saddr map $addrmark", "meta mark set ct mark map { 0x0 : 0x1, 0x1 : 0x3, 0x2-0x9 : 0x4 }", "meta mark set $ip daddr map { $addr : $mark }"}},
	{kind: "set mark from port", proto: "tcp", forms: []string{"meta mark set tcp dport map { 80 : 0x1, 1000-8080 : 0x2 }", "meta mark set tcp dport"}},
	{kind: "set mark from field", forms: []string{"meta mark set $ip dscp", "meta mark set meta cpu", "meta mark set meta length"}},
	{kind: "set mark by hash", forms: []string{"meta mark set jhash $ip saddr mod 4 seed $seed offset 8", "meta mark set jhash $ip saddr . $ip daddr mod 4 seed $seed", "meta mark set numgen inc mod 3 offset 1"}},
	{kind: "set ct mark", forms: []string{"ct mark set $mark", "ct mark set meta mark", "ct mark set ct mark | 0x1", "ct mark set ct mark & 0x3", "ct mark set meta mark & 0x3", "ct mark set ct mark or 0x1 or 0x2", "ct mark set $ip saddr map { $one : 0x1, $two : 0x2 }", "ct mark set jhash $ip saddr mod 3 seed $seed"}},
	{kind: "set label", forms: []string{"ct label set 5", "ct label set 6"}},
	{kind: "set helper", proto: "tcp", types: "filter nat", hooks: "prerouting output", forms: []string{"ct helper set \"$helper\"", "ct helper set $ip saddr map { $one : \"$helper\", $two : \"$helper\" }"}},
	{kind: "set timeout", forms: []string{"ct timeout set $timeout"}},
	{kind: "set event", forms: []string{"ct event set new", "ct event set new,destroy"}},
	{kind: "set zone", hooks: "prerouting output", types: "filter", early: true, forms: []string{"ct zone set 5", "ct zone set iifname map { \"eth0\" : 5, \"lo\" : 6 }"}},
	{kind: "set ttl", only: "ip", forms: []string{"ip ttl set 5", "ip ttl set 200", "ip ttl set 2"}},
	{kind: "set hoplimit", only: "ip6", forms: []string{"ip6 hoplimit set 5", "ip6 hoplimit set 200"}},
	{kind: "set dscp", forms: []string{"$ip dscp set cs1", "$ip dscp set af11", "$ip dscp set cs0"}},
	{kind: "set ecn", forms: []string{"$ip ecn set ect0", "$ip ecn set not-ect"}},
	{kind: "set address", hooks: "prerouting postrouting", types: "filter", forms: []string{`iifname != "lo" $ip saddr set $source`, `iifname != "lo" $ip daddr set $endpoint`}},
	{kind: "set address of a local packet", hooks: "output", types: "route", forms: []string{"$ip saddr set $source", "$ip daddr set $endpoint"}},
	{kind: "set tcp port", proto: "tcp", forms: []string{"tcp dport set 8080", "tcp sport set 40001", "tcp dport set tcp dport map { 80 : 8080, 53 : 9000 }"}},
	{kind: "set udp port", proto: "udp", forms: []string{"udp dport set 80", "udp sport set 500"}},
	{kind: "set maxseg", proto: "tcp", forms: []string{"tcp option maxseg size set 1000", "tcp flags syn tcp option maxseg size set 536"}},
	{kind: "set maxseg to mtu", proto: "tcp", hooks: outHooks, forms: []string{"tcp option maxseg size set rt mtu"}},
	{kind: "set timestamp", proto: "tcp", forms: []string{"tcp option timestamp tsval set 5", "reset tcp option timestamp", "reset tcp option sack-perm"}},
	{kind: "set priority", forms: []string{"meta priority set 5", "meta priority set 6", "meta priority set meta mark map { 0x0 : 5, 0x1 : 6 }"}},
	{kind: "set id", only: "ip", forms: []string{"ip id set 5"}},
	{kind: "set flowlabel", only: "ip6", forms: []string{"ip6 flowlabel set 5"}},
	{kind: "set tcp field", proto: "tcp", hooks: "input postrouting", forms: []string{"tcp window set 500", "tcp urgptr set 5", "tcp flags set syn", "tcp sequence set 5"}},
	{kind: "set icmp field", proto: "icmp", only: "ip", hooks: "input postrouting", forms: []string{"icmp id set 5", "icmp sequence set 5"}},
	{kind: "set ether", hooks: "prerouting", forms: []string{"ether saddr set 02:00:00:00:01:01", "ether saddr set 02:00:00:00:00:05"}},
	{kind: "set pkttype", hooks: "prerouting", forms: []string{"meta pkttype set host"}},
	{kind: "counter by map", forms: []string{"counter name $ip saddr map { $one : \"$counter\", $two : \"$counter\" }", "counter name $ip saddr . meta l4proto map { $one . tcp : \"$counter\", $two . udp : \"$counter\" }"}},
	{kind: "meter", forms: []string{"meter $meter size 16 { $ip saddr limit rate 1/hour burst 2 packets }", "meter $meter { $ip daddr limit rate over 1/hour burst 2 packets }", "meter $meter size 2 { $ip saddr counter }"}},
	{kind: "notrack", forms: []string{"notrack"}},
	{kind: "add element", forms: []string{"add $dynset { $ip saddr }", "update $dynset { $ip saddr timeout 30m }", "add $dynset { $ip daddr counter }", "add $dynsmall { $ip saddr }"}},
	{kind: "add service", proto: "tcp", forms: []string{"add $dynsvc { $ip daddr . tcp dport }"}},
	{kind: "add limit", forms: []string{"add $dynset { $ip saddr limit rate 1/hour burst 2 packets }", "update $dynset { $ip daddr limit rate over 1/hour burst 2 packets }", "add $dynset { $ip saddr quota over 100 bytes }"}},
	{kind: "add mapping", forms: []string{"add $dynmark { $ip saddr : 0x1 }", "update $dynmark { $ip daddr : meta mark }"}},
}, seenBefore)

// seenBefore use a set twice: what one rule adds, another finds.
var seenBefore = []shape{
	{kind: "seen before", forms: []string{"$ip saddr $not$seen", "add $seen { $ip saddr }", "delete $seen { $ip saddr }", "update $seen { $ip daddr }"}},
}

// verdicts end rules.
var verdicts = []shape{
	{kind: "accept", forms: []string{"accept"}}, {kind: "accept", forms: []string{"accept"}},
	{kind: "return", forms: []string{"return"}}, {kind: "return", forms: []string{"return"}},
	{kind: "drop", types: "filter route", forms: []string{"drop"}},
	{kind: "continue", forms: []string{"continue"}},
	{kind: "reject", hooks: "prerouting input forward output", types: "filter", forms: []string{"reject"}},
	{kind: "reject icmpx", inet: true, hooks: "prerouting input forward output", types: "filter", forms: []string{"reject with icmpx $icmpxcode"}},
	{kind: "reject icmp", only: "ip", hooks: "prerouting input forward output", types: "filter", forms: []string{"reject with icmp $icmpcode"}},
	{kind: "reject icmpv6", only: "ip6", hooks: "prerouting input forward output", types: "filter", forms: []string{"reject with icmpv6 $icmp6code"}},
	{kind: "reject tcp", proto: "tcp", hooks: "prerouting input forward output", types: "filter", forms: []string{"reject with tcp reset"}},
	{kind: "tproxy", proto: "tcp", hooks: "prerouting", types: "filter", forms: []string{"meta l4proto tcp tproxy $ip to :50080", "meta l4proto tcp tproxy $ip to :50080 meta mark set 0x1 accept"}},
	{kind: "vmap", forms: []string{"$ip saddr vmap $addrvmap", "$ip daddr vmap $addrvmap", "ct state vmap { new : $verdict, established : $verdict, invalid : $verdict }", "meta mark vmap { 0x0 : $verdict, 0x1-0x7 : $verdict }", "meta l4proto vmap { tcp : $verdict, udp : $verdict }", "$ip saddr . $ip daddr vmap { $addr . $any : $verdict }", "$ip saddr vmap $limitvmap", "fib daddr type vmap { local : $verdict, unicast : $verdict }"}},
	{kind: "vmap of ports", proto: "tcp", forms: []string{"tcp dport vmap { 80 : $verdict, 53 : $verdict, 8000-9000 : $verdict }", "$ip daddr . tcp dport vmap $svcvmap"}},
	{kind: "synproxy", proto: "tcp", hooks: "input forward", types: "filter", forms: []string{"synproxy mss 1460 wscale 7 timestamp sack-perm", "synproxy name \"$synproxy\""}},
	{kind: "block", forms: []string{"jump { tcp dport 80 counter accept; meta mark set 0x1; return; }", "goto { ct state new counter; meta l4proto tcp accept; meta mark set meta mark | 0x2; }"}},
	{kind: "numgen vmap", last: true, forms: []string{"numgen random mod 2 vmap { 0 : accept, 1 : return }", "numgen inc mod 3 vmap { 0 : accept, 1 : continue }", "jhash $ip saddr mod 2 seed $seed vmap { 0 : accept, 1 : continue }"}},
}

const (
	destinationHooks = "prerouting output"
	sourceHooks      = "input postrouting"
)

// translations end rules of chains of type nat.
var translations = []shape{
	{kind: "dnat", hooks: destinationHooks, types: "nat", forms: []string{"dnat $ip to $endpoints", "dnat $ip to $endpoints persistent"}},
	{kind: "dnat port", proto: "tcp", hooks: destinationHooks, types: "nat", forms: []string{"meta l4proto tcp dnat $ip to $at:$endport", "meta l4proto tcp dnat to :$endport", "meta l4proto tcp dnat $ip to $at:$endport random"}},
	{kind: "dnat udp port", proto: "udp", hooks: destinationHooks, types: "nat", forms: []string{"meta l4proto udp dnat $ip to $at:$endport", "udp dport 53 dnat $ip to $endpoint"}},
	{kind: "dnat map", proto: "tcp", hooks: destinationHooks, types: "nat", forms: []string{
		"meta l4proto tcp dnat $ip to tcp dport map $portaddr", "meta l4proto tcp dnat $ip to $ip daddr map $addraddr", "meta l4proto tcp dnat $ip addr . port to $ip daddr . tcp dport map $svcmap",
		"meta l4proto tcp dnat $ip to $at:tcp dport map { 80 : 8080, 53 : 9000 }", "meta l4proto tcp dnat $ip to $ip saddr map { $addr : $endpoint }:80", "meta l4proto tcp dnat $ip to $ip daddr . tcp dport map { $one . 80 : $endpoint . 8080, $two . 53 : $endpoint . 9000 }",
		"meta l4proto tcp dnat $ip to $ip daddr map { $one : $endpoints, $two : $endpoint }", "meta l4proto { tcp, udp } dnat $ip to $at:8080",
	}},
	{kind: "dnat numgen", hooks: destinationHooks, types: "nat", last: true, forms: []string{
		"dnat $ip to numgen random mod 2 map { 0 : $endpoint, 1 : $endpoint }", "dnat $ip to numgen inc mod 3 map { 0 : $endpoint, 1 : $endpoint, 2 : $endpoint }",
		"dnat $ip to jhash $ip saddr mod 2 seed $seed map { 0 : $endpoint, 1 : $endpoint }",
	}},
	{kind: "dnat numgen port", proto: "tcp", hooks: destinationHooks, types: "nat", last: true, forms: []string{"meta l4proto tcp dnat $ip to numgen random mod 2 map { 0 : $endpoint . 80, 1 : $endpoint . 8080 }"}},
	// Not to the network that a packet is for: of an address of IPv4 that stays the same, nft_nat_setup_netmap (nft_nat.c) compares
	// bytes that it has not set.
	{kind: "dnat prefix", only: "ip", hooks: destinationHooks, types: "nat", forms: []string{"dnat ip prefix to ip daddr map { 10.96.0.0/16 : 10.244.0.0/16, 203.0.113.0/24 : 10.244.3.0/24 }", "dnat ip prefix to 198.18.0.0/24"}},
	{kind: "dnat prefix6", only: "ip6", hooks: destinationHooks, types: "nat", forms: []string{"dnat ip6 prefix to ip6 daddr map { fd00:96::/64 : fd00:3::/64, 2001:db8:113::/64 : fd00:1::/64 }", "dnat ip6 prefix to fd00:3::/64"}},
	{kind: "redirect", hooks: destinationHooks, types: "nat", forms: []string{"redirect", "redirect random", "redirect persistent"}},
	{kind: "redirect port", proto: "tcp", hooks: destinationHooks, types: "nat", forms: []string{"meta l4proto tcp redirect to :$endport", "meta l4proto tcp redirect to :8080-8090 random", "meta l4proto tcp redirect to :tcp dport map { 80 : 8080, 9000 : 30080 }"}},
	{kind: "snat", hooks: sourceHooks, types: "nat", forms: []string{"snat $ip to $sources", "snat $ip to $sources $random"}},
	{kind: "snat port", proto: "tcp", hooks: sourceHooks, types: "nat", forms: []string{"meta l4proto tcp snat $ip to $from:$endport", "meta l4proto tcp snat $ip to $from:$endport random"}},
	{kind: "snat map", hooks: sourceHooks, types: "nat", forms: []string{"snat $ip to $ip saddr map { $addr : $source }", "snat $ip to $ip daddr map { $one : $source, $two : $source }", "snat $ip to $ip saddr map { $addr : $sources }", "meta l4proto tcp snat $ip to $ip saddr . tcp dport map { $one . 80 : $source . 9000, $two . 53 : $source . 9001 }"}},
	{kind: "snat prefix", only: "ip", hooks: sourceHooks, types: "nat", forms: []string{"snat ip prefix to ip saddr map { 10.244.0.0/16 : 10.99.0.0/16, 203.0.113.0/24 : 10.98.0.0/24 }"}},
	{kind: "masquerade", hooks: "postrouting", types: "nat", forms: []string{"masquerade", "masquerade random", "masquerade fully-random", "masquerade persistent", "masquerade random,persistent"}},
	{kind: "masquerade port", proto: "tcp", hooks: "postrouting", types: "nat", forms: []string{"meta l4proto tcp masquerade to :$endport", "meta l4proto tcp masquerade to :40000-40002 random"}},
	{kind: "nat accept", forms: []string{"accept"}},
}
