//go:build linux

package netfilter

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Of nfnetlink_queue.h.
const (
	queueNumber  = 5 // as in the rules
	queuePacket  = unix.NFNL_SUBSYS_QUEUE << 8
	queueVerdict = unix.NFNL_SUBSYS_QUEUE<<8 | 1
	queueConfig  = unix.NFNL_SUBSYS_QUEUE<<8 | 2
)

// queueSocket binds the queue.
func queueSocket() (int, error) {
	fd, err := netfilterSocket(0)
	if err != nil {
		return -1, err
	}
	e := netlink.NewAttributeEncoder()
	e.Bytes(1, []byte{1, 0, 0, 0})    // NFQA_CFG_CMD: NFQNL_CFG_CMD_BIND
	e.Bytes(2, []byte{0, 0, 0, 0, 1}) // NFQA_CFG_PARAMS: NFQNL_COPY_META
	attributes, err := e.Encode()
	if err != nil {
		return -1, err
	}
	return fd, transact(fd, toQueue(queueConfig, attributes))
}

func toQueue(typ netlink.HeaderType, attributes []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: typ, Flags: netlink.Request},
		Data:   append([]byte{unix.AF_UNSPEC, 0, 0, queueNumber}, attributes...),
	}
}

// dropQueued counts the packets that wait in the queue, and drops them.
func (n *kernelNode) dropQueued() (count int, err error) {
	if n.queue < 0 {
		return 0, nil
	}
	err = drain(n.queue, func(m netlink.Message) error {
		if m.Header.Type != queuePacket {
			return nil
		}
		ad, err := netlink.NewAttributeDecoder(m.Data[nfgenmsg:])
		if err != nil {
			return err
		}
		for ad.Next() {
			if ad.Type() != 1 { // NFQA_PACKET_HDR
				continue
			}
			count++
			e := netlink.NewAttributeEncoder()
			e.Bytes(2, append(binary.BigEndian.AppendUint32(nil, verdictDrop), ad.Bytes()[:4]...)) // NFQA_VERDICT_HDR, with the id
			attributes, err := e.Encode()
			if err != nil {
				return err
			}
			if err := transact(n.queue, toQueue(queueVerdict, attributes)); err != nil {
				return err
			}
		}
		return ad.Err()
	})
	if err != nil {
		return 0, fmt.Errorf("reading the queue: %w", err)
	}
	return count, nil
}
