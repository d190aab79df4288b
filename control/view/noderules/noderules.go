// Package noderules reads the firewall rules of the node that this process runs on, as the node's own programs list
// them, and finds by the simulator which of them drop flows that a service proxy has translated.
package noderules

import (
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Rules are a node's rules, and what the simulator needs besides.
type Rules struct {
	// Listings are the rules of both back ends of iptables, with their counters.
	Listings []Listing `json:"listings"`
	// Network has the addresses of the node, and the routes that it was read with.
	Network netfilter.Host `json:"network"`
	State   State          `json:"state"`
}
