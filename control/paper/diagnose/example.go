package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// addWith adds a finding about a service port with a connection that fails because of it.
func (e *examination) addWith(w *inquiry, s *decision.ServicePort, f Finding) {
	if !e.seen[f] && f.Code.Severity() == Error {
		seen := f
		f.Example = e.example(w, s, f.Code)
		e.seen[seen] = true
		e.findings = append(e.findings, f)
		return
	}
	e.add(f)
}

// example is a connection from within the cluster to a service port's cluster IP; nil if there is no source or no
// such address.
func (e *examination) example(w *inquiry, s *decision.ServicePort, code Code) *Example {
	from := e.client(w, s.Family)
	if from == nil || !s.ClusterIP.IsValid() {
		return nil
	}
	source, _ := decision.AddressOf(from.addrs, s.Family)
	node := from.node
	if from.pod != nil {
		node = from.on
	}
	i := &inquiry{Cluster: e.Cluster, from: from, to: w.to, port: w.port}
	to := netip.AddrPortFrom(s.ClusterIP, s.Port)
	p := i.packet(node, source, to)
	d := i.decideOn(node, p)
	if code == PolicyForbids && from.pod == nil && d.Verdict == decision.DNAT && d.ServicePort.Endpoints[d.Index].Local {
		return nil // policies let pass what a node sends to its own Pods
	}
	r := record(e.table(node), p, d)
	text := fmt.Sprintf("a connection from %s to %s ", from.text, to)
	switch {
	case d.Verdict == decision.Reject && s.Protocol == decision.TCP:
		text += "is rejected: \"connection refused\""
	case d.Verdict == decision.Reject:
		text += "is rejected: \"port unreachable\""
	case d.Verdict == decision.Drop:
		text += "is dropped: it gets no answer"
	case d.Verdict == decision.DNAT && slices.Contains([]Code{Silent, PolicyForbids, HostDropsFlows, EndpointIsClusterIP}, code):
		text += "goes to " + r.Endpoint + ", and gets no answer"
	case d.Verdict == decision.DNAT && code == OtherPort:
		text += "goes to " + r.Endpoint + ", where probably nothing listens"
	case d.Verdict == decision.DNAT && slices.Contains([]Code{NoListener, Refuses}, code):
		text += "goes to " + r.Endpoint + ", which refuses it"
	case d.Verdict == decision.DNAT: // whether it answers is not known
		text += "goes to " + r.Endpoint
	default:
		return nil // the decision shows nothing
	}
	return &Example{Text: text, Record: r}
}

// client is a source with an address of the family: a Pod of the Service's namespace that the Service does not
// select, or else a node. It is on the node whose service table is known already: a table for each node would take
// too much of a large cluster. nil: there is none.
func (e *examination) client(w *inquiry, family decision.Family) *party {
	svc, node := w.to.service, e.nodes.some()
	key := svc.Namespace + "/" + svc.Name + "/" + family.String()
	if p, known := e.clients[key]; known {
		return p
	}
	var found *party
	if in := e.podsIn[svc.Namespace]; in != nil {
		own := in.selected(svc.Spec.Selector)
		const enough = 1000 // Pods to look at
		for _, pod := range in.pods[:min(len(in.pods), enough)] {
			if pod.Spec.NodeName != node || pod.Spec.HostNetwork || slices.Contains(own, pod) {
				continue
			}
			if p := e.podParty(pod); hasFamily(p.addrs, family) {
				found = p
				break
			}
		}
	}
	if found == nil && hasFamily(e.nodes.addresses[node], family) {
		found = &party{text: "node " + node, node: node, addrs: e.nodes.addresses[node]}
	}
	e.clients[key] = found
	return found
}

func hasFamily(addrs []netip.Addr, f decision.Family) bool {
	_, has := decision.AddressOf(addrs, f)
	return has
}
