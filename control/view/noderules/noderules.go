// Package noderules reads the firewall rules of the node that this process runs on, as the node's own programs list
// them, and finds by the simulator which of them drop flows that a service proxy has translated.
package noderules

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
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
