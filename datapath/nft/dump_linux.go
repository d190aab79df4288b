package nft

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// ByteOrder is the byte order of numbers in nftables' attributes.
var ByteOrder = binary.BigEndian

// maxAttempts is how often a dump is repeated if the rules changed during it.
const maxAttempts = 5

// headerSize is sizeof(struct nfgenmsg).
const headerSize = 4

// Family is the kernel's number of an address family (linux/netfilter.h).
func Family(f decision.Family) uint8 {
	if f == decision.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// Header is a struct nfgenmsg (linux/netfilter/nfnetlink.h) for a family (NFPROTO_...).
func Header(family uint8) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

// MessageType is the type of a message of a kind (NFT_MSG_...).
func MessageType(kind int) netlink.HeaderType {
	return netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind)
}

// Body splits a message of nftables into its family and its attributes.
func Body(m netlink.Message) (family uint8, attributes *netlink.AttributeDecoder, err error) {
	if len(m.Data) < headerSize {
		return 0, nil, errors.New("truncated message from the kernel")
	}
	attributes, err = netlink.NewAttributeDecoder(m.Data[headerSize:])
	if err != nil {
		return 0, nil, err
	}
	attributes.ByteOrder = ByteOrder
	return m.Data[0], attributes, nil
}

// Generation numbers the rules of the calling thread's network namespace: each transaction makes a
// new one. The results of several dumps are consistent if the generation is the same before and
// after. It is 0 where there is no nftables.
func Generation() (uint32, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	messages, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: MessageType(unix.NFT_MSG_GETGEN), Flags: netlink.Request},
		Data:   Header(unix.NFPROTO_UNSPEC),
	})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return 0, nil
	case err != nil:
		return 0, err
	}
	for _, m := range messages {
		_, attributes, err := Body(m)
		if err != nil {
			return 0, err
		}
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_GEN_ID {
				return attributes.Uint32(), attributes.Err()
			}
		}
	}
	return 0, errors.New("the kernel does not report the generation of its rules")
}

// Dump requests all objects of a kind (NFT_MSG_GET...), of a family or with NFPROTO_UNSPEC of all,
// in the calling thread's network namespace, and passes them on one by one. Some kernels ignore
// the filter, which may be nil: check the objects. If the rules change during the dump, it is
// repeated before any object is passed on. It needs CAP_NET_ADMIN. It is no error if there is no
// such table, or no nftables.
func Dump(family uint8, kind int, filter func(*netlink.AttributeEncoder), each func(family uint8, attributes *netlink.AttributeDecoder)) error {
	for range maxAttempts {
		messages, err := dump(family, kind, filter)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(messages, func(m netlink.Message) bool { return m.Header.Flags&netlink.DumpInterrupted != 0 }) {
			return handOver(messages, each)
		}
	}
	return ErrChanged
}

// DumpOnce is Dump for callers that compare the [Generation]: if the rules changed, some objects
// may be older than the rest, come twice, or be missing.
func DumpOnce(family uint8, kind int, filter func(*netlink.AttributeEncoder), each func(family uint8, attributes *netlink.AttributeDecoder)) error {
	messages, err := dump(family, kind, filter)
	if err != nil {
		return err
	}
	return handOver(messages, each)
}

// dump returns the kernel's replies; none if there are no such objects.
func dump(family uint8, kind int, filter func(*netlink.AttributeEncoder)) ([]netlink.Message, error) {
	data := Header(family)
	if filter != nil {
		encoder := netlink.NewAttributeEncoder()
		encoder.ByteOrder = ByteOrder
		filter(encoder)
		attributes, err := encoder.Encode()
		if err != nil {
			return nil, err
		}
		data = append(data, attributes...)
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	messages, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: MessageType(kind), Flags: netlink.Request | netlink.Dump},
		Data:   data,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	return messages, err
}

func handOver(messages []netlink.Message, each func(family uint8, attributes *netlink.AttributeDecoder)) error {
	for _, m := range messages {
		family, attributes, err := Body(m)
		if err != nil {
			return err
		}
		each(family, attributes)
		if err := attributes.Err(); err != nil {
			return err
		}
	}
	return nil
}
