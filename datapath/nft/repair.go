package nft

import (
	"errors"
	"slices"
)

// ErrChanged says that the rules changed over and over while they were read.
var ErrChanged = errors.New("the rules change faster than they can be read")

// Repair is what an audit of nftables rules found and mended.
type Repair struct {
	// Found are the differences, in words; none: the rules were as they should be.
	Found []string
	// Reinstalled: everything was loaded anew. Packets that waited in queues are lost.
	Reinstalled bool
	// Recounted: the rules count from 0 again.
	Recounted bool
}

// None reports that there was nothing to repair.
func (r *Repair) None() bool { return len(r.Found) == 0 }

// Find notes differences, each once. That rules which were loaded anew have empty sets is
// none.
func (r *Repair) Find(differences []string) {
	if r.Reinstalled {
		return
	}
	for _, d := range differences {
		if !slices.Contains(r.Found, d) {
			r.Found = append(r.Found, d)
		}
	}
}
