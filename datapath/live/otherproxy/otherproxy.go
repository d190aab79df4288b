// Package otherproxy tells which service proxy serves the node that nfqproxy only observes.
package otherproxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// Unknown is the name of a proxy that left none of the traces that Find knows.
const Unknown = "unknown proxy"

// Cilium is the name of Cilium in kube-proxy's place, which translates before connection tracking sees a packet.
const Cilium = "Cilium"

// chain is the one that kube-proxy has in its mode iptables, and in IPVS mode too.
const chain = "KUBE-SERVICES"

// Find names the service proxy of the calling thread's network namespace by what it leaves in the kernel: its tables and
// chains, and its devices. Several are possible; the first of these counts, as it translates before the others see a
// packet: kube-proxy, whose modes are in parentheses, nfqproxy, kube-router, Cilium and OVN-Kubernetes. Cilium may be there
// as the network plugin only, and virtual servers may be of others. It needs CAP_NET_ADMIN, and changes nothing: not even a module is loaded.
func Find() (string, error) {
	ipvs := hasDevice("kube-ipvs0")
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		for _, of := range []struct{ table, proxy string }{{"kube-proxy", "kube-proxy (nftables)"}, {"nfqproxy", "nfqproxy"}} {
			t, err := nft.Get(nft.Family(f), unix.NFT_MSG_GETTABLE, nft.NamedTable(of.table))
			if err != nil {
				return "", err
			}
			if t != nil {
				return of.proxy, nil
			}
		}
		mode, err := iptables(f)
		switch {
		case err != nil:
			return "", err
		case mode != "" && ipvs:
			return "kube-proxy (ipvs)", nil
		case mode != "":
			return "kube-proxy (" + mode + ")", nil
		}
	}
	for _, of := range []struct{ device, proxy string }{{"kube-dummy-if", "kube-router"}, {"cilium_host", Cilium}, {"ovn-k8s-mp0", "OVN-Kubernetes"}} {
		if hasDevice(of.device) {
			return of.proxy, nil
		}
	}
	return Unknown, nil
}

// iptables names the mode by the back end of iptables whose table nat has kube-proxy's chain; empty: neither has it.
func iptables(f decision.Family) (string, error) {
	c, err := nft.Get(nft.Family(f), unix.NFT_MSG_GETCHAIN, nft.NamedChain("nat", chain))
	if c != nil || err != nil {
		return "iptables", err
	}
	chains, err := xtables.Chains(f, "nat")
	if slices.ContainsFunc(chains, func(c *xtables.Chain) bool { return c.Name == chain }) {
		return "iptables-legacy", nil
	}
	return "", err
}

func hasDevice(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}

// ruleBuffer is how many bytes of notifications may wait. Programs write all rules at once.
const ruleBuffer = 8 << 20

// Rules receives the changes of kube-proxy's rules: which endpoints the chain of a service port leads to.
type Rules struct {
	events *nft.Listener
	// maps are the data of the elements of the maps of rules in mode nftables, of those made since the beginning: to read the others
	// takes seconds with 10,000 Services. The kernel does not notify of the elements of a map that it deletes with its rule.
	maps map[place][]string
	// links are what the transaction has done so far, until the notification of the ruleset's new generation, and unknown the
	// chains that lost rules whose maps are not known.
	links   map[link]done
	unknown map[place]bool
	// partial: notifications of the transaction were dropped, so nothing follows from the others.
	partial bool
}

// place is a map or a chain.
type place struct {
	family uint8 // NFPROTO_...
	name   string
}

// link is a way from the chain of a service port to an endpoint.
type link struct {
	chain    place
	endpoint string
}

// done is what a transaction did to the rules of a link: both, if it replaced them.
type done struct{ added, removed bool }

// OpenRules begins to receive changes of kube-proxy's rules in the calling thread's network namespace. It needs
// CAP_NET_ADMIN, to join the multicast group, and writes nothing. Only nftables notifies: the legacy back end of iptables
// does not.
func OpenRules() (*Rules, error) {
	events, err := nft.Listen(ruleBuffer)
	if err != nil {
		return nil, err
	}
	return newRules(events), nil
}

func newRules(events *nft.Listener) *Rules {
	return &Rules{events: events, maps: make(map[place][]string), links: make(map[link]done), unknown: make(map[place]bool)}
}

// A Receiver is told what changes. An endpoint is the name of its chain in mode iptables, and [decision.NFTablesEndpoint] in mode
// nftables. The time is that of the kernel's notification.
type Receiver interface {
	// RuleChanged: the chain of a service port leads to an endpoint since now, or not any more.
	RuleChanged(chain, endpoint string, leads bool, at time.Time)
	// RulesReplaced: where the chain led before is not known; since now it leads to these endpoints of the address family.
	RulesReplaced(chain string, f decision.Family, endpoints []string, at time.Time)
	// RulesMissed: the kernel dropped notifications.
	RulesMissed()
}

// Run reports the changes of each transaction until the context ends, and closes r.
func (r *Rules) Run(ctx context.Context, to Receiver) error {
	err := r.events.Run(ctx, func(e nft.Event) { r.take(e, time.Now(), to) }, func() { r.missed(to) })
	return errors.Join(err, r.events.Close())
}

// missed forgets what notifications that were dropped may have changed.
func (r *Rules) missed(to Receiver) {
	to.RulesMissed()
	clear(r.maps)
	r.partial = true
}

// take takes a notification.
func (r *Rules) take(e nft.Event, now time.Time, to Receiver) {
	switch e.Kind {
	case unix.NFT_MSG_NEWGEN: // the transaction ends
		if !r.partial {
			r.report(now, to)
		}
		r.links, r.unknown, r.partial = make(map[link]done), make(map[place]bool), false
	case unix.NFT_MSG_NEWSETELEM:
		r.fill(e)
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		// As an exception, notifications of deleted rules are complete (nf_tables_api.c, nf_tables_fill_rule_info).
		rule := nft.RuleOf(e.Attributes)
		if !serviceChain(rule.Table, rule.Chain) {
			return
		}
		from := place{e.Family, rule.Chain}
		for _, x := range rule.Expressions {
			switch x.Name {
			case "immediate":
				r.note(e.Kind, from, x.Jump())
			case "lookup":
				of := place{e.Family, nft.Parse(x.Data).Text(unix.NFTA_LOOKUP_SET)}
				elements, known := r.maps[of]
				for _, data := range elements {
					r.note(e.Kind, from, data)
				}
				if e.Kind == unix.NFT_MSG_DELRULE {
					delete(r.maps, of) // the transaction may use its name again
					r.unknown[from] = r.unknown[from] || !known && ofRule(rule.Table, of.name)
				}
			}
		}
	}
}

// note notes that a rule leads from a chain to an endpoint, if data is one: see [endpoint].
func (r *Rules) note(kind int, chain place, data string) {
	l := link{chain, endpoint(data)}
	if l.endpoint == "" {
		return
	}
	d := r.links[l]
	d.added, d.removed = d.added || kind == unix.NFT_MSG_NEWRULE, d.removed || kind == unix.NFT_MSG_DELRULE
	r.links[l] = d
}

// report reports what the transaction did.
func (r *Rules) report(now time.Time, to Receiver) {
	leads := make(map[place][]string)
	for l, d := range r.links {
		switch {
		case r.unknown[l.chain]:
			if d.added {
				leads[l.chain] = append(leads[l.chain], l.endpoint)
			}
		case d.added != d.removed:
			to.RuleChanged(l.chain.name, l.endpoint, d.added, now)
		}
	}
	for chain, unknown := range r.unknown {
		if unknown {
			f := decision.IPv4
			if chain.family == unix.NFPROTO_IPV6 {
				f = decision.IPv6
			}
			to.RulesReplaced(chain.name, f, leads[chain], now)
		}
	}
}

// fill notes elements of a map.
func (r *Rules) fill(e nft.Event) {
	m := place{e.Family, e.Text(unix.NFTA_SET_ELEM_LIST_SET)}
	if ofRule(e.Text(unix.NFTA_SET_ELEM_LIST_TABLE), m.name) {
		nft.EachElement(e.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_, data []byte) { r.maps[m] = append(r.maps[m], string(data)) })
	}
}

// ofRule reports whether a map of kube-proxy belongs to a rule: nft gives it this name, and the kernel a number.
func ofRule(table, name string) bool {
	return table == decision.NFTablesTable && strings.HasPrefix(name, "__map")
}

// serviceChain reports whether a chain balances over endpoints of a service port, in kube-proxy's mode iptables or nftables.
func serviceChain(table, chain string) bool {
	switch table {
	case "nat":
		return strings.HasPrefix(chain, "KUBE-SVC-") || strings.HasPrefix(chain, "KUBE-SVL-")
	case decision.NFTablesTable:
		return strings.HasPrefix(chain, "service-") || strings.HasPrefix(chain, "local-")
	}
	return false
}

// endpoint names an endpoint, as Run reports it, by its chain or by its address and port as nftables concatenates them;
// empty: it is none. Endpoints have chains in mode iptables, and in mode nftables before Kubernetes 1.36 or with session
// affinity.
func endpoint(data string) string {
	if strings.HasPrefix(data, "KUBE-SEP-") {
		return data
	}
	if n := len(data) - 4; n == 4 || n == 16 {
		addr, _ := netip.AddrFromSlice([]byte(data[:n]))
		return decision.NFTablesEndpoint(netip.AddrPortFrom(addr, uint16(data[n])<<8|uint16(data[n+1])))
	}
	_, name, _ := strings.Cut(data, "__")
	return name
}
