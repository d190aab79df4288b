package diagnose

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/explain"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// home is the node on which an endpoint is; "" if it is not known.
func (w *inquiry) home(ep *decision.Endpoint) string {
	a := ep.AddrPort.Addr()
	pod := cmp.Or(w.owners[a], new(corev1.Pod))
	return cmp.Or(ep.NodeName, pod.Spec.NodeName, w.nodes.Node(a), w.nodes.Pod(a))
}

// bypass is why the reply of an endpoint is not translated back: it takes another way than by the node that translated
// the packet. nil: the objects show no reason. A flow that was answered shows that it does.
func (w *inquiry) bypass(p *decision.Packet, d *decision.Decision, ep *decision.Endpoint) *Finding {
	decider, home := w.answer.Node, w.home(ep)
	marked := d.Mark != decision.NotMarked && d.Mark != decision.MarkHairpin
	switch {
	case marked, ep.AddrPort.Addr() == p.Source.Addr():
		return nil // it is masqueraded
	case decider == "", home == "", home == decider:
		return nil
	case w.from.node == decider, w.from.on == decider, w.nodes.Node(p.Source.Addr()) == decider:
		return nil
	case w.isPod() && w.from.on == "":
		return nil
	}
	if _, known := w.observed(ep.AddrPort.String(), d.ServicePort.Protocol); known {
		return nil
	}
	f := &Finding{
		Code: ReplyBypasses, Object: "Service " + d.ServicePort.Name.Service().String(),
		Text: fmt.Sprintf("the reply from %s on %s does not return through %s, which translated the packet but did not masquerade it: the client gets it from an address that it did not send to",
			ep.AddrPort, home, decider),
		Do: "connect to the cluster IP from a Pod, or to an address of a node with an endpoint",
	}
	switch d.Branch {
	case decision.BranchPodShortcut:
		f.Field = "spec.externalTrafficPolicy"
		f.Do = "connect to the cluster IP, or set spec.externalTrafficPolicy to Cluster"
	case decision.BranchInternal:
		f.Do = "set --cluster-cidr of the proxy, so that it masquerades traffic from elsewhere, or use a node port"
	}
	return f
}

// shownBy reports whether a finding of sameBridge is about what the node's bridges show, so that following the connection has decided it.
func shownBy(h *netfilter.Host, f Finding) bool {
	return f.Code == SameBridge && h.Bridges != nil && (h.HairpinsKnown() || !strings.Contains(f.Text, "hairpin"))
}

// sameBridge tells what a reply needs that may not leave the bridge of its node.
func (w *inquiry) sameBridge(p *decision.Packet, d *decision.Decision) {
	node := w.from.on
	// The Pods of a lab are routed.
	if len(w.hops) > 1 || w.objects.Lab != nil || w.isPod() && node != w.answer.Node {
		return
	}
	placed, object := w.isPod() && node != "", ""
	if placed {
		object = "Node " + node
	}
	sysctl := explain.BridgeSysctl(p.Source.Addr())
	marked := d.Mark != decision.NotMarked && d.Mark != decision.MarkHairpin
	const few = 4
	var beside, itself []string
	for _, ep := range d.ServicePort.UsableEndpoints(d.Policy) {
		switch a := ep.AddrPort.Addr(); {
		case w.nodes.Node(a) != "", w.from.pod != nil && w.from.pod.Spec.HostNetwork:
		case a == p.Source.Addr():
			itself = append(itself, ep.AddrPort.String())
		case placed && !marked && w.home(&ep) == node:
			beside = append(beside, ep.AddrPort.String())
		}
	}
	if len(beside) > 0 {
		w.note(Finding{
			Code: SameBridge, Object: object,
			Text: fmt.Sprintf("the source and %s are on %s: if their Pods share a Linux bridge, the reply stays on it, and is not translated back unless %s is 1", quantity.Some(beside, few), node, sysctl),
			Do:   fmt.Sprintf("on %s, check that sysctl %s prints 1 (module br_netfilter); if its network routes to each Pod, this does not matter", node, sysctl),
		})
	}
	if len(itself) > 0 {
		w.note(Finding{
			Code: SameBridge, Object: object,
			Text: fmt.Sprintf("the source is the endpoint %s itself: if its Pod is on a Linux bridge, the packet returns through the bridge port that it came from, which needs hairpin mode", quantity.Some(itself, few)),
			Do:   fmt.Sprintf("on %s, check bridge -d link: hairpin on; if its network routes to each Pod, this does not matter", cmp.Or(node, "its node")),
		})
	}
}
