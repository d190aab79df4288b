package leftovers

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/xtables"
)

// Socket options of ip_tables and, with the same numbers, ip6_tables.
const (
	soSetReplace  = 64 // IPT_SO_SET_REPLACE
	soAddCounters = 65 // IPT_SO_SET_ADD_COUNTERS
)

// Sizes of the structs around the entries, on machines of 64 bits.
const (
	tableNameSize = 32 // XT_TABLE_MAXNAMELEN
	countersAt    = 40 // offset of counters in struct xt_counters_info
	counterSize   = 16 // sizeof(struct xt_counters)
	replaceSize   = 96 // struct ipt_replace
)

// findLegacy looks at the tables of the legacy back end. To ask for a table makes the
// kernel load it, so only those that are there are asked for.
func (l *Leftovers) findLegacy() error {
	for _, f := range families {
		names, err := xtables.Names(f.iptables())
		if err != nil {
			return err
		}
		for _, name := range tableNames {
			if !slices.Contains(names, name) {
				continue
			}
			b, err := readBlob(f, name)
			if err != nil {
				return fmt.Errorf("iptables (legacy), %s, table %s: %w", f, name, err)
			}
			t, err := b.table()
			if err != nil {
				return fmt.Errorf("iptables (legacy), %s, table %s: %w", f, name, err)
			}
			l.add(t)
		}
	}
	return nil
}

// readBlob reads a table.
func readBlob(f family, name string) (*blob, error) {
	t, err := xtables.Read(f.iptables(), name)
	switch {
	case errors.Is(err, xtables.ErrChanged):
		return nil, errChanged
	case err != nil:
		return nil, err
	}
	return &blob{f, *t}, nil
}

// removeLegacy replaces the table by one without what is to be removed, and gives the
// rules that stay their counters back: the same two steps as iptables itself takes.
func (r *removal) removeLegacy() error {
	unlock, err := lockTables()
	if err != nil {
		return err
	}
	defer unlock()
	// Read again under the lock: what was found is past.
	old, err := readBlob(r.table.family, r.table.name)
	if err != nil {
		return err
	}
	t, err := old.table()
	if err != nil {
		return err
	}
	now, _ := t.plan()
	if len(now.chains) == 0 {
		return nil
	}
	next, from, err := old.without(now)
	if err != nil {
		return err
	}
	s, err := xtables.Open(r.table.family.iptables())
	if err != nil {
		return err
	}
	defer s.Close()

	counters := make([]byte, len(old.Entries)*counterSize)
	var pinner runtime.Pinner // the kernel gets the address within another buffer
	defer pinner.Unpin()
	pinner.Pin(&counters[0])
	err = s.Set(soSetReplace, next.replace(len(old.Entries), uint64(uintptr(unsafe.Pointer(&counters[0])))))
	if errors.Is(err, unix.EAGAIN) {
		return errors.Join(errChanged, err)
	}
	if err != nil {
		return err
	}
	if err := s.Set(soAddCounters, next.counters(counters, from)); err != nil {
		return fmt.Errorf("the rules are removed, but the counters of the others begin at zero: %w", err)
	}
	return nil
}

// replace is a struct ipt_replace with the entries. The kernel checks count, the number
// of entries it has, and writes their counters to an address of this process.
func (b *blob) replace(count int, counters uint64) []byte {
	buf := make([]byte, replaceSize, replaceSize+int(b.Size))
	copy(buf[:tableNameSize-1], b.Name)
	byteOrder.PutUint32(buf[32:], b.ValidHooks)
	byteOrder.PutUint32(buf[36:], uint32(len(b.Entries)))
	byteOrder.PutUint32(buf[40:], b.Size)
	for h := range xtables.Hooks {
		byteOrder.PutUint32(buf[44+4*h:], b.HookEntry[h])
		byteOrder.PutUint32(buf[64+4*h:], b.Underflow[h])
	}
	byteOrder.PutUint32(buf[84:], uint32(count))
	byteOrder.PutUint64(buf[88:], counters)
	for _, e := range b.Entries {
		buf = append(buf, e.Raw...)
	}
	return buf
}

// counters is a struct xt_counters_info with the counters of old entries, by the index
// each entry had.
func (b *blob) counters(old []byte, from []int) []byte {
	buf := make([]byte, countersAt, countersAt+len(from)*counterSize)
	copy(buf[:tableNameSize-1], b.Name)
	byteOrder.PutUint32(buf[tableNameSize:], uint32(len(from)))
	for _, i := range from {
		buf = append(buf, old[i*counterSize:(i+1)*counterSize]...)
	}
	return buf
}

// lockPatience is how long another program may hold the lock.
const lockPatience = 10 * time.Second

// lockTables takes the lock by which the programs iptables and iptables-restore keep out
// of each other's way. In a container without it (mount /run/xtables.lock) there is
// only the kernel's own check, that the number of rules has not changed.
func lockTables() (unlock func(), err error) {
	file, err := os.OpenFile("/run/xtables.lock", os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return func() {}, nil
	}
	for until := time.Now().Add(lockPatience); ; time.Sleep(lockPatience / 100) {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if retry := errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR); !retry || time.Now().After(until) {
			break
		}
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("another program holds the lock /run/xtables.lock: %w", err)
	}
	return func() { _ = file.Close() }, nil
}
