package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Transaction collects changes that the kernel makes all together or not at all. The zero
// value is an empty one.
type Transaction struct {
	buf   []byte // the messages, without begin and end
	last  int    // where the last one begins
	count int
	err   error
	// list is where the list of elements begins that more can be added to, and to which set; 0: none.
	list int
	to   elementList
}

// elementList is what the elements of a message have in common.
type elementList struct {
	family     uint8
	kind       int
	table, set string
}

// Add adds a message of a kind (NFT_MSG_NEW..., NFT_MSG_DEL...) for a family (NFPROTO_...).
// The flags are those besides netlink.Request.
func (t *Transaction) Add(family uint8, kind int, flags netlink.HeaderFlags, attributes Encode) {
	data, err := Data(family, attributes)
	t.err = errors.Join(t.err, err)
	t.begin(messageType(kind), flags)
	t.buf = append(t.buf, data...)
	t.end()
}

// begin begins a message, end completes it. The length of its data is a multiple of four.
func (t *Transaction) begin(kind netlink.HeaderType, flags netlink.HeaderFlags) {
	t.last, t.list = len(t.buf), 0
	t.count++
	t.buf = appendHeader(t.buf, kind, flags)
}

func (t *Transaction) end() {
	binary.NativeEndian.PutUint32(t.buf[t.last:], uint32(len(t.buf)-t.last))
}

// appendHeader appends a header (struct nlmsghdr) of a message without data.
func appendHeader(buf []byte, kind netlink.HeaderType, flags netlink.HeaderFlags) []byte {
	buf = binary.NativeEndian.AppendUint32(buf, unix.NLMSG_HDRLEN)
	buf = binary.NativeEndian.AppendUint16(buf, uint16(kind))
	buf = binary.NativeEndian.AppendUint16(buf, uint16(netlink.Request|flags))
	return append(buf, make([]byte, 8)...) // sequence number and port
}

// maxList bounds the elements of one message: the length of an attribute has 16 bits.
const maxList = 60000

// Element is an element of a set or map.
type Element struct {
	Key string
	// Data is the data of a map's element; in a map of verdicts it is Accepted or the chain to jump to; "" in
	// a set.
	Data string
	// Verdict: it is an element of a map of verdicts.
	Verdict bool
	// Milliseconds is its timeout; 0: that of the set.
	Milliseconds uint64
}

// Accepted is the data of an element with the verdict accept.
const Accepted = "accept"

// AddElement adds a message that adds an element to a set, or removes it (NFT_MSG_NEWSETELEM,
// NFT_MSG_DELSETELEM), or adds the element to the last message. It makes no garbage.
func (t *Transaction) AddElement(family uint8, kind int, table, set string, e Element) {
	to := elementList{family, kind, table, set}
	if t.list == 0 || t.to != to || len(t.buf)-t.list > maxList {
		var flags netlink.HeaderFlags
		if kind == unix.NFT_MSG_NEWSETELEM {
			flags = netlink.Create
		}
		t.begin(messageType(kind), flags)
		t.buf = append(t.buf, family, unix.NFNETLINK_V0, 0, 0)
		t.text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		t.text(unix.NFTA_SET_ELEM_LIST_SET, set)
		t.list, t.to = t.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS), to
	}
	elem := t.open(unix.NFTA_LIST_ELEM)
	key := t.open(unix.NFTA_SET_ELEM_KEY)
	t.bytes(unix.NFTA_DATA_VALUE, e.Key)
	t.close(key)
	if e.Milliseconds > 0 {
		a := t.open(unix.NFTA_SET_ELEM_TIMEOUT)
		t.buf = ByteOrder.AppendUint64(t.buf, e.Milliseconds)
		t.close(a)
	}
	if e.Data != "" {
		data := t.open(unix.NFTA_SET_ELEM_DATA)
		if e.Verdict {
			verdict := t.open(unix.NFTA_DATA_VERDICT)
			code := t.open(unix.NFTA_VERDICT_CODE)
			number := int32(unix.NFT_JUMP)
			if e.Data == Accepted {
				number = Accept
			}
			t.buf = ByteOrder.AppendUint32(t.buf, uint32(number))
			t.close(code)
			if e.Data != Accepted {
				t.text(unix.NFTA_VERDICT_CHAIN, e.Data)
			}
			t.close(verdict)
		} else {
			t.bytes(unix.NFTA_DATA_VALUE, e.Data)
		}
		t.close(data)
	}
	t.close(elem)
	t.close(t.list)
	t.end()
}

// open begins an attribute, with attributes in it or not, and returns where. close completes it.
func (t *Transaction) open(kind uint16) int {
	at := len(t.buf)
	t.buf = binary.NativeEndian.AppendUint16(t.buf, 0)
	t.buf = binary.NativeEndian.AppendUint16(t.buf, kind)
	return at
}

func (t *Transaction) close(at int) {
	binary.NativeEndian.PutUint16(t.buf[at:], uint16(len(t.buf)-at))
	for len(t.buf)%4 > 0 {
		t.buf = append(t.buf, 0)
	}
}

func (t *Transaction) bytes(kind uint16, value string) {
	at := t.open(kind)
	t.buf = append(t.buf, value...)
	t.close(at)
}

// text is bytes with a NUL.
func (t *Transaction) text(kind uint16, value string) {
	at := t.open(kind)
	t.buf = append(append(t.buf, value...), 0)
	t.close(at)
}

// Append adds the messages of another transaction.
func (t *Transaction) Append(other *Transaction) {
	if other.Empty() {
		return
	}
	t.last, t.list = len(t.buf)+other.last, 0
	t.buf = append(t.buf, other.buf...)
	t.count += other.count
	t.err = errors.Join(t.err, other.err)
}

// Reset makes the transaction empty, and keeps its memory.
func (t *Transaction) Reset() { *t = Transaction{buf: t.buf[:0]} }

// Empty reports that there is no message.
func (t *Transaction) Empty() bool { return t.count == 0 }

// Size is the size of the messages in bytes.
func (t *Transaction) Size() int { return len(t.buf) }

// Run sends the transaction in the calling thread's network namespace; see [IsChanged] for its
// errors. It needs CAP_NET_ADMIN.
func (t *Transaction) Run() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	return errors.Join(t.RunOn(conn), conn.Close())
}

// RunOn is Run on a connection of NETLINK_NETFILTER without pending replies.
func (t *Transaction) RunOn(conn *netlink.Conn) error {
	if t.err != nil {
		return t.err
	}
	if t.Empty() {
		return nil
	}
	// Only the last message requests an acknowledgement, which comes after the commit; errors come
	// without a request.
	flags := t.buf[t.last+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|uint16(netlink.Acknowledge))
	// Begin and end name the subsystem (NFNL_SUBSYS_NFTABLES) in struct nfgenmsg's res_id.
	frame := func(buf []byte, kind int) []byte {
		at := len(buf)
		buf = appendHeader(buf, netlink.HeaderType(kind), 0)
		buf = append(buf, unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES)
		binary.NativeEndian.PutUint32(buf[at:], uint32(len(buf)-at))
		return buf
	}
	begin, end := frame(nil, unix.NFNL_MSG_BATCH_BEGIN), frame(nil, unix.NFNL_MSG_BATCH_END)
	size := len(begin) + len(t.buf) + len(end)
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) {
		// The kernel takes a transaction only as one message. It doubles the requested buffer size;
		// a size above net.core.wmem_max needs CAP_NET_ADMIN outside of user namespaces.
		forceWriteBuffer(int(fd), size)
		_, err = unix.SendmsgBuffers(int(fd), [][]byte{begin, t.buf, end}, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0)
	}); e != nil {
		return e
	}
	if errors.Is(err, unix.EMSGSIZE) {
		return fmt.Errorf("%d changes are too many for one message here (%w): raise the sysctl net.core.wmem_max to %d", t.count, err, size)
	}
	if err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	_, err = conn.Receive()
	return err
}

// IsChanged reports whether an error of [Dump] or [Transaction.Run] means that another program changed the
// rules meanwhile.
func IsChanged(err error) bool {
	for _, cause := range []error{ErrChanged, unix.ENOENT, unix.EBUSY, unix.EEXIST, unix.ERESTART} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

// forceWriteBuffer enlarges the send buffer of a socket, as far as it may.
func forceWriteBuffer(fd, size int) {
	if now, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil && now >= 2*size {
		return
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
	}
}
