package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
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

// Exchange reads the answers that are there when the requests are written: they have been processed then. (The
// parts of a dump follow each other: reading one makes the kernel write the next, see netlink_recvmsg.)
func (s *socket) Exchange(req []byte, answer func(seq uint32, typ uint16, body []byte)) error {
	if err := s.Write(req); err != nil {
		return err
	}
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

// Probe checks whether the kernel can create entries with translation, by creating one between
// documentation addresses (RFC 5737) and deleting it. It works on the calling thread's network
// namespace. The error names what is missing.
func Probe() error {
	t, err := Open(new(Locks))
	if err != nil {
		return err
	}
	defer t.Close()
	e := Entry{
		Tuple: Tuple{
			Source:      netip.MustParseAddrPort("192.0.2.1:9"),
			Destination: netip.MustParseAddrPort("192.0.2.2:9"),
			Protocol:    protoUDP,
		},
		Mark:        DefaultMark,
		Destination: netip.MustParseAddrPort("192.0.2.3:10"),
	}
	if err := t.create([]Entry{e}); err != nil {
		return fmt.Errorf("write to the connection tracking table: %w", err)
	}
	switch err := t.errs[0]; {
	case err == nil || errors.Is(err, syscall.EEXIST): // of a probe that was killed
	case IsFull(err):
		return &OpError{"create", e.Tuple, err}
	default:
		return fmt.Errorf("the kernel cannot create connection entries (%w): it needs CONFIG_NF_CT_NETLINK and CONFIG_NF_CONNTRACK_MARK", err)
	}
	s, err := t.Lookup(e.Tuple, 0)
	if err != nil {
		return err
	}
	var errs [1]error
	if t.Delete([]State{s}, errs[:]); errs[0] != nil && !IsNotFound(errs[0]) {
		return errs[0]
	}
	if s.Status&StatusDestinationNAT == 0 || s.Endpoint() != e.Destination {
		return errors.New("the kernel ignores the translation of created connection entries: it needs CONFIG_NF_NAT")
	}
	return nil
}
