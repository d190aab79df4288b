package conntrack

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack/netlinkio"
)

// Open opens the connection tracking table of the calling thread's network
// namespace. It needs CAP_NET_ADMIN in the user namespace that owns it. All Tables
// of a namespace share the locks.
func Open(locks *Locks) (*Table, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("conntrack: open netlink socket: %w", err)
	}
	// Refusals need not quote the message they refuse. Older kernels than 4.2 quote
	// anyway, which does no harm.
	_ = conn.SetOption(netlink.CapAcknowledge, true)
	raw, err := conn.SyscallConn()
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("conntrack: netlink socket: %w", err)
	}
	return &Table{transport: newSocket(conn, raw), locks: locks}, nil
}

// socket is the transport to the kernel.
type socket struct {
	conn *netlink.Conn
	raw  syscall.RawConn
	in   *netlinkio.Buffers

	// An exchange in the making, and the function that makes it: one for all, because a
	// closure would be allocated each time.
	req []byte
	to  receiver
	err error
	act func(fd uintptr)
}

// answers is how many answers are read at once.
const answers = 8

func newSocket(conn *netlink.Conn, raw syscall.RawConn) *socket {
	s := &socket{conn: conn, raw: raw, in: netlinkio.NewBuffers(answers, 8192)}
	s.act = func(fd uintptr) {
		if s.err = netlinkio.Write(fd, s.req); s.err == nil {
			s.err = s.receive(fd, s.to)
		}
	}
	return s
}

func (s *socket) Close() error { return s.conn.Close() }

func (s *socket) exchange(req []byte, to receiver) error {
	s.req, s.to = req, to
	e := s.raw.Control(s.act)
	err := s.err
	s.req, s.to, s.err = nil, nil, nil
	if e != nil {
		return e
	}
	return err
}

// receive reads what the kernel had to say. The requests have been processed when
// write returned, so whatever there is, is there now. (The parts of a dump follow each
// other: reading one makes the kernel write the next, see netlink_recvmsg.)
func (s *socket) receive(fd uintptr, to receiver) error {
	interrupted := false
	for n := answers; n == answers; {
		var err error
		if n, err = s.in.Poll(fd, answers); err != nil {
			return err
		}
		for i := range n {
			for b := s.in.Datagram(i); len(b) >= nlmsgHdrLen; {
				l := int(binary.NativeEndian.Uint32(b))
				if l < nlmsgHdrLen || l > len(b) {
					return errShort
				}
				interrupted = interrupted || binary.NativeEndian.Uint16(b[6:])&flagDumpIntr != 0
				to.receive(binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint16(b[4:]), b[nlmsgHdrLen:l])
				b = b[min((l+3)&^3, len(b)):]
			}
		}
	}
	if interrupted {
		return ErrInterrupted
	}
	return nil
}
