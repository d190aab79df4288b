package leftovers

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	nftables "github.com/nfqproxy/nfqproxy/datapath/nft"
)

// nfproto is the kernel's number of the family.
func (f family) nfproto() uint8 {
	if f == ipv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// transaction collects messages that the kernel carries out all together or not at all.
type transaction struct {
	family   family
	messages []netlink.Message
	err      error
}

func (t *transaction) add(kind int, attributes func(*netlink.AttributeEncoder)) {
	encoder := netlink.NewAttributeEncoder()
	encoder.ByteOrder = nftables.ByteOrder
	attributes(encoder)
	data, err := encoder.Encode()
	t.err = errors.Join(t.err, err)
	t.messages = append(t.messages, netlink.Message{
		Header: netlink.Header{Type: nftables.MessageType(kind), Flags: netlink.Request},
		Data:   append(nftables.Header(t.family.nfproto()), data...),
	})
}

// run sends the transaction. Only its last message asks for an acknowledgement, which
// comes after the commit; errors come unasked.
func (t *transaction) run() error {
	if t.err != nil {
		return t.err
	}
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

	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	size := 0
	for _, m := range messages {
		size += 16 + len(m.Data) + 3
	}
	// The kernel takes a transaction in one piece only. It doubles the size it is told;
	// more than net.core.wmem_max takes CAP_NET_ADMIN outside of user namespaces.
	if err := forceWriteBuffer(conn, size); err != nil {
		return err
	}
	if _, err := conn.SendMessages(messages); err != nil {
		if errors.Is(err, unix.EMSGSIZE) {
			return fmt.Errorf("%d chains and rules are too many for one message here (%w): raise the sysctl net.core.wmem_max to %d", len(t.messages), err, size)
		}
		return err
	}
	_, err = conn.Receive()
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EBUSY), errors.Is(err, unix.ERESTART):
		return errors.Join(errChanged, err)
	default:
		return err
	}
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

// removeNFT removes the jumps first, then the rules of the chains, which refer to other
// chains, and then the chains.
func (r *removal) removeNFT() error {
	t := transaction{family: r.table.family}
	for _, j := range r.jumps {
		t.add(unix.NFT_MSG_DELRULE, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_RULE_TABLE, r.table.name)
			e.String(unix.NFTA_RULE_CHAIN, j.chain)
			e.Uint64(unix.NFTA_RULE_HANDLE, j.id)
		})
	}
	for _, name := range r.chains {
		t.add(unix.NFT_MSG_DELRULE, func(e *netlink.AttributeEncoder) { // all rules
			e.String(unix.NFTA_RULE_TABLE, r.table.name)
			e.String(unix.NFTA_RULE_CHAIN, name)
		})
	}
	for _, name := range r.chains {
		t.add(unix.NFT_MSG_DELCHAIN, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_CHAIN_TABLE, r.table.name)
			e.String(unix.NFTA_CHAIN_NAME, name)
		})
	}
	return t.run()
}

func removeOwnTable(f family) error {
	t := transaction{family: f}
	t.add(unix.NFT_MSG_DELTABLE, func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, ownTableName) })
	return t.run()
}
