package nftables

import (
	"strconv"
	"strings"
	"time"
)

// fields are the fields of each header, as nft prints them (nftables, src/proto.c).
var fields = wordLists(map[string]string{
	"ether":   "saddr daddr type",
	"vlan":    "id cfi dei pcp type",
	"arp":     "htype ptype hlen plen operation saddr daddr",
	"ip":      "version hdrlength dscp ecn length id frag-off ttl tos protocol checksum saddr daddr",
	"ip6":     "version dscp ecn flowlabel length nexthdr hoplimit saddr daddr",
	"icmp":    "type code checksum id sequence gateway mtu",
	"icmpv6":  "type code checksum parameter-problem mtu id sequence max-delay taddr daddr",
	"igmp":    "type checksum mrt group",
	"tcp":     "sport dport sequence ackseq doff reserved flags window checksum urgptr",
	"udp":     "sport dport length checksum",
	"udplite": "sport dport csumcov checksum",
	"sctp":    "sport dport vtag checksum",
	"dccp":    "sport dport type",
	"ah":      "nexthdr hdrlength reserved spi sequence",
	"esp":     "spi sequence",
	"comp":    "nexthdr flags cpi",
	"th":      "sport dport",
	"gre":     "hdrlength flags version protocol",
	"gretap":  "",
	"vxlan":   "vni type flags",
	"geneve":  "vni type",
})

// extensions are the fields of IPv6's extension headers (nftables, src/exthdr.c). Those of rt stand beside its keys.
var extensions = wordLists(map[string]string{
	"hbh":  "nexthdr hdrlength",
	"rt0":  "addr",
	"rt2":  "addr",
	"srh":  "last-entry flags tag sid",
	"frag": "nexthdr reserved frag-off reserved2 more-fragments id",
	"dst":  "nexthdr hdrlength",
	"mh":   "nexthdr hdrlength type reserved checksum",
	"rt":   "nexthdr hdrlength type seg-left",
})

// tcpOptions are the fields of TCP options (nftables, src/tcpopt.c).
var tcpOptions = wordLists(map[string]string{
	"eol": "", "nop": "", "maxseg": "length size", "window": "length count", "sack-perm": "length",
	"sack": "length left right", "sack0": "length left right", "sack1": "length left right", "sack2": "length left right", "sack3": "length left right",
	"timestamp": "length tsval tsecr", "echo": "length", "md5sig": "length", "fastopen": "length", "mptcp": "length subtype",
})

// ipOptions are the fields of IPv4 options (nftables, src/ipopt.c).
var ipOptions = wordLists(map[string]string{
	"lsrr": "type length ptr addr", "rr": "type length ptr addr", "ssrr": "type length ptr addr", "ra": "type length value",
})

// sctpChunks are the fields of SCTP chunks (nftables, src/sctp_chunk.c).
var sctpChunks = func() map[string]map[string]bool {
	lists := map[string]string{
		"data": "tsn stream ssn ppid", "init": "init-tag a-rwnd num-outbound-streams num-inbound-streams initial-tsn",
		"sack": "cum-tsn-ack a-rwnd num-gap-ack-blocks num-dup-tsns", "shutdown": "cum-tsn-ack",
		"ecne": "lowest-tsn", "cwr": "lowest-tsn", "asconf-ack": "seqno", "asconf": "seqno", "forward-tsn": "new-cum-tsn",
		"heartbeat": "", "heartbeat-ack": "", "abort": "", "shutdown-ack": "", "error": "", "cookie-echo": "", "cookie-ack": "", "shutdown-complete": "",
	}
	lists["init-ack"] = lists["init"]
	for name := range lists {
		lists[name] += " type flags length"
	}
	return wordLists(lists)
}()

// metaKeys are the keys of meta; whether a key stands without "meta" in front in files.
var metaKeys = map[string]bool{
	"length": false, "protocol": false, "priority": false, "random": false, "secmark": false, "nfproto": false, "l4proto": false,
	"iifkind": false, "oifkind": false, "sdif": false, "sdifname": false, "broute": false, "ibrpvid": false, "ibrvproto": false, "ibrhwaddr": false, "ibrhwdr": false,
	"mark": true, "iif": true, "iifname": true, "iiftype": true, "oif": true, "oifname": true, "oiftype": true, "skuid": true, "skgid": true,
	"nftrace": true, "rtclassid": true, "ibriport": true, "obriport": true, "ibrname": true, "obrname": true, "ibridgename": true, "obridgename": true,
	"pkttype": true, "cpu": true, "iifgroup": true, "oifgroup": true, "cgroup": true, "ipsec": true, "time": true, "day": true, "hour": true,
	"secpath": true,
}

// bareMeta are the keys that nft prints without "meta" (nftables, src/meta.c, meta_key_is_unqualified).
var bareMeta = bools("iif iifname oif oifname iifgroup oifgroup")

// ctKeys are the keys of ct.
var ctKeys = bools("l3proto protocol mark state direction status expiration helper saddr daddr proto-src proto-dst label event secmark id bytes packets avgpkt zone timeout expectation count")

// aliases are words that mean the same as others, by the word in front.
var aliases = map[string]map[string]string{
	"tcp": {"seq": "sequence"}, "ah": {"seq": "sequence"}, "esp": {"seq": "sequence"}, "icmp": {"seq": "sequence"}, "icmpv6": {"seq": "sequence", "param-problem": "parameter-problem"},
	"vlan":   {"cfi": "dei"},
	"meta":   {"secpath": "ipsec", "ibridgename": "ibrname", "obridgename": "obrname", "ibriport": "ibrname", "obriport": "obrname"},
	"option": {"sack-permitted": "sack-perm", "mss": "maxseg", "sack0": "sack"},
}

func alias(of, w string) string {
	if a, ok := aliases[of][w]; ok {
		return a
	}
	return w
}

func bools(list string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(list) {
		m[w] = true
	}
	return m
}

func wordLists(lists map[string]string) map[string]map[string]bool {
	m := map[string]map[string]bool{}
	for name, list := range lists {
		m[name] = bools(list)
	}
	return m
}

// parseDuration reads nft's times: 1d2h3m4s5ms, or seconds.
func parseDuration(s string) (time.Duration, bool) {
	if n, ok := parseNumber(s); ok {
		return time.Duration(n) * time.Second, n < 1<<33
	}
	var d time.Duration
	for s != "" {
		i := 0
		for i < len(s) && isDigit[s[i]] {
			i++
		}
		n, err := strconv.ParseUint(s[:i], 10, 33)
		if err != nil {
			return 0, false
		}
		unit, rest := time.Second, ""
		switch s = s[i:]; {
		case strings.HasPrefix(s, "ms"):
			unit, rest = time.Millisecond, s[2:]
		case strings.HasPrefix(s, "s"):
			rest = s[1:]
		case strings.HasPrefix(s, "m"):
			unit, rest = time.Minute, s[1:]
		case strings.HasPrefix(s, "h"):
			unit, rest = time.Hour, s[1:]
		case strings.HasPrefix(s, "d"):
			unit, rest = 24*time.Hour, s[1:]
		default:
			return 0, false
		}
		if d += time.Duration(n) * unit; d < 0 || time.Duration(n) > 1<<62/unit {
			return 0, false
		}
		s = rest
	}
	return d, true
}

// formatDuration prints a time as nft does (nftables, src/datatype.c, time_print).
func formatDuration(d time.Duration) string {
	if d < time.Millisecond {
		return "0s"
	}
	var b strings.Builder
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / u.unit; n > 0 {
			b.WriteString(strconv.FormatInt(int64(n), 10))
			b.WriteString(u.name)
			d -= n * u.unit
		}
	}
	return b.String()
}
