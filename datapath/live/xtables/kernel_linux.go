package xtables

import (
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// Socket options of ip_tables and, with the same numbers, ip6_tables.
const (
	soGetInfo     = 64 // IPT_SO_GET_INFO
	soGetEntries  = 65 // IPT_SO_GET_ENTRIES
	soSetReplace  = 64 // IPT_SO_SET_REPLACE
	soAddCounters = 65 // IPT_SO_SET_ADD_COUNTERS
)

// Sizes of the structs around the entries, on machines of 64 bits.
const (
	tableNameSize = 32 // XT_TABLE_MAXNAMELEN
	infoSize      = 84 // struct ipt_getinfo
	entriesAt     = 40 // offset of entrytable in struct ipt_get_entries
	countersAt    = 40 // offset of counters in struct xt_counters_info
	replaceSize   = 96 // struct ipt_replace
)

// maxAttempts is how often a table is read again if it grows or shrinks meanwhile.
const maxAttempts = 5

// Names lists the tables that are loaded in the calling thread's network namespace.
func Names(f decision.Family) ([]string, error) {
	path := "/proc/thread-self/net/ip_tables_names"
	if f == decision.IPv6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the module is not loaded
	}
	return strings.Fields(string(data)), err
}

// socket is a socket for requests about the kernel's tables in the network namespace in which it
// was opened. Any Internet socket works.
type socket struct{ fd, level int }

// open opens a socket in the calling thread's network namespace.
func open(f decision.Family) (socket, error) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		return socket{}, errors.New("rules of iptables' legacy back end are read on machines of 64 bits only")
	}
	domain, level := unix.AF_INET, unix.SOL_IP
	if f == decision.IPv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return socket{fd, level}, os.NewSyscallError("socket", err)
}

func (s socket) close() { _ = unix.Close(s.fd) }

// get is getsockopt; buf is what the kernel reads and writes.
func (s socket) get(option int, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(s.level), uintptr(option), uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return os.NewSyscallError("getsockopt", errno)
	}
	return nil
}

// set is setsockopt.
func (s socket) set(option int, buf []byte) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptString(s.fd, s.level, option, string(buf)))
}

// Chains reads the chains of a table of the calling thread's network namespace, the built-in ones first; nil: the table is not
// loaded. It needs CAP_NET_ADMIN. The error is [nft.ErrChanged] if the table keeps changing meanwhile.
func Chains(f decision.Family, name string) ([]*Chain, error) {
	t, err := read(f, name)
	if t == nil || err != nil {
		return nil, err
	}
	return t.Chains()
}

// read reads a table; nil: it is not loaded. To ask for one that is not would make the kernel load it.
func read(f decision.Family, name string) (*Table, error) {
	names, err := Names(f)
	if err != nil || !slices.Contains(names, name) {
		return nil, err
	}
	s, err := open(f)
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
		t := &Table{Family: f, Name: name, ValidHooks: byteOrder.Uint32(info[32:])}
		for h := range hooks {
			t.HookEntry[h] = byteOrder.Uint32(info[36+4*h:])
			t.Underflow[h] = byteOrder.Uint32(info[56+4*h:])
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
		return t, t.ParseEntries(buf[entriesAt:])
	}
	return nil, nft.ErrChanged
}

// Edit changes a table of the calling thread's network namespace as a whole, under the lock of the iptables programs. edit
// changes the draft of the table, and reports whether it did; a table that is not loaded is not edited. If another program
// changed the table meanwhile without the lock, [nft.IsChanged] is true of the error.
func Edit(f decision.Family, name string, edit func(*Draft) (changed bool)) error {
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	t, err := read(f, name)
	if t == nil || err != nil {
		return err
	}
	d, err := t.Draft()
	if err != nil || !edit(d) {
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

// Poll notices changes of a table, of both families, for which the kernel sends no events. It
// remembers the rules by a hash, without their counters.
type Poll struct {
	name string
	seed maphash.Seed
	last uint64
}

// NewPoll makes a Poll of the table of that name.
func NewPoll(name string) *Poll { return &Poll{name: name, seed: maphash.MakeSeed()} }

// Changed reports whether the rules in the calling thread's network namespace differ from those of
// the previous call. Rules that cannot be read count as changed: the next read reports the error.
func (p *Poll) Changed() bool {
	var h maphash.Hash
	h.SetSeed(p.seed)
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		t, err := read(f, p.name)
		if err != nil {
			return true
		}
		if t == nil {
			continue
		}
		_ = h.WriteByte(byte(f))
		for _, e := range t.Entries { // all but the counters, the last field of the header
			header := layoutOf(f).header
			_, _ = h.Write(e.Raw[:header-counterSize])
			_, _ = h.Write(e.Raw[header:])
		}
	}
	now := h.Sum64()
	differs := now != p.last
	p.last = now
	return differs
}

// ExtensionOf reads the attributes of an expression "match" or, which are the same, "target" of iptables' nft back end
// (nft_compat.c).
func ExtensionOf(a nft.Attributes) Extension {
	return Extension{Name: a.Text(unix.NFTA_MATCH_NAME), Revision: uint8(a.Uint32(unix.NFTA_MATCH_REV)), Data: a.Get(unix.NFTA_MATCH_INFO)}
}

// Of linux/netfilter/ipset/ip_set.h.
const (
	soIPSet       = 83 // SO_IP_SET
	opGetByIndex  = 7  // IP_SET_OP_GET_BYINDEX
	setProtocol   = 6  // IPSET_PROTOCOL_MIN
	setNameSize   = 32 // IPSET_MAXNAMELEN
	setRequestLen = 40 // struct ip_set_req_get_set
)

// SetNames reads the names of the ipsets of the calling thread's network namespace, of both
// families. It needs CAP_NET_ADMIN. A name that cannot be read is empty.
func SetNames(index uint16) (name string, ok bool) {
	s, err := open(decision.IPv4)
	if err != nil {
		return "", false
	}
	defer s.close()
	request := make([]byte, setRequestLen)
	byteOrder.PutUint32(request, opGetByIndex)
	byteOrder.PutUint32(request[4:], setProtocol)
	byteOrder.PutUint16(request[8:], index)
	if err := s.get(soIPSet, request); err != nil {
		return "", false
	}
	name = cString(request[8 : 8+setNameSize])
	return name, name != ""
}
