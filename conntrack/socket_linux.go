package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
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
	return &Table{transport: &socket{conn: conn, raw: raw, buf: make([]byte, 8192)}, locks: locks}, nil
}

// socket is the transport to the kernel.
type socket struct {
	conn *netlink.Conn
	raw  syscall.RawConn
	buf  []byte // for one datagram from the kernel
}

func (s *socket) Close() error { return s.conn.Close() }

func (s *socket) exchange(req []byte, reply func(seq uint32, typ uint16, body []byte)) error {
	var err error
	if e := s.raw.Control(func(fd uintptr) {
		if _, err = unix.Write(int(fd), req); err != nil {
			err = os.NewSyscallError("write", err)
			return
		}
		err = s.receive(int(fd), reply)
	}); e != nil {
		return e
	}
	return err
}

// receive reads what the kernel had to say. The requests have been processed when
// write returned, so whatever there is, is there now. (The parts of a dump follow each
// other: reading one makes the kernel write the next, see netlink_recvmsg.)
func (s *socket) receive(fd int, reply func(seq uint32, typ uint16, body []byte)) error {
	interrupted := false
	for {
		n, err := unix.Read(fd, s.buf)
		switch {
		case errors.Is(err, unix.EAGAIN) && interrupted:
			return ErrInterrupted
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("read", err)
		}
		for b := s.buf[:n]; len(b) >= nlmsgHdrLen; {
			l := int(binary.NativeEndian.Uint32(b))
			if l < nlmsgHdrLen || l > len(b) {
				return errShort
			}
			interrupted = interrupted || binary.NativeEndian.Uint16(b[6:])&flagDumpIntr != 0
			reply(binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint16(b[4:]), b[nlmsgHdrLen:l])
			b = b[min((l+3)&^3, len(b)):]
		}
	}
}
