package bundle

import (
	"net/netip"
	"time"
)

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

// Entry is a connection entry of the kernel.
type Entry struct {
	Protocol uint8  `json:"protocol"` // IANA number
	Original Tuple  `json:"original"`
	Reply    Tuple  `json:"reply"`
	State    string `json:"state,omitempty"` // of a TCP connection or SCTP association
	// Answered: a reply was seen. Assured: the entry is not evicted early.
	Answered bool   `json:"answered"`
	Assured  bool   `json:"assured"`
	Mark     uint32 `json:"mark"`
	Zone     uint16 `json:"zone"`
	Timeout  uint32 `json:"timeout"` // remaining, in seconds
	// The packets in both directions; nil: accounting is off.
	Sent     *uint64 `json:"sentPackets,omitempty"`
	Received *uint64 `json:"receivedPackets,omitempty"`
}

// Tuple is one direction of a connection.
type Tuple struct {
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
}
