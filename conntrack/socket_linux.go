package conntrack

import (
	"encoding/binary"
	"fmt"

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
	own, err := netlinkio.Take(conn)
	if err != nil {
		return nil, fmt.Errorf("conntrack: %w", err)
	}
	return NewTable(&socket{own, netlinkio.NewBuffers(answers, 8192)}, locks), nil
}

// socket is the transport to the kernel.
type socket struct {
	*netlinkio.Socket
	in *netlinkio.Buffers
}

// answers is how many answers are read at once.
const answers = 8

func (s *socket) Exchange(req []byte, answer func(seq uint32, typ uint16, body []byte)) error {
	if err := s.Write(req); err != nil {
		return err
	}
	return s.receive(answer)
}

// receive reads the kernel's answers. The requests have been processed when
// write returned, so whatever there is, is there now. (The parts of a dump follow each
// other: reading one makes the kernel write the next, see netlink_recvmsg.)
func (s *socket) receive(answer func(seq uint32, typ uint16, body []byte)) error {
	interrupted := false
	for n := answers; n == answers; {
		var err error
		if n, err = s.Poll(s.in, answers); err != nil {
			return err
		}
		for i := range n {
			for b := s.in.Datagram(i); len(b) >= nlmsgHdrLen; {
				l := int(binary.NativeEndian.Uint32(b))
				if l < nlmsgHdrLen || l > len(b) {
					return errShort
				}
				interrupted = interrupted || binary.NativeEndian.Uint16(b[6:])&flagDumpIntr != 0
				answer(binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint16(b[4:]), b[nlmsgHdrLen:l])
				b = b[min((l+3)&^3, len(b)):]
			}
		}
	}
	if interrupted {
		return ErrInterrupted
	}
	return nil
}
