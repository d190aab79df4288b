package bundle

import "net/netip"

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
