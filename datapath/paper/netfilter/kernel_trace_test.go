//go:build linux

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// event is a message of nftables' trace (enum nft_trace_attributes, nf_tables.h).
type event struct {
	family       uint8 // of the table
	table, chain string
	kind         uint32 // NFT_TRACETYPE_...
	handle       uint64 // of the rule
	verdict      int32  // NFT_CONTINUE, NF_DROP, ...
	in, out      uint32
	mark         uint32
	// packet is the IP packet, its transport header cut short; nil but in the first
	// event of a chain of a hook.
	packet []byte
}

// Of nf_tables.h; the package unix has the others.
const (
	traceTypeRule = 3 // NFT_TRACETYPE_RULE
	verdictDrop   = 0 // NF_DROP (netfilter.h)
	typeTrace     = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_TRACE
)

func (e event) String() string {
	kind := map[uint32]string{1: "policy", 2: "return", traceTypeRule: "rule"}[e.kind]
	s := fmt.Sprintf("%s %s %s %d verdict %d mark %#x", e.table, e.chain, kind, e.handle, e.verdict, e.mark)
	if p, ok := decode(e.packet); ok {
		s += fmt.Sprintf(" in %d out %d %s", e.in, e.out, &p)
	}
	return s
}

// drain reads all messages that wait at a netlink socket.
func drain(fd int, each func(netlink.Message) error) error {
	for {
		err := read(fd, unix.MSG_DONTWAIT, each)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return err
		}
	}
}

// receive waits for messages and reads them.
func receive(fd int, each func(netlink.Message) error) error { return read(fd, 0, each) }

func read(fd, flags int, each func(netlink.Message) error) error {
	var buffer [1 << 15]byte
	size, _, err := unix.Recvfrom(fd, buffer[:], flags)
	for errors.Is(err, unix.EINTR) {
		size, _, err = unix.Recvfrom(fd, buffer[:], flags)
	}
	if err != nil {
		return os.NewSyscallError("recvfrom", err)
	}
	messages, err := syscall.ParseNetlinkMessage(buffer[:size])
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := each(netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(m.Header.Type)}, Data: m.Data}); err != nil {
			return err
		}
	}
	return nil
}

// events gives the trace of what has gone through the node.
func (n *kernelNode) events() (events []event, err error) {
	err = drain(n.trace, func(m netlink.Message) error {
		if m.Header.Type != typeTrace {
			return nil
		}
		e, err := decodeEvent(m.Data)
		events = append(events, e)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the trace: %w", err)
	}
	return events, nil
}

// nfgenmsg is the length of that header.
const nfgenmsg = 4

func decodeEvent(b []byte) (e event, err error) {
	ad, err := netlink.NewAttributeDecoder(b[nfgenmsg:])
	if err != nil {
		return e, err
	}
	ad.ByteOrder = binary.BigEndian
	e.family = b[0]
	var transport []byte
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_TRACE_TABLE:
			e.table = ad.String()
		case unix.NFTA_TRACE_CHAIN:
			e.chain = ad.String()
		case unix.NFTA_TRACE_RULE_HANDLE:
			e.handle = ad.Uint64()
		case unix.NFTA_TRACE_TYPE:
			e.kind = ad.Uint32()
		case unix.NFTA_TRACE_VERDICT:
			ad.Nested(func(v *netlink.AttributeDecoder) error {
				for v.Next() {
					if v.Type() == unix.NFTA_VERDICT_CODE {
						e.verdict = int32(v.Uint32())
					}
				}
				return v.Err()
			})
		case unix.NFTA_TRACE_NETWORK_HEADER:
			e.packet = ad.Bytes()
		case unix.NFTA_TRACE_TRANSPORT_HEADER:
			transport = ad.Bytes()
		case unix.NFTA_TRACE_IIF:
			e.in = ad.Uint32()
		case unix.NFTA_TRACE_OIF:
			e.out = ad.Uint32()
		case unix.NFTA_TRACE_MARK:
			e.mark = ad.Uint32()
		}
	}
	e.packet = append(e.packet, transport...)
	return e, ad.Err()
}

// prefixes gives the lines that the legacy back end logs of packets that are traced, in
// order: "TRACE: filter:INPUT:rule:3 ". Of LOG and the like there are others.
func (n *kernelNode) prefixes() (lines []string, err error) {
	err = drain(n.log, func(m netlink.Message) error {
		if len(m.Data) < nfgenmsg || m.Header.Type != unix.NFNL_SUBSYS_ULOG<<8|ulogPacket {
			return nil
		}
		ad, err := netlink.NewAttributeDecoder(m.Data[nfgenmsg:])
		if err != nil {
			return err
		}
		for ad.Next() {
			if ad.Type() == ulogPrefix {
				lines = append(lines, ad.String())
			}
		}
		return ad.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	return lines, nil
}

// logSocket listens to what the node logs.
func logSocket() (int, error) {
	fd, err := netfilterSocket(0)
	if err != nil {
		return -1, err
	}
	e := netlink.NewAttributeEncoder()
	e.Bytes(1, []byte{1})                // NFULA_CFG_CMD: NFULNL_CFG_CMD_BIND
	e.Bytes(2, []byte{0, 0, 0, 0, 1, 0}) // NFULA_CFG_MODE: NFULNL_COPY_META
	e.Bytes(5, []byte{0, 0, 0, 1})       // NFULA_CFG_QTHRESH: each message by itself
	attributes, err := e.Encode()
	if err != nil {
		return -1, err
	}
	return fd, transact(fd, netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_ULOG<<8 | 1, Flags: netlink.Request}, // NFULNL_MSG_CONFIG
		Data:   append([]byte{unix.AF_UNSPEC, 0, 0, 0}, attributes...),                     // group 0
	})
}

// Of nfnetlink_log.h.
const (
	ulogPacket = 0  // NFULNL_MSG_PACKET
	ulogPrefix = 10 // NFULA_PREFIX
)

// transact sends a message.
func transact(fd int, m netlink.Message) error {
	m.Header.Length = uint32(unix.NLMSG_HDRLEN + len(m.Data))
	b, err := m.MarshalBinary()
	if err != nil {
		return err
	}
	return unix.Send(fd, b, 0)
}

// ruleKey names a rule in the kernel.
type ruleKey struct {
	table, chain string
	handle       uint64 // of nftables; with the legacy back end the number in the chain, from 1
}

// handles gives the rules of a family that the kernel has, in the order of each chain.
func (n *kernelNode) handles(family uint8) (handles map[[2]string][]uint64, err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: n.node.FD()})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	messages, err := c.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE,
			Flags: netlink.Request | netlink.Dump,
		},
		Data: []byte{family, 0, 0, 0},
	})
	if err != nil {
		return nil, fmt.Errorf("listing the rules: %w", err)
	}
	handles = make(map[[2]string][]uint64)
	for _, m := range messages {
		ad, err := netlink.NewAttributeDecoder(m.Data[nfgenmsg:])
		if err != nil {
			return nil, err
		}
		ad.ByteOrder = binary.BigEndian
		var k ruleKey
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_RULE_TABLE:
				k.table = ad.String()
			case unix.NFTA_RULE_CHAIN:
				k.chain = ad.String()
			case unix.NFTA_RULE_HANDLE:
				k.handle = ad.Uint64()
			}
		}
		if err := ad.Err(); err != nil {
			return nil, err
		}
		at := [2]string{k.table, k.chain}
		handles[at] = append(handles[at], k.handle)
	}
	return handles, nil
}
