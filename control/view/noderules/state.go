package noderules

import "net/netip"

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
