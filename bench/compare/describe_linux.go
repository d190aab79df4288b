package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/machine"
)

// describe lists what was measured with what, in Markdown.
func describe(p *plan) string {
	var out strings.Builder
	item := func(name, format string, args ...any) {
		fmt.Fprintf(&out, "- %s: %s\n", name, fmt.Sprintf(format, args...))
	}
	out.WriteString("# nfqproxy beside kube-proxy and the queue's floor\n\n")
	item("when", "%s; load average before: %s", time.Now().UTC().Format(time.DateTime), machine.Load())
	item("machine", "%s", machine.Hardware())
	item("kernel", "%s", machine.Kernel())
	item("Go", "%s", runtime.Version())
	item("nfqproxy", "%s", machine.Version(p.nfqproxy[0], "--version"))
	if path, err := cluster.Binary(cluster.KubeProxy); err == nil {
		item("kube-proxy", "%s", machine.Version(path, "--version"))
	}
	item("iptables", "%s; %s", machine.Version("xtables-nft-multi", "iptables", "--version"), machine.Version("xtables-legacy-multi", "iptables", "--version"))
	item("nft", "%s", machine.Version("nft", "--version"))
	item("connection tracking", "nf_conntrack_max %s", machine.FirstLine("/proc/sys/net/netfilter/nf_conntrack_max"))
	item("objects", "services with %d endpoints each, all of which answer; connections go to all of them in turn; one service in %d has a UDP port, too", p.endpoints, udpEvery)
	for _, t := range p.timeouts {
		item(t.name, "nf_conntrack_tcp_timeout_time_wait %d s, _close %d s", t.timeWait, t.close)
	}
	item("source ports", "with short timeouts, all are fresh; with the default ones each has been used before and its old entry is in TIME_WAIT")
	item("each", "%d visits, taking turns in random order; loads of %v, streams of %v, %d changes a visit", p.rounds, p.time, p.stream, p.changes)
	return out.String()
}
