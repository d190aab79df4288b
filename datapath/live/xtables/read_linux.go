package xtables

import (
	"errors"
	"hash/maphash"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// Socket options of ip_tables and, with the same numbers, ip6_tables.
const (
	soGetInfo    = 64 // IPT_SO_GET_INFO
	soGetEntries = 65 // IPT_SO_GET_ENTRIES
)

// Sizes of the structs around the entries, on machines of 64 bits.
const (
	tableNameSize = 32 // XT_TABLE_MAXNAMELEN
	infoSize      = 84 // struct ipt_getinfo
	entriesAt     = 40 // offset of entrytable in struct ipt_get_entries
)

// maxAttempts is how often a table is read again if it grows or shrinks meanwhile.
const maxAttempts = 5

// Names lists the tables that are loaded in the calling thread's network namespace. [Read] makes
// the kernel load a table; Names does not.
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
type socket struct {
	fd    int
	level uintptr
}

// open opens a socket in the calling thread's network namespace.
func open(f decision.Family) (socket, error) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		return socket{}, errors.New("rules of iptables' legacy back end are read on machines of 64 bits only")
	}
	domain, level := unix.AF_INET, uintptr(unix.SOL_IP)
	if f == decision.IPv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return socket{fd, level}, os.NewSyscallError("socket", err)
}

// close closes the socket.
func (s socket) close() { _ = unix.Close(s.fd) }

// get is getsockopt; buf is what the kernel reads and writes.
func (s socket) get(option uintptr, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), s.level, option, uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	return result("getsockopt", errno)
}

// set is setsockopt.
func (s socket) set(option uintptr, buf []byte) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(s.fd), s.level, option, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0)
	return result("setsockopt", errno)
}

func result(call string, errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return os.NewSyscallError(call, errno)
}

// ReadLoaded is [Read] of a table that exists, or else nil: Read makes the kernel create a table.
func ReadLoaded(f decision.Family, name string) (*Table, error) {
	names, err := Names(f)
	if err != nil || !slices.Contains(names, name) {
		return nil, err
	}
	return Read(f, name)
}

// Read reads a table of the calling thread's network namespace. It needs CAP_NET_ADMIN. The error is [nft.ErrChanged] if the
// table keeps changing meanwhile.
func Read(f decision.Family, name string) (*Table, error) {
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
		t, err := ReadLoaded(f, p.name)
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
