package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/google/nftables/expr"
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

// AddRule adds a rule to a chain: at its end with the flag netlink.Append, else at its beginning. Attributes are further
// ones of the rule, which may be nil.
func (t *Transaction) AddRule(family uint8, flags netlink.HeaderFlags, table, chain string, expressions []expr.Any, attributes Encode) {
	t.Add(family, unix.NFT_MSG_NEWRULE, netlink.Create|flags, func(e *netlink.AttributeEncoder) {
		RulesOf(table, chain)(e)
		e.Nested(unix.NFTA_RULE_EXPRESSIONS, func(e *netlink.AttributeEncoder) error {
			for _, x := range expressions {
				data, err := marshal(family, x)
				if err != nil {
					return err
				}
				e.Bytes(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, data)
			}
			return nil
		})
		if attributes != nil {
			attributes(e)
		}
	})
}

// Directed is a field of a connection's tuple of a direction, which the library encodes without the direction.
type Directed struct{ *expr.Ct }

func marshal(family uint8, x expr.Any) ([]byte, error) {
	d, ok := x.(Directed)
	if !ok {
		return expr.Marshal(family, x)
	}
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = ByteOrder
	e.String(unix.NFTA_EXPR_NAME, "ct")
	e.Nested(unix.NFTA_EXPR_DATA, func(e *netlink.AttributeEncoder) error {
		e.Uint32(unix.NFTA_CT_KEY, uint32(d.Key))
		e.Uint32(unix.NFTA_CT_DREG, d.Register)
		e.Uint8(unix.NFTA_CT_DIRECTION, uint8(d.Direction))
		return nil
	})
	return e.Encode()
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

// Separate has the next element added by a message of its own.
func (t *Transaction) Separate() { t.list = 0 }

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

// EachElement calls each for the elements of a list (NFTA_SET_ELEM_LIST_ELEMENTS) that have a key, with
// key and data as in [Element]. The slices are parts of the list. It makes no garbage: large sets have a
// hundred thousand elements. What is malformed is left out.
func EachElement(list Attributes, each func(key, data []byte)) {
	for _, element := range list.All() {
		var key, data []byte
		for kind, value := range Attributes(element).All() {
			switch kind {
			case unix.NFTA_SET_ELEM_KEY:
				key = Attributes(value).Get(unix.NFTA_DATA_VALUE)
			case unix.NFTA_SET_ELEM_DATA:
				data = elementData(value)
			}
		}
		if key != nil {
			each(key, data)
		}
	}
}

var accepted = []byte(Accepted)

// elementData is the data of an element, as in [Element].
func elementData(data Attributes) []byte {
	verdict := Attributes(data.Get(unix.NFTA_DATA_VERDICT))
	switch chain, code := verdict.Get(unix.NFTA_VERDICT_CHAIN), verdict.Get(unix.NFTA_VERDICT_CODE); {
	case len(chain) > 0:
		return chain[:len(chain)-1] // without NUL
	case len(code) == 4 && ByteOrder.Uint32(code) == Accept:
		return accepted
	}
	return data.Get(unix.NFTA_DATA_VALUE)
}

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
	refused, err := t.Try(conn)
	if len(refused) > 0 && err == nil {
		err = &netlink.OpError{Op: "receive", Err: refused[slices.Min(slices.Collect(maps.Keys(refused)))]}
	}
	return err
}

// Try is [Transaction.RunOn], and tells which messages the kernel refused, by their positions, and why; if any, it has
// changed nothing. The position -1 is that of the transaction as a whole.
func (t *Transaction) Try(conn *netlink.Conn) (refused map[int]error, err error) {
	if t.err != nil || t.Empty() {
		return nil, t.err
	}
	// Only the last message requests an acknowledgement, which comes after the commit; errors come
	// without a request.
	flags := t.buf[t.last+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|uint16(netlink.Acknowledge))
	for at, number := 0, uint32(1); at < len(t.buf); number++ {
		binary.NativeEndian.PutUint32(t.buf[at+8:], number)
		at += int(binary.NativeEndian.Uint32(t.buf[at:]))
	}
	// Begin and end name the subsystem (NFNL_SUBSYS_NFTABLES) in struct nfgenmsg's res_id.
	frame := func(kind int) []byte {
		buf := appendHeader(nil, netlink.HeaderType(kind), 0)
		buf = append(buf, unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES)
		binary.NativeEndian.PutUint32(buf, uint32(len(buf)))
		return buf
	}
	parts := [][]byte{frame(unix.NFNL_MSG_BATCH_BEGIN), t.buf, frame(unix.NFNL_MSG_BATCH_END)}
	size := len(parts[0]) + len(t.buf) + len(parts[2])
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) {
		// The kernel takes a transaction only as one message. It doubles the requested buffer size;
		// a size above net.core.wmem_max needs CAP_NET_ADMIN outside of user namespaces.
		forceWriteBuffer(int(fd), size)
		if _, err = unix.SendmsgBuffers(int(fd), parts, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0); err == nil {
			refused, err = replies(int(fd))
		} else if errors.Is(err, unix.EMSGSIZE) {
			err = fmt.Errorf("%d changes are too many for one message here (%w): raise the sysctl net.core.wmem_max to %d", t.count, err, size)
		} else {
			err = os.NewSyscallError("sendmsg", err)
		}
	}); e != nil {
		return nil, e
	}
	return refused, err
}

// replies reads the replies, which have arrived when a transaction is sent: the errors of messages, by their position.
func replies(fd int) (refused map[int]error, err error) {
	reply := make([]byte, unix.NLMSG_HDRLEN+4) // up to the error in struct nlmsgerr; a copy of the message follows
	for {
		n, err := unix.Read(fd, reply)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return refused, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, os.NewSyscallError("read", err)
		case n < len(reply) || binary.NativeEndian.Uint16(reply[4:]) != unix.NLMSG_ERROR:
			return nil, errors.New("malformed reply from the kernel")
		}
		if code := int32(binary.NativeEndian.Uint32(reply[unix.NLMSG_HDRLEN:])); code != 0 {
			if refused == nil {
				refused = make(map[int]error)
			}
			refused[int(binary.NativeEndian.Uint32(reply[8:]))-1] = unix.Errno(-code)
		}
	}
}

// IsChanged reports whether an error of reading or changing rules, of either back end of iptables too, means that another
// program changed them meanwhile.
func IsChanged(err error) bool {
	return slices.ContainsFunc([]error{ErrChanged, unix.ENOENT, unix.EBUSY, unix.EEXIST, unix.ERESTART, unix.EAGAIN}, func(cause error) bool {
		return errors.Is(err, cause)
	})
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
