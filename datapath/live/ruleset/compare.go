package ruleset

import (
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Comparison compares the kernel's tables with the expected ones.
type Comparison struct {
	// Chains, Rules and Elements are what the kernel has, without the elements that it adds to sets
	// itself.
	Chains, Rules, Elements int
	// Differences are in words; none: the kernel's tables are as expected.
	Differences []string
}

// Compare reads the kernel's tables and all elements of their sets, and compares them with those for
// the table. Unlike [Ruleset.Audit] it always reads everything, and repairs nothing.
func (r *Ruleset) Compare(t *decision.Table) (Comparison, error) {
	if r.loaded[0] == nil {
		return Comparison{}, fmt.Errorf("nftables tables %s are not loaded completely: the daemon loads them again", r.tables)
	}
	d, err := r.compare(t)
	if err != nil {
		return Comparison{}, fmt.Errorf("read nftables tables %s: %w", r.tables, err)
	}
	d.size.Differences = d.found
	return d.size, nil
}

// count adds what the kernel has of a table, without the elements of its sets.
func (c *Comparison) count(s *state) {
	c.Chains += len(s.chains)
	for _, ch := range s.chains {
		c.Rules += len(ch.rules)
	}
}
