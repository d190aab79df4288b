package leftovers

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Socket options of ip_tables and, with the same numbers, ip6_tables.
const (
	soSetReplace  = 64 // IPT_SO_SET_REPLACE
	soAddCounters = 65 // IPT_SO_SET_ADD_COUNTERS
	soGetInfo     = 64 // IPT_SO_GET_INFO
	soGetEntries  = 65 // IPT_SO_GET_ENTRIES
)

// Sizes of the structs around the entries, on machines of 64 bits.
const (
	tableNameSize = 32 // XT_TABLE_MAXNAMELEN
	infoSize      = 84 // struct ipt_getinfo
	entriesAt     = 40 // offset of entrytable in struct ipt_get_entries, of counters in struct xt_counters_info
	replaceSize   = 96 // struct ipt_replace
)

var errWordSize = errors.New("rules of iptables' legacy back end can be changed on machines of 64 bits only: run kube-proxy --cleanup")

// findLegacy looks at the tables of the legacy back end. To ask for a table makes the
// kernel load it, so only those that are there are asked for.
func (l *Leftovers) findLegacy() error {
	for _, f := range families {
		names, err := legacyTables(f)
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

// legacyTables lists the tables that are loaded in this namespace.
func legacyTables(f family) ([]string, error) {
	path := "/proc/thread-self/net/ip_tables_names"
	if f == ipv6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the module is not loaded
	}
	var names []string
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		names = append(names, lines.Text())
	}
	return names, err
}

// tableSocket is a socket by which the kernel is asked about its tables. Any Internet
// socket will do.
type tableSocket struct {
	fd    int
	level uintptr
}

func openTableSocket(f family) (tableSocket, error) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		return tableSocket{}, errWordSize
	}
	domain, level := unix.AF_INET, uintptr(unix.SOL_IP)
	if f == ipv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return tableSocket{fd, level}, os.NewSyscallError("socket", err)
}

func (s tableSocket) close() { _ = unix.Close(s.fd) }

func (s tableSocket) get(option uintptr, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), s.level, option, uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	return result("getsockopt", errno)
}

func (s tableSocket) set(option uintptr, buf []byte) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(s.fd), s.level, option, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0)
	return result("setsockopt", errno)
}

func result(call string, errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return os.NewSyscallError(call, errno)
}

// readBlob reads a table. It is read again where it grows or shrinks in between.
func readBlob(f family, name string) (*blob, error) {
	s, err := openTableSocket(f)
	if err != nil {
		return nil, err
	}
	defer s.close()
	for range maxAttempts {
		info := make([]byte, infoSize)
		copy(info[:tableNameSize-1], name)
		if err := s.get(soGetInfo, info); err != nil {
			return nil, err
		}
		b := &blob{family: f, name: name, validHooks: byteOrder.Uint32(info[32:])}
		for h := range hooks {
			b.hookEntry[h] = byteOrder.Uint32(info[36+4*h:])
			b.underflow[h] = byteOrder.Uint32(info[56+4*h:])
		}
		size := byteOrder.Uint32(info[80:])
		buf := make([]byte, entriesAt+int(size))
		copy(buf[:tableNameSize-1], name)
		byteOrder.PutUint32(buf[tableNameSize:], size)
		switch err := s.get(soGetEntries, buf); {
		case errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return nil, err
		}
		return b, b.parseEntries(buf[entriesAt:])
	}
	return nil, errChanged
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
	s, err := openTableSocket(r.table.family)
	if err != nil {
		return err
	}
	defer s.close()

	counters := make([]byte, len(old.entries)*counterSize)
	var pinner runtime.Pinner // the kernel gets the address within another buffer
	defer pinner.Unpin()
	pinner.Pin(&counters[0])
	err = s.set(soSetReplace, next.replace(len(old.entries), uint64(uintptr(unsafe.Pointer(&counters[0])))))
	if errors.Is(err, unix.EAGAIN) {
		return errors.Join(errChanged, err)
	}
	if err != nil {
		return err
	}
	if err := s.set(soAddCounters, next.counters(counters, from)); err != nil {
		return fmt.Errorf("the rules are removed, but the counters of the others begin at zero: %w", err)
	}
	return nil
}

// replace is a struct ipt_replace with the entries. The kernel checks count, the number
// of entries it has, and writes their counters to an address of this process.
func (b *blob) replace(count int, counters uint64) []byte {
	buf := make([]byte, replaceSize, replaceSize+int(b.size))
	copy(buf[:tableNameSize-1], b.name)
	byteOrder.PutUint32(buf[32:], b.validHooks)
	byteOrder.PutUint32(buf[36:], uint32(len(b.entries)))
	byteOrder.PutUint32(buf[40:], b.size)
	for h := range hooks {
		byteOrder.PutUint32(buf[44+4*h:], b.hookEntry[h])
		byteOrder.PutUint32(buf[64+4*h:], b.underflow[h])
	}
	byteOrder.PutUint32(buf[84:], uint32(count))
	byteOrder.PutUint64(buf[88:], counters)
	for _, e := range b.entries {
		buf = append(buf, e.raw...)
	}
	return buf
}

// counters is a struct xt_counters_info with the counters of old entries, by the index
// each entry had.
func (b *blob) counters(old []byte, from []int) []byte {
	buf := make([]byte, entriesAt, entriesAt+len(from)*counterSize)
	copy(buf[:tableNameSize-1], b.name)
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
