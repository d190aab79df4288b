package ruleset

import (
	"errors"
	"fmt"
)

// LeaveEstablished is [Ruleset.Remove] for a namespace with translated flows that are to go
// on: it leaves a table of the same name that has what the kernel needs for them, and no
// more. New flows meet no rule of ours. [Cleanup] removes the rest, the next [Install]
// replaces it.
func (r *Ruleset) LeaveEstablished() error {
	r.conn.AddTable(r.table) // so that there is one to delete
	r.conn.DelTable(r.table)
	r.conn.AddTable(r.table)
	r.addChains(r.spec.established())
	if err := r.conn.Flush(); err != nil {
		err = fmt.Errorf("reduce nftables table inet %s to what established flows need: %w", TableName, err)
		return errors.Join(err, r.Remove())
	}
	return r.Close()
}
