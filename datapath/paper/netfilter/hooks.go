package netfilter

import (
	"math"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
)

// The priorities at which the kernel has something of its own at a hook, and those of iptables'
// tables (enum nf_ip_hook_priorities of netfilter_ipv4.h, the same for IPv6).
const (
	priorityFirst    = math.MinInt32
	priorityRaw      = -300
	priorityTracking = -200
	priorityMangle   = -150
	priorityNAT      = -100 // of destinations: at PREROUTING and OUTPUT
	priorityFilter   = 0
	prioritySecurity = 50
	prioritySource   = 100           // of nat at INPUT and POSTROUTING
	priorityLast     = math.MaxInt32 // nf_confirm
)

// base is a chain that a hook leads to.
type base struct {
	table    string
	priority int
	reroutes bool // at OUTPUT, what it changes may change the route
	backend  *backend
	chain    *chain // nil: the dump does not have it
	moved    bool   // it comes just in front of translation, behind all others of its priority
}

// hookChains are the base chains of each hook, in the order in which packets meet them. Those of nat have
// a list of their own: they are all evaluated at the place of the translation, in the order of their
// priorities (nf_nat_register_fn, nf_nat_core.c).
type hookChains struct {
	at  [Postrouting + 1][]base
	nat [Postrouting + 1][]base
}

// priority is that of a table of iptables at a hook. The nf_tables back end has its chains of security
// behind those of nat (priority 150, iptables/nft.c).
func (b *backend) priority(h Hook, t table) int {
	switch t {
	case raw:
		return priorityRaw
	case mangle:
		return priorityMangle
	case nat:
		return natPriority(h)
	case security:
		if b.nftables {
			return prioritySecurity + 100
		}
		return prioritySecurity
	}
	return priorityFilter
}

// natPriority is that of translation at a hook.
func natPriority(h Hook) int {
	if sideOf(h) == sourceSide {
		return prioritySource
	}
	return priorityNAT
}

// hooksOf puts the chains of the back ends in order. Those of one priority stay in the order of the
// back ends, but of nftables' own the one that was made last comes first (nf_hook_entries_grow, core.c).
func hooksOf(backends []*backend) *hookChains {
	c := new(hookChains)
	for _, b := range backends {
		if b.native() {
			c.addNative(b)
			continue
		}
		for t := range tables {
			for _, name := range iptables.BuiltinChains(t.String()) {
				h := Hook(slices.Index(hookNames, name))
				to := &c.at[h]
				if t == nat {
					to = &c.nat[h]
				}
				*to = append(*to, base{t.String(), b.priority(h, t), h == Output && t == mangle, b, b.chains[t.String()][name], false})
			}
		}
	}
	for h := range c.at {
		for _, list := range [][]base{c.at[h], c.nat[h]} {
			slices.SortStableFunc(list, func(a, b base) int {
				if a.priority == b.priority && a.moved != b.moved {
					return boolOrder(a.moved)
				}
				return a.priority - b.priority
			})
		}
	}
	return c
}

// hookNamed is a hook by nftables' name.
func hookNamed(name string) Hook { return Hook(max(0, slices.Index(hookNames, strings.ToUpper(name)))) }

// addNative adds the base chains of nftables. Translation is a hook of the kernel's own since the first chain of nat was made:
// at its priority, chains that were made later come first.
func (c *hookChains) addNative(b *backend) {
	translates := false
	later := make(map[*iptables.Chain]bool) // than the first of nat
	for _, t := range b.dump.Tables {
		for _, declared := range t.Chains {
			later[declared] = translates
			translates = translates || declared.Base != nil && declared.Base.Type == "nat"
		}
	}
	for _, t := range slices.Backward(b.dump.Tables) {
		for _, declared := range slices.Backward(t.Chains) {
			at := declared.Base
			if at == nil {
				continue
			}
			h := hookNamed(at.Hook)
			to := &c.at[h]
			if at.Type == "nat" {
				to = &c.nat[h]
			}
			priority := int(at.Priority)
			moved := h != Forward && priority == natPriority(h) && at.Type != "nat" && later[declared]
			if moved {
				priority--
			}
			*to = append(*to, base{t.Name, priority, at.Type == "route", b, b.chains[t.Name][declared.Name], moved})
		}
		bare := len(t.Rules) == 0 // nft list chains
		for _, h := range []Hook{Prerouting, Output} {
			if strings.HasSuffix(t.Name, " "+nftproxy.Table) && (bare || !slices.ContainsFunc(c.nat[h], func(have base) bool { return have.table == t.Name })) { // nft list map, for one
				if b.lacks == nil {
					b.lacks = make(map[string]bool)
				}
				b.lacks[lackingHook(t.Name, h)] = true
				c.nat[h] = append(c.nat[h], base{table: t.Name, priority: priorityNAT, backend: b})
			}
		}
	}
}

// lackingHook is the key in lacks of a table of nftables that has no chain of nat at a hook.
func lackingHook(table string, h Hook) string { return table + " " + h.String() }

// boolOrder is 1 if the first of two comes last, else -1.
func boolOrder(last bool) int {
	if last {
		return 1
	}
	return -1
}
