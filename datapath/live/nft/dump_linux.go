package nft

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// ByteOrder is the byte order of numbers in nftables' attributes.
var ByteOrder = binary.BigEndian

// maxAttempts is how often a dump is repeated if the rules changed during it.
const maxAttempts = 5

// bufferSize is twice the largest datagram of a dump. The kernel makes datagrams as large as the buffer
// lets it, and begins to walk a set anew for each (af_netlink.c, netlink_dump; nft_set_hash.c).
const bufferSize = 64 << 10

// headerSize is sizeof(struct nfgenmsg).
const headerSize = 4

// Family is the kernel's number of an address family (linux/netfilter.h).
func Family(f decision.Family) uint8 {
	if f == decision.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// Data is the data of a message: a struct nfgenmsg (linux/netfilter/nfnetlink.h) for a family
// (NFPROTO_...), and attributes, which may be nil.
func Data(family uint8, attributes Encode) ([]byte, error) {
	encoder := netlink.NewAttributeEncoder()
	encoder.ByteOrder = ByteOrder
	if attributes != nil {
		attributes(encoder)
	}
	b, err := encoder.Encode()
	return append([]byte{family, unix.NFNETLINK_V0, 0, 0}, b...), err
}

// messageType is the type of a message of a kind (NFT_MSG_...).
func messageType(kind int) netlink.HeaderType {
	return netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind)
}

// body splits a message of nftables into its family and its attributes.
func body(m netlink.Message) (family uint8, a Attributes, err error) {
	if len(m.Data) < headerSize {
		return 0, nil, errors.New("truncated message from the kernel")
	}
	if a = Parse(m.Data[headerSize:]); a == nil {
		return 0, nil, errors.New("malformed attributes from the kernel")
	}
	return m.Data[0], a, nil
}

// Generation numbers the rules of the calling thread's network namespace: each transaction makes a
// new one. The results of several dumps are consistent if the generation is the same before and
// after. It is 0 where there is no nftables.
func Generation() (uint32, error) {
	a, err := Get(unix.NFPROTO_UNSPEC, unix.NFT_MSG_GETGEN, nil)
	if a == nil || err != nil {
		return 0, err
	}
	if !a.Has(unix.NFTA_GEN_ID) {
		return 0, errors.New("the kernel does not report the generation of its rules")
	}
	return a.Uint32(unix.NFTA_GEN_ID), nil
}

// Get requests one object of a kind (NFT_MSG_GET...) in the calling thread's network namespace; nil:
// there is no such object, or no nftables. It needs CAP_NET_ADMIN.
func Get(family uint8, kind int, names Encode) (Attributes, error) {
	messages, err := execute(family, kind, 0, names)
	if len(messages) == 0 || err != nil {
		return nil, err
	}
	_, a, err := body(messages[0])
	return a, err
}

// Dump requests all objects of a kind (NFT_MSG_GET...), of a family or with NFPROTO_UNSPEC of all,
// in the calling thread's network namespace, and passes them on one by one. Some kernels ignore
// the filter, which may be nil: check the objects. If the rules change during the dump, it is
// repeated before any object is passed on. It needs CAP_NET_ADMIN. It is no error if there is no
// such table, or no nftables.
func Dump(family uint8, kind int, filter Encode, each func(family uint8, a Attributes)) error {
	for range maxAttempts {
		messages, err := execute(family, kind, netlink.Dump, filter)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(messages, func(m netlink.Message) bool { return m.Header.Flags&netlink.DumpInterrupted != 0 }) {
			return deliver(messages, each)
		}
	}
	return ErrChanged
}

// DumpOnce is Dump for callers that compare the [Generation]: if the rules changed, some objects
// may be older than the rest, come twice, or be missing.
func DumpOnce(family uint8, kind int, filter Encode, each func(family uint8, a Attributes)) error {
	messages, err := execute(family, kind, netlink.Dump, filter)
	if err != nil {
		return err
	}
	return deliver(messages, each)
}

// ReadSet calls read, which dumps the elements of a set and returns how many different ones there were,
// until they are complete: in the background the kernel resizes hash tables, and of a dump meanwhile that
// takes more than one datagram elements can be missing (nft_set_hash.c, nft_rhash_walk_ro, counts from
// the beginning for each). It is for sets whose elements have no timeout.
func ReadSet(family uint8, table, set string, read func() (int, error)) error {
	// So few fit into one datagram.
	const few = 128
	for attempt, last := 0, -1; attempt < maxAttempts; attempt++ {
		time.Sleep(time.Duration(attempt) * 10 * time.Millisecond) // for the kernel's worker
		n, err := read()
		if err != nil {
			return err
		}
		a, err := Get(family, unix.NFT_MSG_GETSET, NamedSet(table, set))
		if err != nil {
			return err
		}
		// Kernels before Linux 6.16 do not report the number.
		complete := n == last || n < few
		if a.Has(nftaSetCount) {
			complete = n >= int(a.Uint32(nftaSetCount))
		}
		if complete || a == nil {
			return nil
		}
		last = n
	}
	return ErrChanged
}

// nftaSetCount is NFTA_SET_COUNT of nf_tables.h, which the unix package does not have.
const nftaSetCount = 20

// execute returns the kernel's replies to a request; none if there are no such objects.
func execute(family uint8, kind int, flags netlink.HeaderFlags, filter Encode) ([]netlink.Message, error) {
	data, err := Data(family, filter)
	if err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: bufferSize})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	messages, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: messageType(kind), Flags: netlink.Request | flags},
		Data:   data,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	return messages, err
}

func deliver(messages []netlink.Message, each func(family uint8, a Attributes)) error {
	for _, m := range messages {
		family, a, err := body(m)
		if err != nil {
			return err
		}
		each(family, a)
	}
	return nil
}
