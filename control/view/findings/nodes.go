package findings

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/noderules"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// reading is what a node shows of itself.
type reading struct {
	*noderules.Rules
	host *noderules.Host // nil: its rules are not known
}

// places are the addresses of the nodes, and of their pods.
type places struct {
	nodes map[string][]netip.Addr
	pods  map[string][]netip.Prefix
}

// placesOf are those of a topology; none of them are known if it is not available.
func placesOf(ctx context.Context, o observe.Observer) places {
	p := places{make(map[string][]netip.Addr), make(map[string][]netip.Prefix)}
	t, err := o.Topology(ctx)
	if err != nil {
		return p
	}
	for _, n := range t.Nodes {
		p.nodes[n.Name], p.pods[n.Name] = n.Addresses, n.PodCIDRs
	}
	return p
}

// with is the node that has an address; empty: none is known.
func (p places) with(a netip.Addr) string {
	for node, all := range p.nodes {
		if slices.Contains(all, a) {
			return node
		}
	}
	return ""
}

// of is the node whose pods have addresses like this one; empty: none is known.
func (p places) of(a netip.Addr) string {
	for node, all := range p.pods {
		if slices.ContainsFunc(all, func(c netip.Prefix) bool { return c.Contains(a) }) {
			return node
		}
	}
	return p.with(a)
}

// sibling is another address of the pods of a node, and the address of the node; zero: not known.
func (p places) sibling(node string, of netip.Addr) (sibling, at netip.Addr) {
	for _, c := range p.pods[node] {
		if c.Contains(of) && !c.IsSingleIP() {
			if sibling = c.Addr().Next(); sibling == of {
				sibling = sibling.Next()
			}
		}
	}
	for _, a := range p.nodes[node] {
		if a.Is4() == of.Is4() {
			at = a
		}
	}
	return sibling, at
}

// route is the node's route to an address; nil: not known.
func (r *reading) route(to netip.Addr) *noderules.Route {
	for i := range r.State.Routes {
		if r.State.Routes[i].To == to {
			return &r.State.Routes[i]
		}
	}
	return nil
}

// direct reports whether a node reaches the pods of others, but those of one, via the addresses of their nodes.
func (p places) direct(node, but string, r *reading) bool {
	found := false
	for other := range p.pods {
		if other == node || other == but {
			continue
		}
		for _, c := range p.pods[other] {
			route := r.route(c.Addr().Next())
			if route == nil || c.IsSingleIP() {
				continue
			}
			if p.with(route.Via) != other {
				return false
			}
			found = true
		}
	}
	return found
}

// maxNodes is of how many nodes the routes are compared.
const maxNodes = 20

// addresses are those that the routes of a flow are compared with.
func (p places) addresses() (all []netip.Addr) {
	for _, node := range slices.Sorted(maps.Keys(p.pods))[:min(len(p.pods), maxNodes)] {
		for _, c := range p.pods[node] {
			if !c.IsSingleIP() {
				all = append(all, c.Addr().Next())
			}
		}
	}
	return all
}

// brokenRoute is why packets of a flow do not reach an address from a node; nil: there is no reason to expect that. on is the
// node of the address; empty: not known.
func (p places) brokenRoute(node string, r *reading, to netip.Addr, on string, what string) *diagnose.Finding {
	route := r.route(to)
	if route == nil || node == on {
		return nil
	}
	sibling, at := p.sibling(on, to)
	text := ""
	switch next, usual := route.Via, r.route(sibling); {
	case route.None != "":
		text = fmt.Sprintf("node %s has no route to %s (%s)", node, to, route.None)
		if route.Prefix.IsValid() {
			text = fmt.Sprintf("node %s drops packets to %s: its route %s is of type %s", node, to, route.Prefix, route.None)
		}
	case route.Unresolved && next.IsValid():
		text = fmt.Sprintf("the route of node %s to %s (%s) leads via %s on %s, and nothing answers at this address", node, to, route.Prefix, next, route.Device)
	case route.Unresolved:
		text = fmt.Sprintf("the route of node %s to %s (%s) leads to device %s, and the address does not answer there", node, to, route.Prefix, route.Device)
	case !next.IsValid() || next == at:
		return nil
	case on != "" && p.with(next) != "" && p.with(next) != on:
		text = fmt.Sprintf("the route of node %s to %s (%s) leads via %s, which is node %s, and %s is on node %s", node, to, route.Prefix, next, p.with(next), to, on)
	case usual != nil && usual.Via.IsValid() && usual.Via != next:
		text = fmt.Sprintf("the route of node %s to %s (%s) leads via %s, but the route to other addresses of node %s via %s", node, to, route.Prefix, next, on, usual.Via)
	case at.IsValid() && p.direct(node, on, r):
		text = fmt.Sprintf("the route of node %s to %s (%s) leads via %s, which is not a node; the routes to Pods of other nodes lead via these nodes", node, to, route.Prefix, next)
	default:
		return nil
	}
	f := &diagnose.Finding{Code: diagnose.BrokenRoute, Object: "Node " + node, Text: text + what, Do: fmt.Sprintf("on node %s: ip route get %s", node, to)}
	usual := r.route(sibling)
	switch kind := ""; {
	case !route.Prefix.IsValid():
	case route.Prefix.IsSingleIP() && usual != nil && usual.None == "" && usual.Prefix != route.Prefix:
		if route.None != "" {
			kind = route.None + " "
		}
		f.Do = fmt.Sprintf("on node %s: ip route del %s%s", node, kind, route.Prefix)
	case at.IsValid():
		f.Do = fmt.Sprintf("on node %s: ip route replace %s via %s; if the network plugin has other routes (a tunnel), restart its Pod on the node", node, route.Prefix, at)
	default:
		f.Do = fmt.Sprintf("on node %s: ip route show match %s; the network plugin or the administrator of the node sets these routes", node, to)
	}
	return f
}

// filtered is the finding about a node that drops packets because of their sources; nil: it does not. flows are the recent ones
// through it that got no answer, and have no other cause: the daemon does not see packets that the kernel drops so.
func filtered(node string, r *reading, flows int) *diagnose.Finding {
	if r.State.Filtered == 0 || len(r.State.ReversePath) == 0 {
		return nil
	}
	devices := strings.Join(r.State.ReversePath, ", ")
	f := &diagnose.Finding{
		Code: diagnose.ReverseFilter, Object: "Node " + node,
		Text: fmt.Sprintf("node %s drops packets if the route to their source uses another device (rp_filter=1 on %s): %s since its start (IPReversePathFilter)", node, devices, quantity.Count(r.State.Filtered, "packet")),
		Do:   fmt.Sprintf("on node %s: sysctl -w net.ipv4.conf.all.rp_filter=2 (the higher value of all and the device counts), or give it a route back through the same device", node),
	}
	if flows > 0 {
		f.Text += fmt.Sprintf("; %s through it got no answer", quantity.Count(flows, "recent flow"))
	}
	return f
}

// delayFindings are the findings about devices that make packets late.
func delayFindings(node string, r *reading) (list []diagnose.Finding) {
	for _, d := range r.State.Delays {
		list = append(list, diagnose.Finding{
			Code: diagnose.SendsLate, Object: "Node " + node,
			Text: fmt.Sprintf("node %s delays packets that leave through %s: the device has a netem qdisc", node, d.Device),
			Do:   fmt.Sprintf("on node %s: tc -s qdisc show dev %s; tc qdisc del dev %[2]s root", node, d.Device),
		})
	}
	return list
}

// stale are the findings about connections of UDP to services that lead to what is no endpoint.
func stale(node string, r *reading, services []observe.Service, now time.Time) (list []diagnose.Finding) {
	for _, e := range r.State.Entries {
		for i := range services {
			s := &services[i]
			if s.Protocol != "UDP" || e.Destination.Port() != s.Port || !hasAddress(s, e.Destination.Addr()) {
				continue
			}
			at := slices.IndexFunc(s.Endpoints, func(o observe.Endpoint) bool { return o.Endpoint == e.Endpoint.String() })
			if at >= 0 && (!s.Endpoints[at].Removed || now.Sub(removedAt(s, e.Endpoint.String())) < cleanup) {
				continue
			}
			verb := "lead"
			if e.Count == 1 {
				verb = "leads"
			}
			list = append(list, diagnose.Finding{
				Code: diagnose.StuckUDP, Object: "Node " + node,
				Text: fmt.Sprintf("on node %s %s to %s (%s), such as that of %s, %s to %s, which is not an endpoint", node, quantity.Count(e.Count, "UDP connection entry"), s.Service, e.Destination, e.Source, verb, e.Endpoint),
				Do:   fmt.Sprintf("on node %s: conntrack -D -p udp --orig-dst %s --orig-port-dst %d --reply-src %s", node, e.Destination.Addr(), e.Destination.Port(), e.Endpoint.Addr()),
			})
		}
	}
	return list
}

func hasAddress(s *observe.Service, a netip.Addr) bool {
	return s.ClusterIP == a.String() || slices.Contains(s.ExternalIPs, a) || slices.Contains(s.LoadBalancerIPs, a)
}
