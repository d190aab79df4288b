package audit

import (
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// CompareNFTables returns the differences of the second ruleset: the services of kube-proxy in nftables mode first, of both
// families, and then what these do not explain in any table. With all it includes every difference. Counters, timeouts of elements,
// the elements that packets add to sets, and the order of elements and chains do not count.
func CompareNFTables(before, after *nftables.Ruleset, all bool) *Comparison {
	c := &Comparison{}
	changed := &told{
		chains: make(map[string]bool), names: make(map[nameKey]bool), foreign: make(map[*nftables.Rule]bool),
		destinations: make(map[claim]bool), addresses: make(map[netip.Addr]bool), endpoints: make(map[hairpin]bool),
	}
	was, is := ReadNFTables(before), ReadNFTables(after)
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		a, b := nodeOf(was, f), nodeOf(is, f)
		if a == nil && b == nil {
			continue
		}
		changes := compareAll(a.services(), b.services())
		c.Services = append(c.Services, changes...)
		changed.add(changes, a, b)
		if a != nil && b != nil {
			for _, d := range compareProxies(&a.Proxy, &b.Proxy) {
				if len(was) > 1 || len(is) > 1 {
					d.Text = f.String() + ": " + d.Text
				}
				c.Proxy = append(c.Proxy, d)
			}
		}
	}
	add := func(before, after *nftables.Table) {
		explained := func(*part, *partLine) bool { return false }
		if before != nil && after != nil && proxymode.KubeProxyTable(after) && !all {
			explained = changed.explains
		}
		if d := diffNFTables(before, after, explained); d.Change != Changed || len(d.Chains) > 0 {
			c.Tables = append(c.Tables, d)
		}
	}
	for _, t := range after.Tables {
		add(tableOf(before, t.Family, t.Name), t)
	}
	for _, t := range before.Tables {
		if tableOf(after, t.Family, t.Name) == nil {
			add(t, nil)
		}
	}
	return c
}

// nodeOf is the node of a family that kube-proxy wrote; nil: there is none.
func nodeOf(nodes []*Node, f decision.Family) *Node {
	for _, n := range nodes {
		if n.Family == f && n.Mode == proxymode.ModeNFTables {
			return n
		}
	}
	return nil
}

// services are those of a node that may be nil.
func (n *Node) services() []*Service {
	if n == nil {
		return nil
	}
	return n.Services
}

// told is what the changes of services and of the configuration explain.
type told struct {
	chains       map[string]bool
	names        map[nameKey]bool
	foreign      map[*nftables.Rule]bool
	destinations map[claim]bool
	addresses    map[netip.Addr]bool
	endpoints    map[hairpin]bool
}

// add adds the changes of one family. Either node may be nil.
func (k *told) add(changes []ServiceChange, nodes ...*Node) {
	changed := make(map[*Service]bool)
	for i := range changes {
		for _, s := range []*Service{changes[i].Before, changes[i].After} {
			if s == nil {
				continue
			}
			changed[s] = true
			k.names[nameKey{s.Name, s.Protocol}] = true
			k.addresses[s.ClusterIP] = true
			k.destinations[claim{s.ClusterIP, s.Port, s.Protocol}] = true
			k.destinations[claim{netip.Addr{}, s.NodePort, s.Protocol}] = true
			for _, a := range s.addresses() {
				k.destinations[claim{a, s.Port, s.Protocol}] = true
			}
			for _, e := range s.Endpoints {
				k.endpoints[hairpin{e.AddrPort, s.Protocol}] = true
			}
		}
	}
	for _, n := range nodes {
		if n == nil {
			continue
		}
		for chain, s := range n.chains {
			k.chains[chain] = k.chains[chain] || changed[s]
		}
		for rule := range n.foreign {
			k.foreign[rule] = true
		}
		for _, a := range n.Proxy.NodePortAddresses { // whose changes are among those of the configuration
			k.addresses[a] = true
		}
	}
}

// explains reports whether the change of a service explains that of a line; without one, that a part is added or removed.
func (k *told) explains(p *part, l *partLine) bool {
	name, ofService := nftproxy.ParseName(strings.TrimPrefix(p.name, "set "))
	switch {
	case name.Kind == nftproxy.AffinitySet:
		return k.names[nameKey{name.Service, name.Protocol}]
	case name.Kind != "":
		// kube-proxy empties chains of services that are gone, and deletes them later.
		empty := l == nil && len(p.ordered) == 0
		isNew := l != nil && l.rule != nil && k.foreign[l.rule]
		return (k.chains[p.name] || ofService && k.names[nameKey{name.Service, name.Protocol}] || empty) && !isNew
	case l == nil || l.element == nil:
		return false
	}
	key := l.element.Key
	if at, ok := destinationOf(key); ok {
		return k.destinations[at]
	}
	if a, ok := addrOf(key); ok {
		return k.addresses[a]
	}
	at, ok := hairpinOf(key)
	return ok && k.endpoints[at]
}

// hairpinOf reads an element of hairpin-connections: "10.244.1.2 . 10.244.1.2 . tcp . 80".
func hairpinOf(e nftables.Expr) (hairpin, bool) {
	key, _ := e.(nftables.Concat)
	if len(key) != 4 {
		return hairpin{}, false
	}
	a, ok := addrOf(key[0])
	return hairpin{netip.AddrPortFrom(a, portOf(key[3])), protocolOf(key[2])}, ok
}
