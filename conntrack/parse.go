package conntrack

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"time"
	"unsafe"
)

var errShort = errors.New("conntrack: truncated message from the kernel")

// attributes calls f for each attribute in b, with the type freed of its flags.
func attributes(b []byte, f func(typ uint16, value []byte) error) error {
	for len(b) >= nlaHdrLen {
		n := int(binary.NativeEndian.Uint16(b))
		if n < nlaHdrLen || n > len(b) {
			return errShort
		}
		if err := f(binary.NativeEndian.Uint16(b[2:])&nlaTypeMask, b[nlaHdrLen:n]); err != nil {
			return err
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}

// parseState reads the attributes of an entry as the kernel reports it: the
// message without its netlink header. An event may have a time.
func parseState(b []byte) (s State, at time.Time, err error) {
	if len(b) < nfgenmsgLen {
		return s, at, errShort
	}
	err = attributes(b[nfgenmsgLen:], func(typ uint16, v []byte) (err error) {
		switch typ {
		case ctaTupleOrig:
			s.Original, err = parseTuple(v)
		case ctaTupleReply:
			s.Reply, err = parseTuple(v)
		case ctaStatus:
			err = number(v, &s.Status)
		case ctaTimeout:
			err = number(v, &s.Timeout)
		case ctaMark:
			err = number(v, &s.Mark)
		case ctaID:
			err = number(v, &s.ID)
		case ctaZone:
			err = number(v, &s.Zone)
		case ctaProtoinfo:
			err = s.parseProtoinfo(v)
		case ctaCountersOrig:
			s.HasCounters = true
			err = pair(v, &s.Sent.Packets, &s.Sent.Bytes)
		case ctaCountersReply:
			s.HasCounters = true
			err = pair(v, &s.Received.Packets, &s.Received.Bytes)
		case ctaTimestamp:
			var start, stop int64
			err = pair(v, &start, &stop)
			s.Start, s.Stop = timeOf(start), timeOf(stop)
		case ctaTimestampEvent:
			var ns int64
			err = number(v, &ns)
			at = timeOf(ns)
		}
		return err
	})
	return s, at, err
}

// pair reads the attributes 1 and 2: CTA_COUNTERS_PACKETS and _BYTES, CTA_TIMESTAMP_START and _STOP, or
// CTA_STATS_GLOBAL_ENTRIES and _MAX_ENTRIES, the last one since Linux 4.18.
func pair[T ~uint32 | ~uint64 | ~int64](b []byte, first, second *T) error {
	return attributes(b, func(typ uint16, v []byte) error {
		switch typ {
		case 1:
			return number(v, first)
		case 2:
			return number(v, second)
		}
		return nil
	})
}

// timeOf is nanoseconds since 1970; 0 is no time.
func timeOf(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

func (s *State) parseProtoinfo(b []byte) error {
	return attributes(b, func(proto uint16, v []byte) error {
		return attributes(v, func(typ uint16, v []byte) error {
			switch {
			case len(v) == 0:
			case proto == ctaProtoinfoTCP && typ == ctaTCPState:
				s.TCP = TCPState(v[0])
			case proto == ctaProtoinfoSCTP && typ == ctaSCTPState:
				s.SCTP = SCTPState(v[0])
			}
			return nil
		})
	})
}

func parseTuple(b []byte) (t Tuple, err error) {
	var src, dst netip.Addr
	var sport, dport uint16
	err = attributes(b, func(part uint16, v []byte) error {
		return attributes(v, func(typ uint16, v []byte) error {
			switch {
			case part == ctaTupleIP:
				a, ok := netip.AddrFromSlice(v)
				if !ok {
					return errShort
				}
				if typ == ctaIPv4Src || typ == ctaIPv6Src {
					src = a
				} else {
					dst = a
				}
			case part != ctaTupleProto:
			case typ == ctaProtoNum && len(v) >= 1:
				t.Protocol = v[0]
			case typ == ctaProtoSrcPort:
				return number(v, &sport)
			case typ == ctaProtoDstPort:
				return number(v, &dport)
			}
			return nil
		})
	})
	t.Source, t.Destination = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return t, err
}

// number reads a number in network order.
func number[T ~uint16 | ~uint32 | ~uint64 | ~int64](b []byte, to *T) error {
	size := int(unsafe.Sizeof(*to))
	switch {
	case len(b) < size:
		return errShort
	case size == 2:
		*to = T(binary.BigEndian.Uint16(b))
	case size == 4:
		*to = T(binary.BigEndian.Uint32(b))
	default:
		*to = T(binary.BigEndian.Uint64(b))
	}
	return nil
}

// parseErrno reads the body of an NLMSG_ERROR; 0 is an acknowledgement.
func parseErrno(b []byte) syscall.Errno {
	if len(b) < 4 {
		return syscall.EPROTO
	}
	return syscall.Errno(-int32(binary.NativeEndian.Uint32(b)))
}
