// Package collect makes bundles on a node: what the node does with packets, and the packets and connection entries of
// one flow.
package collect

import (
	_ "embed"
	"net/netip"
	"time"
)

// Script collects what a bundle has of a node, on machines without nfqproxy, too: a script for any POSIX shell.
//
//go:embed collect.sh
var Script string

// Source selects what is collected on a node.
type Source struct {
	// Pairs are the pairs of addresses whose packets and connection entries are of interest, in either direction.
	Pairs []Pair
	// Capture is how long packets are captured.
	Capture time.Duration
	// Packets is how many packets are kept; 0: 10,000. Those after them are counted only.
	Packets int
}

// Pair is a pair of addresses, of one family.
type Pair struct{ A, B netip.Addr }

// Has reports whether the pair is of these addresses, in either order.
func (p Pair) Has(a, b netip.Addr) bool { return p.A == a && p.B == b || p.A == b && p.B == a }
