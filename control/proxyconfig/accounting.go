package proxyconfig

import (
	"errors"
	"fmt"
)

// FlowAccounting has the kernel count the packets and bytes of connections and note when
// they begin and end, in the calling thread's network namespace. What was connected before
// stays without. The changes and the error are as those of [Conntrack.Apply]; the error
// says also what will not be known.
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
