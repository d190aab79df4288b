package audit

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// Host is the rules and virtual servers of a host at one time, of both families.
type Host struct {
	Name  string           // in notes
	Dumps []*iptables.Dump // of iptables, of each family and back end
	// Ruleset is that of nftables, without the tables that Dumps have; nil: not known.
	Ruleset *nftables.Ruleset
	IPVS    *ipvs.State // nil: there are none, or they are not known
}

// CompareHosts returns the differences of the second host, or of a host at a second time: in services, also where one has
// kube-proxy's rules in iptables and the other in nftables, in virtual servers, and in rules of the same kind. The notes of the
// result are what only one of the two has. compared: there was something to compare.
func CompareHosts(before, after *Host, all bool) (c *Comparison, compared bool) {
	h := hosts{before: before, after: after, all: all, c: &Comparison{}}
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		h.iptables(f)
	}
	h.nftables()
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		h.modes(f)
	}
	switch {
	case before.IPVS != nil && after.IPVS != nil:
		h.compared = true
		h.c.Servers = compareServers(before.IPVS, after.IPVS)
	case before.IPVS != nil || after.IPVS != nil:
		h.only("virtual servers of IPVS", before.IPVS != nil)
	}
	slices.SortStableFunc(h.c.Services, func(a, b ServiceChange) int { return compareServices(a.Service(), b.Service()) })
	return h.c, h.compared
}

// hosts is the state of CompareHosts.
type hosts struct {
	before, after *Host
	all           bool
	c             *Comparison
	compared      bool
}

// only notes what only one of the two has.
func (h *hosts) only(what string, before bool) {
	name, other := h.after.Name, h.before.Name
	if before {
		name, other = other, name
	}
	h.c.Notes = append(h.c.Notes, fmt.Sprintf("%s are in %s only, and not in %s", what, name, other))
}

// dumps are those of a family.
func (o *Host) dumps(f decision.Family) (list []*iptables.Dump) {
	for _, d := range o.Dumps {
		if cmp.Or(d.Family, decision.IPv4) == f {
			list = append(list, d)
		}
	}
	return list
}

// proxy is the node of a family by the rules of kube-proxy that have services; nil: there are none.
func (o *Host) proxy(f decision.Family) (*Node, *iptables.Dump) {
	for _, d := range o.dumps(f) {
		if n := Read(d); len(n.Services) > 0 {
			return n, d
		}
	}
	if o.Ruleset != nil {
		if n := nodeOf(ReadNFTables(o.Ruleset), f); n != nil && len(n.Services) > 0 {
			return n, nil
		}
	}
	return nil, nil
}

// iptables compares the rules of iptables of a family.
func (h *hosts) iptables(f decision.Family) {
	was, is := h.before.dumps(f), h.after.dumps(f)
	if len(was) == 0 || len(is) == 0 {
		if len(was)+len(is) > 0 {
			h.only(fmt.Sprintf("rules of iptables for %s", f), len(was) > 0)
		}
		return
	}
	h.compared = true
	_, a := h.before.proxy(f)
	_, b := h.after.proxy(f)
	several := len(was) > 1 || len(is) > 1 || len(h.before.dumps(decision.IPv4)) > 0 && len(h.before.dumps(decision.IPv6)) > 0
	compare := func(x, y *iptables.Dump) {
		x, y = h.shared(x, y)
		one := Compare(x, y, h.all)
		h.c.Services, h.c.Notes = append(h.c.Services, one.Services...), append(h.c.Notes, one.Notes...)
		for _, d := range one.Proxy {
			if several {
				d.Text = f.String() + ": " + d.Text
			}
			h.c.Proxy = append(h.c.Proxy, d)
		}
		for _, t := range one.Tables {
			if several {
				t.Name += ", " + f.String()
				if backend := cmp.Or(y.Backend, x.Backend); backend != iptables.BackendUnknown {
					t.Name += ", " + backend.String()
				}
			}
			h.c.Tables = append(h.c.Tables, t)
		}
		h.c.Reordered += one.Reordered
	}
	switch {
	case len(was) == 1 && len(is) == 1:
		compare(was[0], is[0])
		return
	case a != nil && b != nil && a.Backend != b.Backend: // kube-proxy uses another back end
		compare(a, b)
		was = slices.DeleteFunc(was, func(d *iptables.Dump) bool { return d == a })
		is = slices.DeleteFunc(is, func(d *iptables.Dump) bool { return d == b })
	}
	of := make(map[iptables.Backend]*iptables.Dump)
	for _, y := range is {
		of[y.Backend] = y
	}
	for _, x := range was {
		y := of[x.Backend]
		if delete(of, x.Backend); y == nil {
			y = &iptables.Dump{Family: x.Family, Backend: x.Backend}
		}
		compare(x, y)
	}
	for _, y := range is {
		if of[y.Backend] != nil {
			compare(&iptables.Dump{Family: y.Family, Backend: y.Backend}, y)
		}
	}
}

// shared leaves out the tables, chains and rules that only one of two dumps has, if the other one is a part of its host's rules.
func (h *hosts) shared(x, y *iptables.Dump) (a, b *iptables.Dump) {
	of := [2]iptables.Dump{*x, *y}
	for i, part := range []*iptables.Dump{y, x} {
		if !isPart(part) {
			continue
		}
		var all []*iptables.Table
		for _, t := range of[i].Tables {
			if part.Table(t.Name) != nil {
				if part.Listing != nil {
					t = t.Shown(part)
				}
				all = append(all, t)
				continue
			}
			h.only("rules of table "+t.Name, i == 0)
		}
		if of[i].Tables = all; part.Listing != nil {
			name := []string{h.after.Name, h.before.Name}[i]
			h.part(name)
			for _, n := range part.Listing.Incomplete {
				if strings.HasPrefix(n.Text, "listed without -v") {
					h.c.Notes = append(h.c.Notes, fmt.Sprintf("interfaces of rules: %s, %s", name, n))
				}
			}
		}
	}
	return &of[0], &of[1]
}

// part notes that a text may lack rules of its host.
func (h *hosts) part(name string) {
	h.c.Notes = append(h.c.Notes, fmt.Sprintf("%s may be only a part of the rules: what it lacks may only be missing there", name))
}

// isPart reports whether a host has more tables than its dump: a listing of some, or kube-proxy's rules of nat or filter without
// those of the other one, as iptables-save -t nat prints them.
func isPart(d *iptables.Dump) bool {
	nat, filter := d.Table("nat"), d.Table("filter")
	return d.Listing != nil || filter == nil && nat != nil && nat.Has(kubechains.Services) ||
		nat == nil && filter != nil && (filter.Has(kubechains.Services) || filter.Has(kubechains.Forward))
}

// nftables compares the rulesets of nftables.
func (h *hosts) nftables() {
	if h.before.Ruleset == nil || h.after.Ruleset == nil {
		if h.before.Ruleset != nil || h.after.Ruleset != nil {
			h.only("rules of nftables", h.before.Ruleset != nil)
		}
		return
	}
	h.compared = true
	for _, of := range []*Host{h.before, h.after} {
		for _, t := range of.Ruleset.Tables {
			if r := newNFTReader(t); proxymode.KubeProxyTable(t) && (!r.isComplete() || r.masked() > 0) {
				h.part(of.Name)
				break
			}
		}
	}
	one := CompareNFTables(h.before.Ruleset, h.after.Ruleset, h.all)
	h.c.Services = append(h.c.Services, one.Services...)
	h.c.Proxy = append(h.c.Proxy, one.Proxy...)
	h.c.Tables = append(h.c.Tables, one.Tables...)
}

// modes compares services of a family where kube-proxy's rules are of iptables at one time, and of nftables at the other.
func (h *hosts) modes(f decision.Family) {
	was, x := h.before.proxy(f)
	is, y := h.after.proxy(f)
	if was == nil || is == nil || (x == nil) == (y == nil) {
		return
	}
	h.compared = true
	h.c.Services = slices.DeleteFunc(h.c.Services, func(c ServiceChange) bool { return c.Service().Family == f })
	h.c.Services = append(h.c.Services, CompareServices(was, is)...)
	h.c.Proxy = append(h.c.Proxy, Detail{Changed, fmt.Sprintf("%s: mode: %s -> %s", f, modeOf(x), modeOf(y))})
	if a, b := was.Proxy.openAt(), is.Proxy.openAt(); a != b {
		h.c.Proxy = append(h.c.Proxy, Detail{Changed, fmt.Sprintf("%s: node ports: %s -> %s", f, a, b)})
	}
}

// openAt says at which addresses of the node its node ports are open.
func (p *Proxy) openAt() string {
	if len(p.NodePortAddresses) == 0 {
		return "at all addresses"
	}
	return "at " + joined(p.NodePortAddresses) + " only"
}

func modeOf(d *iptables.Dump) proxymode.Mode {
	if d == nil {
		return proxymode.ModeNFTables
	}
	return proxymode.ModeIPTables
}

// ServerChange is the change of a virtual server of IPVS.
type ServerChange struct {
	Server  string   `json:"server"` // "TCP 10.96.0.1:443"
	Change  Change   `json:"change"`
	Details []Detail `json:"details,omitempty"` // of a removed one: none
}

// compareServers returns the changes of virtual servers, in the order of the second text, and then those that are gone.
// Numbers of connections and counters do not count.
func compareServers(before, after *ipvs.State) (changes []ServerChange) {
	was := make(map[string]*ipvs.VirtualServer)
	for _, v := range before.Servers {
		was[v.String()] = v
	}
	weights := before.Format.HasWeights() && after.Format.HasWeights()
	schedulers := before.Format.HasSchedulers() && after.Format.HasSchedulers()
	for _, v := range after.Servers {
		old, change := was[v.String()], Changed
		delete(was, v.String())
		if old == nil {
			old, change = &ipvs.VirtualServer{}, Added
		}
		d := &details{}
		if schedulers {
			value(d, "scheduler", old.Scheduler, v.Scheduler)
			value(d, "session affinity", affinityText(old.Persistence), affinityText(v.Persistence))
		}
		compareRealServers(d, old.Real, v.Real, weights)
		if len(*d) > 0 || change == Added {
			changes = append(changes, ServerChange{v.String(), change, *d})
		}
	}
	for _, v := range before.Servers {
		if was[v.String()] != nil {
			changes = append(changes, ServerChange{Server: v.String(), Change: Removed})
		}
	}
	return changes
}

func compareRealServers(d *details, before, after []ipvs.RealServer, weights bool) {
	text := func(r *ipvs.RealServer) string {
		if !weights {
			return r.Address.String()
		}
		return fmt.Sprintf("%s (%s, weight %d)", r.Address, r.Forward, r.Weight)
	}
	was, is := make(map[netip.AddrPort]*ipvs.RealServer), make(map[netip.AddrPort]bool)
	for i := range after {
		is[after[i].Address] = true
	}
	for i := range before {
		if was[before[i].Address] = &before[i]; !is[before[i].Address] {
			d.add(Removed, "real server %s", text(&before[i]))
		}
	}
	for i := range after {
		switch old := was[after[i].Address]; {
		case old == nil:
			d.add(Added, "real server %s", text(&after[i]))
		case text(old) != text(&after[i]):
			d.add(Changed, "real server %s -> %s", text(old), text(&after[i]))
		}
	}
}
