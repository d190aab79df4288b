package ruleset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/nft"
)

// Seen removes UDP flows from the sets of those that need no decision. It works on the installed
// ruleset by name, independent of the [Ruleset] that installed it. It is not safe for concurrent
// use.
type Seen struct {
	conn *netlink.Conn
	raw  syscall.RawConn
	seq  uint32
	buf  []byte
	// remove is the message that removes an element: msgDestroySetElem or, on kernels without it,
	// NFT_MSG_DELSETELEM.
	remove int
}

// msgDestroySetElem is NFT_MSG_DESTROYSETELEM (linux/netfilter/nf_tables.h, since 6.3): it ignores
// missing elements.
const msgDestroySetElem = 30

// OpenSeen opens the sets of the calling thread's network namespace.
func OpenSeen() (*Seen, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	// Errors need not contain the message that failed; with older kernels they do.
	_ = conn.SetOption(netlink.CapAcknowledge, true)
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open nftables: %w", err), conn.Close())
	}
	return &Seen{conn: conn, raw: raw, buf: make([]byte, 1<<14), remove: msgDestroySetElem}, nil
}

// Close closes the socket.
func (s *Seen) Close() error { return s.conn.Close() }

// maxForget is how many elements one transaction removes. If all of them are missing, as many
// replies must fit into the socket's receive buffer.
const maxForget = 128

// Forget removes the tuples, so that the next packet with one of them is queued. Tuples that are
// in no set, or a missing ruleset, are no error.
func (s *Seen) Forget(tuples []conntrack.Tuple) error {
	for len(tuples) > 0 {
		n := min(len(tuples), maxForget)
		if err := s.forget(append([]conntrack.Tuple(nil), tuples[:n]...)); err != nil {
			return fmt.Errorf("forget flows in set seen of nftables table %s: %w", TableName, err)
		}
		tuples = tuples[n:]
	}
	return nil
}

// forget removes the elements in one transaction. With NFT_MSG_DELSETELEM one missing element
// fails it as a whole, but the kernel names all missing ones: it is repeated without those, and
// again if others expired meanwhile. Each try costs a grace period of RCU, some 10 ms.
func (s *Seen) forget(tuples []conntrack.Tuple) error {
	for len(tuples) > 0 {
		missing, err := s.transact(tuples)
		switch {
		case errors.Is(err, unix.EINVAL) && s.remove != unix.NFT_MSG_DELSETELEM:
			s.remove = unix.NFT_MSG_DELSETELEM
			continue
		case err != nil:
			return err
		case len(missing) == 0:
			return nil
		}
		left := tuples[:0]
		for i, t := range tuples {
			if !missing[i] {
				left = append(left, t)
			}
		}
		tuples = left
	}
	return nil
}

// transact tries to remove the elements, each in a message of its own, and returns which are
// missing, by position.
func (s *Seen) transact(tuples []conntrack.Tuple) (missing map[int]bool, err error) {
	first := s.seq + 1
	req, err := s.transaction(tuples)
	if err != nil {
		return nil, err
	}
	missing = make(map[int]bool)
	refused := func(seq uint32, errno syscall.Errno) {
		i := seq - first
		switch {
		case errno == 0:
		// ENOENT may also mean a missing table.
		case errno == syscall.ENOENT && i < uint32(len(tuples)):
			missing[int(i)] = true
		default:
			err = errors.Join(err, errno)
		}
	}
	if e := s.raw.Control(func(fd uintptr) {
		// The replies are in the buffer when write returns; without an error there are none.
		if _, e := unix.Write(int(fd), req); e != nil {
			err = os.NewSyscallError("write", e)
			return
		}
		if e := s.receive(int(fd), refused); e != nil {
			err = errors.Join(err, e)
		}
	}); e != nil {
		err = e
	}
	return missing, err
}

// transaction is the message to the kernel. The elements' parts are numbered from the next
// sequence number on.
func (s *Seen) transaction(tuples []conntrack.Tuple) ([]byte, error) {
	var req []byte
	add := func(typ netlink.HeaderType, seq uint32, data []byte) error {
		m := netlink.Message{Header: netlink.Header{Type: typ, Flags: netlink.Request, Sequence: seq}, Data: data}
		m.Header.Length = uint32(unix.NLMSG_HDRLEN + len(data))
		b, err := m.MarshalBinary()
		req = append(req, b...)
		return err
	}
	// struct nfgenmsg, whose res_id names the subsystem of a batch.
	batch := []byte{0, 0, 0, unix.NFNL_SUBSYS_NFTABLES}
	begin, end := netlink.HeaderType(unix.NFNL_MSG_BATCH_BEGIN), netlink.HeaderType(unix.NFNL_MSG_BATCH_END)
	if err := add(begin, s.seq, batch); err != nil {
		return nil, err
	}
	for _, t := range tuples {
		data, err := element(t)
		if err != nil {
			return nil, err
		}
		s.seq++
		if err := add(netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8|s.remove), s.seq, data); err != nil {
			return nil, err
		}
	}
	s.seq++
	return req, add(end, s.seq, batch)
}

// element is the body of a message about the element of a tuple.
func element(t conntrack.Tuple) ([]byte, error) {
	// As flowKey has it, each field filled up to whole registers.
	key := addrBytes(t.Source.Addr()) + addrBytes(t.Destination.Addr()) +
		portBytes(t.Source.Port()) + "\x00\x00" + portBytes(t.Destination.Port()) + "\x00\x00"
	return nft.Data(familyOf(t.Source.Addr()).nfproto, func(e *netlink.AttributeEncoder) {
		nft.ElementsOf(TableName, "seen")(e)
		e.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(list *netlink.AttributeEncoder) error {
			list.Nested(unix.NFTA_LIST_ELEM, func(elem *netlink.AttributeEncoder) error {
				elem.Nested(unix.NFTA_SET_ELEM_KEY, func(k *netlink.AttributeEncoder) error {
					k.Bytes(unix.NFTA_DATA_VALUE, []byte(key))
					return nil
				})
				return nil
			})
			return nil
		})
	})
}

// receive calls refused for each error in the kernel's replies.
func (s *Seen) receive(fd int, refused func(seq uint32, errno syscall.Errno)) error {
	for {
		n, err := unix.Read(fd, s.buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("read", err)
		}
		messages, err := syscall.ParseNetlinkMessage(s.buf[:n])
		if err != nil {
			return fmt.Errorf("answer of the kernel: %w", err)
		}
		for _, m := range messages {
			if m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4 {
				refused(m.Header.Seq, syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Data))))
			}
		}
	}
}
