// Package noderules reads the firewall rules of the node that this process runs on, as the node's own programs list
// them, and finds by the simulator which of them drop flows that a service proxy has translated.
package noderules

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftrules"
)

// Rules are a node's rules, and what the simulator needs besides.
type Rules struct {
	// Listings are the rules of both back ends of iptables, with their counters.
	Listings []Listing `json:"listings"`
	// Network has the addresses of the node, and the routes that it was read with.
	Network netfilter.Host `json:"network"`
	State   State          `json:"state"`
}

// State is the state of a node's kernel, besides rules, that can stop packets.
type State struct {
	// ReversePath are the devices on which the kernel drops packets whose source it would reach by another one
	// (net.ipv4.conf.*.rp_filter=1), and Filtered how many it has dropped so.
	ReversePath []string `json:"reversePath,omitempty"`
	Filtered    uint64   `json:"filtered,omitempty"`
	Routes      []Route  `json:"routes,omitempty"`
	Delays      []Delay  `json:"delays,omitempty"`
	// Entries are the translated connections of UDP, one of each kind.
	Entries []Entry `json:"entries,omitempty"`
	// Daemons is the number of processes nfqproxyd in this network namespace, and Stopped are those in state T.
	Daemons int   `json:"daemons"`
	Stopped []int `json:"stopped,omitempty"`
}

// Route is the node's own route to an address.
type Route struct {
	To     netip.Addr   `json:"to"`
	Prefix netip.Prefix `json:"prefix,omitzero"` // of the main table's route; zero: none
	Via    netip.Addr   `json:"via,omitzero"`    // the next hop; zero: the address is on the device's network
	Device string       `json:"device,omitempty"`
	// None is the reason why there is none: "blackhole", "unreachable", "prohibit" or "no route"; empty: there is one.
	None string `json:"none,omitempty"`
	// Unresolved: the next hop, or the address itself, does not answer on the device's network.
	Unresolved bool `json:"unresolved,omitempty"`
}

// Delay is a device whose queue makes packets late, or loses some (the kernel's netem).
type Delay struct {
	Device string `json:"device"`
}

// Entry is a kind of translated connections of UDP.
type Entry struct {
	Source      netip.AddrPort `json:"source"` // of one of them
	Destination netip.AddrPort `json:"destination"`
	Endpoint    netip.AddrPort `json:"endpoint"`
	Count       int            `json:"count"`
}

// Machine is the machine of all rules of one family, a service proxy's among them; nil: the node has none.
func (r *Rules) Machine(family iptables.Family) (*netfilter.Machine, error) {
	dumps, err := r.Dumps(family)
	if err != nil || len(dumps) == 0 {
		return nil, err
	}
	return netfilter.New(dumps, nil, &r.Network, netfilter.Options{})
}

// Dumps are the rules of one family, each rule once: tables that iptables lists are not those of nftables.
func (r *Rules) Dumps(family iptables.Family) (dumps []*iptables.Dump, err error) {
	others := tablesOfIptables(r.Listings)
	for i := range r.Listings {
		l := &r.Listings[i]
		var d *iptables.Dump
		switch {
		case strings.TrimSpace(l.Text) == "":
			continue
		case l.Program == NFTables:
			d, err = compile(l.Text, family, func(t *nftables.Table) bool { return others[nameOf(t)] })
		case l.family() == family:
			d, err = l.dump()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.Program, err)
		}
		if d != nil && len(d.Tables) > 0 {
			dumps = append(dumps, d)
		}
	}
	return dumps, nil
}

// NFTables is the program that lists the rules of nftables.
const NFTables = "nft -j list ruleset"

// native are the rules of nftables for one family, without those that iptables-nft writes, and without a service proxy's.
type native struct {
	rules
	doubting *netfilter.Machine // it follows what decides at random, and what is not known
}

// newNative reads the listing for a family. Tables of iptables' names are left out, which are listed by iptables.
func newNative(text string, family iptables.Family, others map[string]bool, network *netfilter.Host) (*native, error) {
	d, err := compile(text, family, func(t *nftables.Table) bool { return others[nameOf(t)] || proxyTable(t.Name) })
	if d == nil {
		return nil, err
	}
	m, err := netfilter.New([]*iptables.Dump{d}, nil, network, netfilter.Options{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", NFTables, err)
	}
	return &native{rules{NFTables, d, m}, m.With(netfilter.Options{Doubts: true})}, nil
}

// compile reads the listing for a family without some of its tables; nil: there are no others.
func compile(text string, family iptables.Family, without func(*nftables.Table) bool) (*iptables.Dump, error) {
	rs, err := nftables.Read(NFTables, strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	rs.Tables = slices.DeleteFunc(rs.Tables, without)
	d, _ := nftrules.Compile(rs, family)
	return d, nil
}

// nameOf is a table's family and name.
func nameOf(t *nftables.Table) string { return string(t.Family) + " " + t.Name }

// proxyTable reports whether a table is a service proxy's, which has decided the flow already.
func proxyTable(name string) bool { return name == "nfqproxy" || name == "kube-proxy" }

// find finds what drops a flow or its replies; nil: nothing does, as far as can be known.
func (n *native) find(f *Flow) *Dropped {
	p, begin := n.first(f)
	ways := allWays(n.doubting, p, begin)
	if d := n.dropped(ways); d != nil {
		d.Full = n.fullSet(p, begin)
		return d
	}
	for i := range ways {
		if answer, ok := ways[i].Answer(); ok {
			d := n.dropped(allWays(n.doubting, answer, func() *netfilter.State { return n.after(p, begin) }))
			if d != nil {
				d.Reply = true
			}
			return d
		}
	}
	return nil
}

// dropped is the drop at the end of all ways, or of some where chance or the number of packets decides; nil: there is none, or
// it depends on what is not known.
func (n *native) dropped(ways []netfilter.Way) *Dropped {
	var found *Drop
	all := true
	for i := range ways {
		w := &ways[i]
		drop := ended(w.Result)
		switch {
		case w.Verdict == netfilter.Stopped, slices.ContainsFunc(w.Doubts, func(d netfilter.Doubt) bool { return !d.Passing() }):
			return nil
		case drop == nil:
			all = false
		default:
			found = drop
		}
	}
	if found == nil {
		return nil
	}
	d := &Dropped{Drop: found, Program: "nft", Sometimes: !all, Packets: n.packets(found), Uncounted: true}
	if found.Rule == nil {
		d.Text = "the policy drop of chain " + found.Chain
		return d
	}
	d.Uncounted = found.Rule.Counters == nil
	d.Text = "rule " + counts.ReplaceAllString(found.Rule.String(), "counter")
	d.Remove = fmt.Sprintf("nft delete rule %s %s handle %d", found.Table, found.Chain, found.Rule.Handle)
	return d
}

// counts are those in the text of a rule, which the finding has.
var counts = regexp.MustCompile(`counter packets [0-9]+ bytes [0-9]+`)

// fullSet is the set without room that a packet met; empty: none.
func (n *native) fullSet(p iptables.Packet, begin func() *netfilter.State) string {
	for _, w := range allWays(n.machine, p, begin) {
		for i := range w.Steps {
			if strings.HasPrefix(w.Steps[i].Text, nftrules.FullSet) {
				return w.Steps[i].Text
			}
		}
	}
	return ""
}
