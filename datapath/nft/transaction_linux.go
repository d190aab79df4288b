package nft

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Transaction collects changes that the kernel makes all together or not at all. The zero
// value is an empty one.
type Transaction struct {
	messages []netlink.Message
	err      error
}

// Add adds a message of a kind (NFT_MSG_NEW..., NFT_MSG_DEL...) for a family (NFPROTO_...).
// The flags are those besides netlink.Request.
func (t *Transaction) Add(family uint8, kind int, flags netlink.HeaderFlags, attributes Encode) {
	data, err := Data(family, attributes)
	t.err = errors.Join(t.err, err)
	t.messages = append(t.messages, netlink.Message{
		Header: netlink.Header{Type: messageType(kind), Flags: netlink.Request | flags},
		Data:   data,
	})
}

// Empty reports that there is no message.
func (t *Transaction) Empty() bool { return len(t.messages) == 0 }

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
	t.messages[len(t.messages)-1].Header.Flags |= netlink.Acknowledge
	// Begin and end name the subsystem (NFNL_SUBSYS_NFTABLES) in struct nfgenmsg's res_id.
	frame := func(kind int) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request},
			Data:   []byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	messages := append([]netlink.Message{frame(unix.NFNL_MSG_BATCH_BEGIN)}, t.messages...)
	messages = append(messages, frame(unix.NFNL_MSG_BATCH_END))
	size := 0
	for _, m := range messages {
		size += 16 + len(m.Data) + 3
	}
	// The kernel takes a transaction only as one message. It doubles the requested buffer size; a
	// size above net.core.wmem_max needs CAP_NET_ADMIN outside of user namespaces.
	if err := forceWriteBuffer(conn, size); err != nil {
		return err
	}
	if _, err := conn.SendMessages(messages); err != nil {
		if errors.Is(err, unix.EMSGSIZE) {
			return fmt.Errorf("%d chains and rules are too many for one message here (%w): raise the sysctl net.core.wmem_max to %d", len(t.messages), err, size)
		}
		return err
	}
	_, err := conn.Receive()
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

func forceWriteBuffer(conn *netlink.Conn, size int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, size)
		}
	})
}
