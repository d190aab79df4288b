package ruleset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// remover removes elements that may be missing from sets of the tables, by name. It is not safe for
// concurrent use.
type remover struct {
	conn *Connection
	seq  uint32
	buf  []byte
	// message removes an element: msgDestroySetElem or, on kernels without it, NFT_MSG_DELSETELEM.
	message int
}

// elementOf is an element of a set in the table of a family.
type elementOf struct {
	family
	set, key string
}

// msgDestroySetElem is NFT_MSG_DESTROYSETELEM (linux/netfilter/nf_tables.h, since 6.3): it ignores
// missing elements.
const msgDestroySetElem = 30

func newRemover(c *Connection) *remover {
	return &remover{conn: c, buf: make([]byte, 1<<14), message: msgDestroySetElem}
}

// maxRemoved is how many elements one transaction removes. If all of them are missing, as many
// replies must fit into the socket's receive buffer.
const maxRemoved = 128

// remove removes the elements. Missing ones, or a missing table, are no error.
func (r *remover) remove(elements []elementOf) error {
	for len(elements) > 0 {
		n := min(len(elements), maxRemoved)
		if err := r.removeSome(append([]elementOf(nil), elements[:n]...)); err != nil {
			return err
		}
		elements = elements[n:]
	}
	return nil
}

// removeSome removes the elements in one transaction. With NFT_MSG_DELSETELEM one missing element
// fails it as a whole, but the kernel names all missing ones: it is repeated without those, and
// again if others expired meanwhile. Each try costs a grace period of RCU, some 10 ms.
func (r *remover) removeSome(elements []elementOf) error {
	for len(elements) > 0 {
		missing, err := r.transact(elements)
		switch {
		case errors.Is(err, unix.EINVAL) && r.message != unix.NFT_MSG_DELSETELEM:
			r.message = unix.NFT_MSG_DELSETELEM
			continue
		case err != nil:
			return err
		case len(missing) == 0:
			return nil
		}
		left := elements[:0]
		for i, e := range elements {
			if !missing[i] {
				left = append(left, e)
			}
		}
		elements = left
	}
	return nil
}

// transact tries to remove the elements, each in a message of its own, and returns which are
// missing, by position.
func (r *remover) transact(elements []elementOf) (missing map[int]bool, err error) {
	first := r.seq + 1
	req, err := r.transaction(elements)
	if err != nil {
		return nil, err
	}
	missing = make(map[int]bool)
	refused := func(seq uint32, errno syscall.Errno) {
		i := seq - first
		switch {
		case errno == 0:
		// ENOENT may also mean a missing table.
		case errno == syscall.ENOENT && i < uint32(len(elements)):
			missing[int(i)] = true
		default:
			err = errors.Join(err, errno)
		}
	}
	e := r.conn.control(func(fd int) error {
		// The replies are in the buffer when write returns; without an error there are none.
		if _, e := unix.Write(fd, req); e != nil {
			return os.NewSyscallError("write", e)
		}
		return r.receive(fd, refused)
	})
	return missing, errors.Join(err, e)
}

// transaction is the message to the kernel. The elements' parts are numbered from the next
// sequence number on.
func (r *remover) transaction(elements []elementOf) ([]byte, error) {
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
	if err := add(begin, r.seq, batch); err != nil {
		return nil, err
	}
	for _, e := range elements {
		data, err := e.body()
		if err != nil {
			return nil, err
		}
		r.seq++
		if err := add(netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8|r.message), r.seq, data); err != nil {
			return nil, err
		}
	}
	r.seq++
	return req, add(end, r.seq, batch)
}

// body is the body of a message about the element.
func (e *elementOf) body() ([]byte, error) {
	return nft.Data(e.nfproto, func(encoder *netlink.AttributeEncoder) {
		nft.ElementsOf(TableName, e.set)(encoder)
		encoder.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(list *netlink.AttributeEncoder) error {
			list.Nested(unix.NFTA_LIST_ELEM, func(elem *netlink.AttributeEncoder) error {
				elem.Nested(unix.NFTA_SET_ELEM_KEY, func(k *netlink.AttributeEncoder) error {
					k.Bytes(unix.NFTA_DATA_VALUE, []byte(e.key))
					return nil
				})
				return nil
			})
			return nil
		})
	})
}

// receive calls refused for each error in the kernel's replies.
func (r *remover) receive(fd int, refused func(seq uint32, errno syscall.Errno)) error {
	for {
		n, err := unix.Read(fd, r.buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("read", err)
		}
		messages, err := syscall.ParseNetlinkMessage(r.buf[:n])
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
