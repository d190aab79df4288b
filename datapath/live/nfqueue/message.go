// Package nfqueue receives packets from a netfilter queue and sends verdicts, many in one system
// call, without copying or allocating. go-nfqueue binds and configures the queue.
package nfqueue

import (
	"encoding/binary"
	"errors"
	"syscall"
	"time"
)

// Constants with the names of linux/netfilter/nfnetlink_queue.h and linux/netlink.h.
const (
	nlmsgHdrLen = 16
	nfgenmsgLen = 4
	nlaHdrLen   = 4
	nlaTypeMask = 0x3fff
	nlmsgError  = 2      // NLMSG_ERROR
	flagRequest = 1      // NLM_F_REQUEST
	flagAck     = 4      // NLM_F_ACK
	subsysQueue = 3 << 8 // NFNL_SUBSYS_QUEUE
	msgPacket   = subsysQueue + 0
	msgVerdict  = subsysQueue + 1

	nfqaPacketHdr  = 1
	nfqaVerdictHdr = 2
	nfqaMark       = 3
	nfqaTimestamp  = 4
	nfqaInDev      = 5 // NFQA_IFINDEX_INDEV
	nfqaPayload    = 10

	nfDrop   = 0
	nfAccept = 1
)

// Hook is where in the kernel a packet was queued (enum nf_inet_hooks).
type Hook uint8

// The hooks that packets are queued at.
const (
	Prerouting Hook = 0
	Output     Hook = 3
)

// Packet is one packet that waits for a verdict.
type Packet struct {
	ID   uint32 // of the packet within its queue
	Hook Hook
	Mark uint32 // the packet's mark
	// InInterface is the index of the input interface; 0: the packet originates on this host.
	InInterface uint32
	// Arrived is when it arrived at this host, by the wall clock, in microseconds. Zero: unknown,
	// as for packets that originate here, and for all packets if time stamps are off (see
	// [StampPackets]). A packet from another network namespace of the same machine arrives again
	// at the virtual device.
	Arrived time.Time
	// Payload starts with the IP header and ends with the packet or at the copy
	// range. It is valid until the next Receive.
	Payload []byte
}

// Verdict is the verdict on one packet.
type Verdict struct {
	ID   uint32
	Drop bool   // otherwise the packet is accepted
	Mark uint32 // the packet's new mark; set even if it is 0
}

var errShort = errors.New("nfqueue: truncated message from the kernel")

// answer is the kernel's reply to a message, as an error that parse can return; 0: success.
type answer syscall.Errno

func (a answer) Error() string { return "nfqueue: the kernel answers: " + syscall.Errno(a).Error() }

// parse reads one netlink datagram: a packet. The error is an answer if it is one.
func parse(b []byte) (p Packet, err error) {
	if len(b) < nlmsgHdrLen+nfgenmsgLen {
		return p, errShort
	}
	n := int(binary.NativeEndian.Uint32(b))
	switch binary.NativeEndian.Uint16(b[4:]) {
	case nlmsgError:
		return p, answer(-int32(binary.NativeEndian.Uint32(b[nlmsgHdrLen:])))
	case msgPacket:
	default:
		return p, errors.New("nfqueue: unexpected type of message from the kernel")
	}
	if n > len(b) {
		n = len(b) // the payload's end did not fit into the buffer
	}
	hasID := false
	for b = b[nlmsgHdrLen+nfgenmsgLen : max(n, nlmsgHdrLen+nfgenmsgLen)]; len(b) >= nlaHdrLen; {
		l := int(binary.NativeEndian.Uint16(b))
		if l < nlaHdrLen {
			return p, errShort
		}
		typ := binary.NativeEndian.Uint16(b[2:]) & nlaTypeMask
		v := b[nlaHdrLen:max(min(l, len(b)), nlaHdrLen)]
		switch {
		case typ == nfqaPacketHdr && len(v) >= 7: // struct nfqnl_msg_packet_hdr
			p.ID, p.Hook, hasID = binary.BigEndian.Uint32(v), Hook(v[6]), true
		case typ == nfqaMark && len(v) >= 4:
			p.Mark = binary.BigEndian.Uint32(v)
		case typ == nfqaInDev && len(v) >= 4:
			p.InInterface = binary.BigEndian.Uint32(v)
		case typ == nfqaTimestamp && len(v) >= 16: // struct nfqnl_msg_packet_timestamp
			p.Arrived = time.Unix(int64(binary.BigEndian.Uint64(v)), int64(binary.BigEndian.Uint64(v[8:]))*1000)
		case typ == nfqaPayload:
			p.Payload = v
		}
		b = b[min((l+3)&^3, len(b)):]
	}
	if !hasID {
		return p, errShort
	}
	return p, nil
}

// appendProbe writes a message that changes nothing and to which the kernel replies: a verdict for
// packet 0, which does not exist, because the kernel counts packets from 1.
func appendProbe(b []byte, queue uint16) []byte {
	n := len(b)
	b = appendVerdict(b, queue, Verdict{})
	binary.NativeEndian.PutUint16(b[n+6:], flagRequest|flagAck)
	return b
}

// appendVerdict writes NFQNL_MSG_VERDICT without NLM_F_ACK.
func appendVerdict(b []byte, queue uint16, v Verdict) []byte {
	const size = nlmsgHdrLen + nfgenmsgLen + nlaHdrLen + 8 + nlaHdrLen + 4
	b = binary.NativeEndian.AppendUint32(b, size)
	b = binary.NativeEndian.AppendUint16(b, msgVerdict)
	b = binary.NativeEndian.AppendUint16(b, flagRequest)
	b = binary.NativeEndian.AppendUint32(b, v.ID) // sequence number: refusals quote it
	b = binary.NativeEndian.AppendUint32(b, 0)    // port id: the kernel fills it in
	b = append(b, 0, 0)                           // struct nfgenmsg: family, version
	b = binary.BigEndian.AppendUint16(b, queue)   // and res_id
	b = binary.NativeEndian.AppendUint16(b, nlaHdrLen+8)
	b = binary.NativeEndian.AppendUint16(b, nfqaVerdictHdr)
	verdict := uint32(nfAccept)
	if v.Drop {
		verdict = nfDrop
	}
	b = binary.BigEndian.AppendUint32(b, verdict)
	b = binary.BigEndian.AppendUint32(b, v.ID)
	b = binary.NativeEndian.AppendUint16(b, nlaHdrLen+4)
	b = binary.NativeEndian.AppendUint16(b, nfqaMark)
	return binary.BigEndian.AppendUint32(b, v.Mark)
}
