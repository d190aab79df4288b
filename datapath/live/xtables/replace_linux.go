package xtables

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Socket options of ip_tables and, with the same numbers, ip6_tables.
const (
	soSetReplace  = 64 // IPT_SO_SET_REPLACE
	soAddCounters = 65 // IPT_SO_SET_ADD_COUNTERS
)

// Sizes of the structs around the entries, on machines of 64 bits.
const (
	countersAt  = 40 // offset of counters in struct xt_counters_info
	replaceSize = 96 // struct ipt_replace
)

// Edit changes a table of the calling thread's network namespace as a whole, under the lock of the iptables programs. edit
// changes the draft of the table, and reports whether it did; a table that is not loaded is not edited. If another program
// changed the table meanwhile without the lock, [nft.IsChanged] is true of the error.
func Edit(f decision.Family, name string, edit func(*Table, *Draft) (changed bool, err error)) error {
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	t, err := ReadLoaded(f, name)
	if t == nil || err != nil {
		return err
	}
	d, err := t.Draft()
	if err != nil {
		return err
	}
	if changed, err := edit(t, d); !changed || err != nil {
		return err
	}
	return d.load()
}

// load loads the draft into the kernel, and restores the counters of the rules that stay: the same two
// steps as iptables itself. If the number of rules has changed since the table was read, the error is
// EAGAIN; the kernel does not notice other changes, so the table must be read and replaced under one lock.
func (d *Draft) load() error {
	next, from, err := d.Table()
	if err != nil {
		return err
	}
	s, err := open(d.old.Family)
	if err != nil {
		return err
	}
	defer s.close()
	counters := make([]byte, len(d.old.Entries)*counterSize)
	var pinner runtime.Pinner // the kernel gets the address within another buffer
	defer pinner.Unpin()
	pinner.Pin(&counters[0])
	if err := s.set(soSetReplace, next.replace(len(d.old.Entries), uint64(uintptr(unsafe.Pointer(&counters[0]))))); err != nil {
		return err
	}
	if err := s.set(soAddCounters, next.counters(counters, from)); err != nil {
		return fmt.Errorf("the rules are changed, but the counters of the others begin at zero: %w", err)
	}
	return nil
}

// replace is a struct ipt_replace with the entries. The kernel checks count, the number
// of entries it has, and writes their counters to an address of this process.
func (t *Table) replace(count int, counters uint64) []byte {
	buf := make([]byte, replaceSize, replaceSize+int(t.Size))
	copy(buf[:tableNameSize-1], t.Name)
	byteOrder.PutUint32(buf[32:], t.ValidHooks)
	byteOrder.PutUint32(buf[36:], uint32(len(t.Entries)))
	byteOrder.PutUint32(buf[40:], t.Size)
	for h := range hooks {
		byteOrder.PutUint32(buf[44+4*h:], t.HookEntry[h])
		byteOrder.PutUint32(buf[64+4*h:], t.Underflow[h])
	}
	byteOrder.PutUint32(buf[84:], uint32(count))
	byteOrder.PutUint64(buf[88:], counters)
	for _, e := range t.Entries {
		buf = append(buf, e.Raw...)
	}
	return buf
}

// counters is a struct xt_counters_info with the counters of old entries, by the index
// each entry had.
func (t *Table) counters(old []byte, from []int) []byte {
	buf := make([]byte, countersAt, countersAt+len(from)*counterSize)
	copy(buf[:tableNameSize-1], t.Name)
	byteOrder.PutUint32(buf[tableNameSize:], uint32(len(from)))
	for _, i := range from {
		if i < 0 {
			buf = append(buf, make([]byte, counterSize)...)
			continue
		}
		buf = append(buf, old[i*counterSize:(i+1)*counterSize]...)
	}
	return buf
}

// lockTimeout is how long another program may hold the lock.
const lockTimeout = 10 * time.Second

// lock takes the lock of the programs iptables and iptables-restore. In a container without it
// (mount /run/xtables.lock) there is only the kernel's own check that the number of rules has not
// changed.
func lock() (unlock func(), err error) {
	file, err := os.OpenFile("/run/xtables.lock", os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return func() {}, nil
	}
	for until := time.Now().Add(lockTimeout); ; time.Sleep(lockTimeout / 100) {
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
