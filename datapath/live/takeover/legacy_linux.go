package takeover

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// findLegacy reads the tables of the legacy back end. Reading a table makes the kernel load it, so
// only loaded ones are read.
func (l *Rules) findLegacy() error {
	for _, f := range families {
		for _, name := range tableNames {
			_, t, err := readLegacy(f, name)
			if err != nil {
				return fmt.Errorf("%s: %w", xtables.Place{Backend: xtables.Legacy, Family: f, Table: name}, err)
			}
			if t != nil {
				l.add(t)
			}
		}
	}
	return nil
}

// readLegacy reads a table, with the parts that plan uses; nil: it is not loaded.
func readLegacy(f decision.Family, name string) (*xtables.Table, *table, error) {
	b, err := xtables.ReadLoaded(f, name)
	if b == nil || err != nil {
		return nil, nil, changedOr(err)
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
	old, t, err := readLegacy(r.table.Family, r.table.Table)
	if t == nil || err != nil {
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
	if err = next.Replace(); errors.Is(err, unix.EAGAIN) {
		return errors.Join(errChanged, err)
	}
	return err
}
