package ruleset

import (
	"errors"
	"fmt"
)

// LeaveEstablished is [Ruleset.Remove] for a namespace with translated flows that must continue:
// it leaves a table of the same name with only the rules that the kernel needs for them. New flows
// match no rule of ours. [Cleanup] removes the table, the next [Install] replaces it.
func (r *Ruleset) LeaveEstablished() error {
	r.conn.AddTable(r.table) // so that there is a table to delete
	r.conn.DelTable(r.table)
	r.conn.AddTable(r.table)
	r.addChains(r.spec.established())
	if err := r.conn.Flush(); err != nil {
		err = fmt.Errorf("reduce nftables table inet %s to what established flows need: %w", TableName, err)
		return errors.Join(err, r.Remove())
	}
	return r.Close()
}
