// Package nft reads the objects of nftables over netlink, as raw messages: rules of other programs
// may have expressions that no library supports.
package nft

import (
	"errors"
	"slices"
)

// ErrChanged reports that the rules kept changing while they were read.
var ErrChanged = errors.New("the rules change faster than they can be read")

// Repair is what an audit of nftables rules found and repaired.
type Repair struct {
	// Found are the differences, in words; none: the rules were correct.
	Found []string
	// Reinstalled: all rules were loaded again. Packets that waited in queues are lost.
	Reinstalled bool
	// Recounted: the rules count from 0 again.
	Recounted bool
}

// None reports that there was nothing to repair.
func (r *Repair) None() bool { return len(r.Found) == 0 }

// Find records differences, each once. Empty sets after a reinstallation are no difference.
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
