package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/survey"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// unansweredFindings are about neighbours that did not answer the node.
func unansweredFindings(s *survey.Survey) (found []Finding) {
	for _, u := range s.Unanswered {
		who := fmt.Sprintf("%s on %s", u.Addr, u.Interface)
		if len(u.To) > 1 || u.To[0] != u.Addr {
			who += ", to which the node sends packets for " + nearest.Few(texts(u.To))
		}
		found = append(found, Finding{
			Code: NoNeighbour,
			Text: fmt.Sprintf("%s (%s), did not answer when the node last asked for its hardware address (state %s of ip neigh)", who, nearest.Few(u.Titles), u.Unanswered),
			Do:   fmt.Sprintf("check that the host or Pod with this address is up and on the network of %s; on the node, ip neigh show %s has the current state", u.Interface, u.Addr),
		})
	}
	return found
}

func texts[T fmt.Stringer](list []T) (all []string) {
	for _, v := range list {
		all = append(all, v.String())
	}
	return all
}

// WrongNeighbours compares the neighbour entries of nodes with the devices of the nodes that have the addresses. The keys are
// the nodes' names. Only what nobody but a wrong entry explains is a finding: a network may answer for its hosts (proxy ARP),
// but not with the address of another node.
func WrongNeighbours(hosts map[string]*netfilter.Host) (found []OfOneNode) {
	type device struct{ node, name string }
	owners, devices := make(map[netip.Addr]device), make(map[iptables.MACAddress][]device)
	shared := make(map[netip.Addr]bool) // such as bridges of all nodes that have one address
	nodes := slices.Sorted(maps.Keys(hosts))
	for _, node := range nodes {
		for _, i := range hosts[node].Interfaces {
			if i.MAC != (iptables.MACAddress{}) {
				devices[i.MAC] = append(devices[i.MAC], device{node, i.Name})
			}
			for _, a := range i.Addresses {
				addr := a.Prefix.Addr()
				_, known := owners[addr]
				shared[addr] = shared[addr] || known
				owners[addr] = device{node, i.Name}
			}
		}
	}
	for _, node := range nodes {
		of := OfOneNode{Node: node}
		for _, n := range hosts[node].Neighbours {
			owner, known := owners[n.Addr]
			if !known || owner.node == node || shared[n.Addr] || n.Addr.IsLinkLocalUnicast() || n.MAC == (iptables.MACAddress{}) {
				continue
			}
			at := devices[n.MAC]
			if len(at) == 0 && !n.Permanent || slices.ContainsFunc(at, func(d device) bool { return d.node == owner.node }) {
				continue
			}
			to := n.MAC.String()
			if len(at) > 0 {
				to = fmt.Sprintf("%s of %s (%s)", at[0].name, at[0].node, n.MAC)
			}
			do := "if the address did not move between the bundles, look for a host that has it, too (arping), and remove the entry, so that the node asks again"
			if n.Permanent {
				do = "the entry is permanent: remove it, or restart the program that set it (such as the network plugin)"
			}
			of.Findings = append(of.Findings, Finding{
				Code: WrongNeighbour,
				Text: fmt.Sprintf("packets for %s, the address of %s (%s), go to %s by %s", n.Addr, owner.node, owner.name, to, n.Interface),
				Do:   fmt.Sprintf("%s: ip neigh del %s dev %s", do, n.Addr, n.Interface),
			})
		}
		found = append(found, of)
	}
	return found
}
