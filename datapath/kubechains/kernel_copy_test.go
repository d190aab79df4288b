//go:build linux

package kubechains

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestCopyAgreesWithDecide has the kernel send real packets through nfqproxy's own rules while no
// daemon listens at the queues, and compares what the kernel's copy of the service table does with
// what Decide allows.
func TestCopyAgreesWithDecide(t *testing.T) {
	worlds, packets := netnstest.Cases(105, 35), 96
	seen := make(tally)
	for seed := range uint64(worlds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w4, w6 := newWorld(seed, decision.IPv4), newWorld(seed, decision.IPv6)
			n := newKernelNode(t, w4, w6)
			for _, w := range []*world{w4, w6} {
				rules := n.loadCopy(t, w)
				e := &experiment{world: w, rules: "the copy:", node: n, seen: seen, differs: (*experiment).beyondCopy, bound: make(map[netip.AddrPort]*affinity.Table)}
				e.generate(packets)
				check(t, netns.OnOneCPU(e.perform))
				e.compare(t)
				check(t, rules.Remove())
			}
		})
		if t.Failed() {
			return
		}
	}
	if beyond, all := seen["different"], 2*worlds*packets; beyond > all/10 {
		t.Errorf("%d of %d packets are beyond the copy", beyond, all)
	}
	for _, what := range []string{
		"dnat entry cluster-ip", "dnat entry external-ip", "dnat entry load-balancer-ip", "dnat entry node-port",
		"dnat branch internal-policy", "dnat branch external-policy", "dnat branch pod-short-circuit", "dnat branch node-short-circuit",
		"IPv4 drop/foreign-localnet", "IPv4 reject/no-endpoints", "IPv6 reject/no-endpoints", "IPv4 drop/no-local-endpoints", "IPv6 drop/no-local-endpoints",
		"dnat of a loopback address, restricted false", "dnat of a loopback address, restricted true", "dnat to the node itself",
		"dnat SCTP", "dnat TCP", "dnat UDP", "endpoint 4 of 4",
		"bound to one of several, entry cluster-ip", "bound to one of several, entry external-ip", "bound to one of several, entry node-port",
		"IPv4 drop/source-not-allowed", "IPv6 drop/source-not-allowed", "let through as the load balancer IP itself",
	} {
		seen.atLeast(t, worlds/20, what)
	}
}

// TestCopyDrawsEvenly is TestKernelDrawsEvenly for the kernel's copy.
func TestCopyDrawsEvenly(t *testing.T) {
	e := &experiment{rules: "the copy:", bound: make(map[netip.AddrPort]*affinity.Table)}
	drawsEvenly(t, e, func(n *kernelNode, w *world) { n.loadCopy(t, w) })
}

// loadCopy installs nfqproxy's rules.
func (n *kernelNode) loadCopy(t *testing.T, w *world) (rules *ruleset.Ruleset) {
	t.Helper()
	check(t, n.node.Do(func() error {
		native, err := ruleset.Probe()
		if err != nil {
			return err
		}
		node := w.table.Node()
		conn, err := ruleset.OpenConnection(false)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = conn.Close() })
		rules, err = conn.Install(ruleset.Spec{
			FirstQueue: 100, Queues: 1, Native: native,
			RejectMark: 0x6e667172, MasqueradeMark: node.Mark(), ConnMark: 0x2000, CopyMark: 0x1000,
			LocalhostNodePorts: node.LocalhostNodePorts, SeenTimeout: 20 * time.Second, SeenSize: 1024,
		}, w.table, false)
		return err
	}))
	return rules
}

// beyondCopy reports whether the copy cannot express the decision, and does what its documentation
// describes instead.
func (e *experiment) beyondCopy(p *decision.Packet, d *decision.Decision, got outcome) bool {
	notFiltered := d.Reason == decision.NotFiltered && d.ServicePort.HasEndpoints
	// A client whose packets arrive from pods' interfaces and from others is bound to one endpoint for
	// both.
	byInterface := e.table.Node().Detector.Bridge != "" || e.table.Node().Detector.InterfacePrefix != ""
	boundAsOther := d.Verdict == decision.DNAT && d.ServicePort.AffinitySeconds > 0 && byInterface && e.memoryOf(p).Bound(d.ServicePort, got.to, p.Source.Addr())
	return len(e.table.Candidates(p)) > 1 || notFiltered && got.verdict == decision.Drop || boundAsOther || remoteHairpin(d, got)
}

// remoteHairpin reports whether a flow of an endpoint to itself was not masqueraded because the endpoint
// is known to be on another node, and cannot send such a packet through this one.
func remoteHairpin(d *decision.Decision, got outcome) bool {
	if d.Mark != decision.MarkHairpin || got != (outcome{verdict: decision.DNAT, to: d.Endpoint()}) {
		return false
	}
	ep := &d.ServicePort.Endpoints[d.Index]
	return !ep.Local && ep.NodeName != ""
}
