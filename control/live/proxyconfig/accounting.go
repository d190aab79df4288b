package proxyconfig

import (
	"errors"
	"fmt"
)

// FlowAccounting enables packet and byte counters and timestamps of conntrack entries, in the
// calling thread's network namespace. Existing entries have none. The changes and the error are as
// those of [Conntrack.Apply]; the error also names the missing data.
func FlowAccounting(files Files) (changes []string, err error) {
	var errs []error
	for _, s := range []struct{ name, without string }{
		{"nf_conntrack_acct", "packets and bytes of flows are not counted"},
		{"nf_conntrack_timestamp", "durations of flows are not known"},
	} {
		a := applier{files: files}
		if !a.set(netfilterDir+s.name, 1, true) {
			errs = append(errs, fmt.Errorf("%s: %w", s.without, errors.Join(a.errs...)))
		}
		changes = append(changes, a.changes...)
	}
	return changes, errors.Join(errs...)
}
