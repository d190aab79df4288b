//go:build linux

package netfilter

import (
	"maps"
	"slices"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// tally counts what was compared.
type tally map[string]int

func (y tally) add(t *trial, w Way) {
	y["packets"]++
	y["verdict "+w.Verdict.String()]++
	if w.Tracking != TrackingInvalid || w.Entry == nil {
		y["state "+w.Tracking.String()]++
	}
	if w.Reply {
		y["direction reply"]++
	}
	if w.Verdict == Rejected && w.By != nil {
		y["refused "+string(w.With)]++
	}
	if w.Entry != nil && w.Entry.Confirmed && !w.Reply {
		if w.Entry.SNAT {
			y["entry SNAT"]++
		}
		if w.Entry.DNAT {
			y["entry DNAT"]++
		}
	}
	visited := make(map[string]bool)
	for _, s := range w.Steps {
		if s.Table == "" {
			continue
		}
		visited[s.Hook+" "+s.Table] = true
		r := t.byLine[s.Line]
		if r == nil || s.Outcome == flow.StepPolicy {
			continue
		}
		if t.native {
			y.addNative(r, s.Outcome == flow.StepPassed)
			continue
		}
		if s.Outcome == flow.StepPassed {
			if m := onlyModule(r); m != "" {
				y["match "+m+" no"]++
			}
			continue
		}
		for _, m := range r.Matches {
			if iptables.ModuleOf(m) != "" {
				y["match "+iptables.ModuleOf(m)+" yes"]++
			}
		}
		if r.Target != nil {
			switch r.Target.(type) {
			case iptables.Jump:
				y["target a chain"]++
			case iptables.Goto:
				y["target goto"]++
			default:
				y["target "+iptables.NameOf(r.Target)]++
			}
		}
	}
	for k := range visited {
		y["hook "+k]++
	}
}

// onlyModule is the module of the one match that a rule has.
func onlyModule(r *iptables.Rule) string {
	module := ""
	for _, m := range r.Matches {
		switch {
		case iptables.ModuleOf(m) == "comment":
		case iptables.ModuleOf(m) == "":
			if _, ok := m.(iptables.Protocol); !ok {
				return ""
			}
		case module != "":
			return ""
		default:
			module = iptables.ModuleOf(m)
		}
	}
	return module
}

func (y tally) log(t testing.TB) {
	t.Helper()
	for _, what := range slices.Sorted(maps.Keys(y)) {
		t.Logf("%7d %s", y[what], what)
	}
}

// required is what has to come up often in the ordinary run.
var required = map[int][]string{
	10000: {"packets"},
	1000:  {"verdict sent", "verdict delivered", "verdict dropped", "state NEW", "state ESTABLISHED", "direction reply"},
	200: {
		"verdict rejected", "state INVALID", "state UNTRACKED", "entry SNAT", "entry DNAT",
		"hook PREROUTING raw", "hook PREROUTING mangle", "hook PREROUTING nat", "hook INPUT mangle", "hook INPUT filter", "hook INPUT security", "hook INPUT nat",
		"hook FORWARD mangle", "hook FORWARD filter", "hook FORWARD security", "hook OUTPUT raw", "hook OUTPUT mangle", "hook OUTPUT nat", "hook OUTPUT filter", "hook OUTPUT security",
		"hook POSTROUTING mangle", "hook POSTROUTING nat",
		"target a chain", "target goto", "target ACCEPT", "target RETURN", "target DROP", "target LOG", "target NFLOG", "target MARK", "target CONNMARK", "target AUDIT",
	},
	20: {
		"verdict queued", "target DNAT", "target SNAT", "target MASQUERADE", "target REDIRECT", "target NETMAP", "target REJECT", "target CHECKSUM", "target TCPMSS",
		"target CT", "target NOTRACK", "target NFQUEUE", "target TPROXY", "target TOS", "target DSCP", "target TTL", "target HL",
		"refused tcp-reset",
	},
	2: {
		"refused icmp-net-unreachable", "refused icmp-host-unreachable", "refused icmp-proto-unreachable", "refused icmp-port-unreachable",
		"refused icmp-net-prohibited", "refused icmp-host-prohibited", "refused icmp-admin-prohibited",
		"refused icmp6-no-route", "refused icmp6-adm-prohibited", "refused icmp6-addr-unreachable", "refused icmp6-port-unreachable",
	},
}

// modules are the matches that have to come up, agreeing and not.
var modules = []string{
	"tcp", "udp", "sctp", "icmp", "icmp6", "multiport", "conntrack", "state", "mark", "connmark", "addrtype", "statistic", "recent", "physdev",
	"rpfilter", "limit", "hashlimit", "owner", "mac", "iprange", "length", "socket", "pkttype",
	"ttl", "hl", "tos", "dscp", "ecn", "tcpmss", "policy", "quota", "time", "string", "u32", "helper", "connbytes", "cpu", "bpf",
}

// notCompared is what the simulator does and the kernel does not show.
var notCompared = []string{
	"ipsets (-m set), which TestKernelAgreesAboutNftablesHosts has, and matches and targets that the simulator does not know",
	"packets with routing headers (-m rt); -m connlimit while packets are refused, which the kernel counts for up to two clock ticks",
	"rates over time: of limit and hashlimit the bursts are compared, of recent the counts",
	"when entries of the connection table go by themselves",
	"sequence numbers and windows of TCP, verification tags of SCTP: they are right in all packets",
	"packets of connections that belong to others (RELATED): ICMP errors, helpers",
	"fragments; packets of other protocols than TCP, UDP, SCTP and ICMP",
	"br_netfilter: packets that a bridge shows",
	"what the host sends to broadcast and multicast addresses, of which copies come back; multicast that is forwarded",
	"what a packet's socket changes: early demultiplexing, SO_MARK of sockets that listen",
	"rules of routing (ip rule), VRFs, IPsec, accept_local",
	"hosts without a nat table, where connections are not given ports of their own",
	"zones that count in one direction only",
}

func (y tally) require(t testing.TB) {
	t.Helper()
	for n, whats := range required {
		for _, what := range whats {
			y.atLeast(t, n, what)
		}
	}
	y.atLeast(t, 10, "match rt no") // packets with routing headers are not made
	for _, m := range modules {
		y.atLeast(t, 10, "match "+m+" yes")
		y.atLeast(t, 10, "match "+m+" no")
	}
}

// atLeast is that it came up that often.
func (y tally) atLeast(t testing.TB, n int, what string) {
	t.Helper()
	if y[what] < n {
		t.Errorf("%q came up %d times, want at least %d", what, y[what], n)
	}
}
