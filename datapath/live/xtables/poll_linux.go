package xtables

import (
	"hash/maphash"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Poll notices changes of a table, of both families, for which the kernel sends no events. It
// remembers the rules by a hash, without their counters.
type Poll struct {
	name string
	seed maphash.Seed
	last uint64
}

// NewPoll makes a Poll of the table of that name.
func NewPoll(name string) *Poll { return &Poll{name: name, seed: maphash.MakeSeed()} }

// Changed reports whether the rules in the calling thread's network namespace differ from those of
// the previous call. Rules that cannot be read count as changed: the next read reports the error.
func (p *Poll) Changed() bool {
	var h maphash.Hash
	h.SetSeed(p.seed)
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		t, err := ReadLoaded(f, p.name)
		if err != nil {
			return true
		}
		if t != nil {
			_ = h.WriteByte(byte(f))
			_, _ = h.Write(t.Fingerprint())
		}
	}
	now := h.Sum64()
	differs := now != p.last
	p.last = now
	return differs
}
