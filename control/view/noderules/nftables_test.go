package noderules

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// ruleset is the output of nft -j list ruleset with one base chain, and rules of it.
func ruleset(chain string, rules ...string) string {
	var b strings.Builder
	b.WriteString(`{"nftables": [{"metainfo": {}}, {"table": {"family": "inet", "name": "t"}},
{"set": {"family": "inet", "table": "t", "name": "full", "type": "ipv4_addr", "size": 2, "elem": ["192.0.2.1", "192.0.2.2"]}}, {"set": {"family": "inet", "table": "t", "name": "room", "type": "ipv4_addr", "size": 3, "elem": ["192.0.2.1"]}},
{"set": {"family": "inet", "table": "t", "name": "connections", "type": "mark", "size": 2, "flags": ["timeout"], "timeout": 120, "elem": [{"elem": {"val": 128097697, "expires": 91}}, {"elem": {"val": 477586158, "expires": 91}}]}},
{"chain": {"family": "inet", "table": "t", "name": "c", ` + chain + `}}, {"chain": {"family": "inet", "table": "t", "name": "sub"}}`)
	for i, r := range rules {
		name := "c"
		if after, ok := strings.CutPrefix(r, "sub: "); ok {
			name, r = "sub", after
		}
		b.WriteString(`, {"rule": {"family": "inet", "table": "t", "chain": "` + name + `", "handle": ` + string(rune('1'+i)) + `, "expr": [` + r + `]}}`)
	}
	return b.String() + "]}"
}

// TestNFTables: which rule of nftables drops a flow, or its reply.
func TestNFTables(t *testing.T) {
	const (
		forward  = `"type": "filter", "hook": "forward", "prio": 0, "policy": "accept"`
		closed   = `"type": "filter", "hook": "forward", "prio": 0, "policy": "drop"`
		raw      = `"type": "filter", "hook": "prerouting", "prio": -300, "policy": "accept"`
		mangle   = `"type": "filter", "hook": "prerouting", "prio": -150, "policy": "accept"`
		counter  = `{"counter": {"packets": 7, "bytes": 420}}`
		drop     = counter + `, {"drop": null}`
		endpoint = `{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": {"prefix": {"addr": "10.244.2.0", "len": 24}}}}`
		service  = `{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": "10.96.0.20"}}`
		port     = `{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": {"set": [22, {"range": [8000, 9000]}]}}}`
		udp      = `{"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": 8080}}`
		answers  = `{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}`
		chance   = `{"match": {"op": "<", "left": {"numgen": {"mode": "random", "mod": 100}}, "right": 20}}`
		unclear  = `{"match": {"op": "==", "left": {"meta": {"key": "rtclassid"}}, "right": 5}}`
	)
	for name, tt := range map[string]struct {
		rules string
		want  string // "" is none
	}{
		"the endpoint":                   {ruleset(forward, endpoint+", "+port+", "+drop), "1"},
		"another protocol":               {ruleset(forward, udp+", "+drop), ""},
		"translated before":              {ruleset(forward, service+", "+drop), ""},
		"not translated yet":             {ruleset(raw, service+", "+drop), "1"},
		"rejected":                       {ruleset(forward, endpoint+`, {"reject": {"type": "icmpx", "expr": "port-unreachable"}}`), "1 rejects, no counter"},
		"accepted before":                {ruleset(forward, endpoint+`, {"accept": null}`, endpoint+", "+drop), ""},
		"it may be accepted before":      {ruleset(forward, unclear+`, {"accept": null}`, drop), ""},
		"it may be dropped":              {ruleset(forward, unclear+", "+drop), ""},
		"the reply":                      {ruleset(forward, answers+", "+drop), "1 reply"},
		"the policy":                     {ruleset(closed, udp+`, {"accept": null}`), "the policy drop of chain c no counter"},
		"the policy for replies":         {ruleset(closed, port+`, {"accept": null}`), "the policy drop of chain c reply no counter"},
		"at random":                      {ruleset(raw, chance+", "+drop), "1 by chance"},
		"certain rather than at random":  {ruleset(forward, chance+", "+drop, endpoint+", "+drop), "2"},
		"above a number":                 {ruleset(raw, `{"ct count": {"val": 3, "inv": true}}, `+drop), "1 by chance"},
		"in a chain that is jumped to":   {ruleset(forward, port+`, {"jump": {"target": "sub"}}`, "sub: "+endpoint+", "+drop), "2"},
		"it may be accepted there":       {ruleset(forward, unclear+`, {"jump": {"target": "sub"}}`, `sub: {"accept": null}`, drop), ""},
		"it may return before":           {ruleset(forward, unclear+`, {"return": null}`, drop), ""},
		"return from there":              {ruleset(forward, `{"jump": {"target": "sub"}}`, `sub: {"return": null}`, drop), "3"},
		"a set without room":             {ruleset(raw, `{"set": {"op": "update", "elem": {"payload": {"protocol": "ip", "field": "saddr"}}, "set": "@full"}}, {"return": null}`, drop), "2 set full has 2 of 2 elements"},
		"full of other connections":      {ruleset(mangle, `{"set": {"op": "update", "elem": {"elem": {"val": {"ct": {"key": "id"}}, "timeout": 120}}, "set": "@connections"}}, {"return": null}`, drop), "2 set connections has 2 of 2 elements"},
		"no connection yet":              {ruleset(raw, `{"set": {"op": "update", "elem": {"elem": {"val": {"ct": {"key": "id"}}, "timeout": 120}}, "set": "@connections"}}, {"return": null}`, drop), "2"},
		"a set with room":                {ruleset(raw, `{"set": {"op": "update", "elem": {"payload": {"protocol": "ip", "field": "saddr"}}, "set": "@room"}}, {"return": null}`, drop), ""},
		"a match of iptables":            {ruleset(forward, `"xt match \"string\"", `+drop), ""},
		"a verdict map":                  {ruleset(forward, `{"vmap": {}}`, drop), ""},
		"a set that is listed elsewhere": {ruleset(forward, `{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": "@blocked"}}, `+drop), ""},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := NewHost([]Listing{{NFTables, tt.rules}}, network())
			if err != nil {
				t.Fatal(err)
			}
			at := netip.MustParseAddrPort
			f := &Flow{Protocol: decision.TCP, Source: at("10.244.1.9:40000"), Destination: at("10.96.0.20:80"), Endpoint: at("10.244.2.2:8080"), Seen: at("10.244.1.9:40000")}
			got := ""
			if d := h.Find(f); d != nil {
				got = d.String()
				if d.Rule != nil {
					got = strconv.FormatUint(d.Rule.Handle, 10)
				}
				for _, add := range []struct {
					is   bool
					text string
				}{{d.Rejected, " rejects,"}, {d.Reply, " reply"}, {d.Sometimes, " by chance"}, {d.Full != "", " " + d.Full}, {d.Uncounted, " no counter"}} {
					if add.is {
						got += add.text
					}
				}
				if !d.Uncounted && d.Packets != 7 {
					t.Errorf("%d packets", d.Packets)
				}
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	if _, err := NewHost([]Listing{{NFTables, "{"}}, new(netfilter.Host)); err == nil {
		t.Error("a listing that ends early")
	}
}
