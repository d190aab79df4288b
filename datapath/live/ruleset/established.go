package ruleset

import (
	"errors"
	"fmt"
)

// LeaveEstablished is [Ruleset.Remove] for a namespace with translated flows that must continue: it leaves tables of
// the same name, with only the rules that these flows need. New flows match none of our rules. [Cleanup] removes the
// tables, the next [Install] replaces them.
func (r *Ruleset) LeaveEstablished() error {
	for _, t := range r.tables {
		r.replaceTable(t)
		r.addChains(t, r.spec.established())
	}
	if err := r.run(); err != nil {
		err = fmt.Errorf("reduce nftables tables %s to what established flows need: %w", r.tables, err)
		return errors.Join(err, r.Remove())
	}
	return r.Close()
}
