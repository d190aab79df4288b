package takeover

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/xtables"
)

// findLegacy reads the tables of the legacy back end. Reading a table makes the kernel load it, so
// only loaded ones are read.
func (l *Rules) findLegacy() error {
	for _, f := range families {
		names, err := xtables.Names(f)
		if err != nil {
			return err
		}
		for _, name := range tableNames {
			if !slices.Contains(names, name) {
				continue
			}
			_, t, err := readLegacy(f, name)
			if err != nil {
				return fmt.Errorf("iptables (legacy), %s, table %s: %w", f, name, err)
			}
			l.add(t)
		}
	}
	return nil
}

// readLegacy reads a table, with the parts that plan uses.
func readLegacy(f decision.Family, name string) (*xtables.Table, *table, error) {
	b, err := xtables.Read(f, name)
	switch {
	case errors.Is(err, xtables.ErrChanged):
		return nil, nil, errChanged
	case err != nil:
		return nil, nil, err
	}
	t, err := legacyTable(b)
	return b, t, err
}

// removeLegacy replaces the table by one without what is to be removed.
func (r *removal) removeLegacy() error {
	unlock, err := xtables.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	// Read again under the lock: the table may have changed.
	old, t, err := readLegacy(r.table.family, r.table.name)
	if err != nil {
		return err
	}
	now, _ := t.plan()
	if len(now.chains) == 0 {
		return nil
	}
	next, err := without(old, now)
	if err != nil {
		return err
	}
	if err := next.Replace(); errors.Is(err, unix.EAGAIN) {
		return errors.Join(errChanged, err)
	} else if err != nil {
		return err
	}
	return nil
}
