package iptables

import "io"

// Backend is one of the two places in the kernel that iptables writes rules to. A host may have
// rules in both at once; its packets pass both.
type Backend uint8

// The back ends.
const (
	BackendUnknown Backend = iota
	BackendLegacy          // ip_tables, ip6_tables
	BackendNFT             // nf_tables
)

var backendNames = []string{"unknown", "iptables-legacy", "iptables-nft"}

func (b Backend) String() string { return backendNames[b] }

// Input is what a file with rules holds.
type Input struct {
	// Dumps are the rule sets of the file, each of one family and one back end, in their order.
	Dumps []*Dump
	// Notes say what was inferred, and what was ignored, by line.
	Notes []Note
}

// ReadInput reads rules as people bring them: dumps, listings, parts of them, and several after one another.
func ReadInput(r io.Reader, options Options) (*Input, error) {
	d, err := Read(r, options)
	if err != nil {
		return nil, err
	}
	return &Input{Dumps: []*Dump{d}}, nil
}
