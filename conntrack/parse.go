package conntrack

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"time"
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
// message without its netlink header.
func parseState(b []byte) (State, error) {
	s, _, err := parseStateAt(b)
	return s, err
}

// parseStateAt is parseState for an event, which may have a time.
func parseStateAt(b []byte) (s State, at time.Time, err error) {
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
			var n uint32
			n, err = parseUint32(v)
			s.Status = Status(n)
		case ctaTimeout:
			s.Timeout, err = parseUint32(v)
		case ctaMark:
			s.Mark, err = parseUint32(v)
		case ctaID:
			s.ID, err = parseUint32(v)
		case ctaZone:
			if len(v) < 2 {
				return errShort
			}
			s.Zone = binary.BigEndian.Uint16(v)
		case ctaProtoinfo:
			err = s.parseProtoinfo(v)
		case ctaCountersOrig:
			s.HasCounters = true
			s.Sent, err = parseCounters(v)
		case ctaCountersReply:
			s.HasCounters = true
			s.Received, err = parseCounters(v)
		case ctaTimestamp:
			err = s.parseTimes(v)
		case ctaTimestampEvent:
			at, err = parseTime(v)
		}
		return err
	})
	return s, at, err
}

func parseCounters(b []byte) (c Counters, err error) {
	err = attributes(b, func(typ uint16, v []byte) (err error) {
		switch typ {
		case ctaCountersPackets:
			c.Packets, err = parseUint64(v)
		case ctaCountersBytes:
			c.Bytes, err = parseUint64(v)
		}
		return err
	})
	return c, err
}

func (s *State) parseTimes(b []byte) error {
	return attributes(b, func(typ uint16, v []byte) (err error) {
		switch typ {
		case ctaTimestampStart:
			s.Start, err = parseTime(v)
		case ctaTimestampStop:
			s.Stop, err = parseTime(v)
		}
		return err
	})
}

// parseTime reads nanoseconds since 1970; 0 is no time.
func parseTime(b []byte) (time.Time, error) {
	ns, err := parseUint64(b)
	if err != nil || ns == 0 {
		return time.Time{}, err
	}
	return time.Unix(0, int64(ns)), nil
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

func parseTuple(b []byte) (Tuple, error) {
	var t Tuple
	var src, dst netip.Addr
	var sport, dport uint16
	err := attributes(b, func(part uint16, v []byte) error {
		return attributes(v, func(typ uint16, v []byte) error {
			switch part {
			case ctaTupleIP:
				a, ok := netip.AddrFromSlice(v)
				if !ok {
					return errShort
				}
				if typ == ctaIPv4Src || typ == ctaIPv6Src {
					src = a
				} else {
					dst = a
				}
			case ctaTupleProto:
				switch {
				case typ == ctaProtoNum && len(v) >= 1:
					t.Protocol = v[0]
				case typ == ctaProtoSrcPort && len(v) >= 2:
					sport = binary.BigEndian.Uint16(v)
				case typ == ctaProtoDstPort && len(v) >= 2:
					dport = binary.BigEndian.Uint16(v)
				}
			}
			return nil
		})
	})
	t.Source, t.Destination = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return t, err
}

func parseUint32(b []byte) (uint32, error) {
	if len(b) < 4 {
		return 0, errShort
	}
	return binary.BigEndian.Uint32(b), nil
}

func parseUint64(b []byte) (uint64, error) {
	if len(b) < 8 {
		return 0, errShort
	}
	return binary.BigEndian.Uint64(b), nil
}

// parseErrno reads the body of an NLMSG_ERROR; 0 is an acknowledgement.
func parseErrno(b []byte) syscall.Errno {
	if len(b) < 4 {
		return syscall.EPROTO
	}
	return syscall.Errno(-int32(binary.NativeEndian.Uint32(b)))
}
