package conntracktest

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"

	"github.com/nfqproxy/nfqproxy/conntrack"
)

// What the fake needs of linux/netlink.h, linux/netfilter/nfnetlink.h and
// nfnetlink_conntrack.h, with their names. It shares no code with package conntrack, whose
// errors it could not find otherwise.
const (
	nlmsgHdrLen   = 16    // struct nlmsghdr
	nfgenmsgLen   = 4     // struct nfgenmsg
	nlmsgError    = 2     // NLMSG_ERROR
	nlmsgDone     = 3     // NLMSG_DONE
	flagDump      = 0x300 // NLM_F_DUMP
	flagCreate    = 0x400 // NLM_F_CREATE
	afInet        = 2
	afInet6       = 10
	protoSCTP     = 132
	subsysCT      = 1 << 8 // NFNL_SUBSYS_CTNETLINK
	msgCTNew      = subsysCT + 0
	msgCTGet      = subsysCT + 1
	msgCTDelete   = subsysCT + 2
	msgCTGetStats = subsysCT + 5

	ctaTupleOrig     = 1
	ctaTupleReply    = 2
	ctaStatus        = 3
	ctaProtoinfo     = 4
	ctaNATSrc        = 6
	ctaTimeout       = 7
	ctaMark          = 8
	ctaCountersOrig  = 9
	ctaCountersReply = 10
	ctaID            = 12
	ctaNATDst        = 13
	ctaZone          = 18
	ctaTimestamp     = 20

	ctaStatsGlobalEntries    = 1
	ctaStatsGlobalMaxEntries = 2
	ctaCountersPackets       = 1
	ctaCountersBytes         = 2
	ctaTimestampStart        = 1
	ctaTimestampStop         = 2

	ctaTupleIP       = 1
	ctaTupleProto    = 2
	ctaIPv4Src       = 1
	ctaIPv4Dst       = 2
	ctaIPv6Src       = 3
	ctaIPv6Dst       = 4
	ctaProtoNum      = 1
	ctaProtoSrcPort  = 2
	ctaProtoDstPort  = 3
	ctaNATv4MinIP    = 1
	ctaNATProto      = 3
	ctaNATv6MinIP    = 4
	ctaProtonatMin   = 1 // CTA_PROTONAT_PORT_MIN
	ctaProtoinfoTCP  = 1
	ctaProtoinfoSCTP = 3
	ctaTCPState      = 1 // CTA_PROTOINFO_TCP_STATE
	ctaSCTPState     = 1 // CTA_PROTOINFO_SCTP_STATE
)

// request is what a message is about.
type request struct {
	original, reply   conntrack.Tuple
	timeout, mark, id uint32
	zone              uint16
	destination       netip.AddrPort // CTA_NAT_DST
	source            netip.Addr     // CTA_NAT_SRC
}

// parseRequest reads the attributes of a message.
func parseRequest(attributes []byte) (r request, err error) {
	err = decode(attributes, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case ctaTupleOrig:
			ad.Nested(parseTuple(&r.original))
		case ctaTupleReply:
			ad.Nested(parseTuple(&r.reply))
		case ctaTimeout:
			r.timeout = ad.Uint32()
		case ctaMark:
			r.mark = ad.Uint32()
		case ctaID:
			r.id = ad.Uint32()
		case ctaZone:
			r.zone = ad.Uint16()
		case ctaNATDst:
			ad.Nested(parseNAT(&r.destination))
		case ctaNATSrc:
			var to netip.AddrPort
			ad.Nested(parseNAT(&to))
			r.source = to.Addr()
		}
	})
	return r, err
}

// decode calls each for the attributes one after the other.
func decode(attributes []byte, each func(*netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		each(ad)
	}
	return ad.Err()
}

func parseTuple(t *conntrack.Tuple) func(*netlink.AttributeDecoder) error {
	var src, dst netip.Addr
	var sport, dport uint16
	return func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			part := ad.Type()
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					switch typ := ad.Type(); {
					case part == ctaTupleIP && (typ == ctaIPv4Src || typ == ctaIPv6Src):
						ad.Do(parseAddr(&src))
					case part == ctaTupleIP && (typ == ctaIPv4Dst || typ == ctaIPv6Dst):
						ad.Do(parseAddr(&dst))
					case part == ctaTupleProto && typ == ctaProtoNum:
						t.Protocol = ad.Uint8()
					case part == ctaTupleProto && typ == ctaProtoSrcPort:
						sport = ad.Uint16()
					case part == ctaTupleProto && typ == ctaProtoDstPort:
						dport = ad.Uint16()
					}
				}
				return nil
			})
		}
		t.Source, t.Destination = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
		return nil
	}
}

// parseNAT reads a range of one address and at most one port.
func parseNAT(to *netip.AddrPort) func(*netlink.AttributeDecoder) error {
	var addr netip.Addr
	var port uint16
	return func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			switch ad.Type() {
			case ctaNATv4MinIP, ctaNATv6MinIP:
				ad.Do(parseAddr(&addr))
			case ctaNATProto:
				ad.Nested(func(ad *netlink.AttributeDecoder) error {
					for ad.Next() {
						if ad.Type() == ctaProtonatMin {
							port = ad.Uint16()
						}
					}
					return nil
				})
			}
		}
		*to = netip.AddrPortFrom(addr, port)
		return nil
	}
}

func parseAddr(a *netip.Addr) func([]byte) error {
	return func(b []byte) (err error) {
		ok := false
		if *a, ok = netip.AddrFromSlice(b); !ok {
			err = fmt.Errorf("address of %d bytes", len(b))
		}
		return err
	}
}

// message gives a netlink message that identifies an entry and has the attributes.
func message(typ uint16, port uint32, s *conntrack.State, attributes ...func(*netlink.AttributeEncoder)) []byte {
	b := body(family(s.Original), append([]func(*netlink.AttributeEncoder){identity(s)}, attributes...)...)
	header := binary.NativeEndian.AppendUint32(nil, uint32(nlmsgHdrLen+len(b)))
	header = binary.NativeEndian.AppendUint16(header, typ)
	header = binary.NativeEndian.AppendUint16(header, 0) // flags
	header = binary.NativeEndian.AppendUint32(header, 0) // sequence number
	header = binary.NativeEndian.AppendUint32(header, port)
	return append(header, b...)
}

// body gives what follows the header of a message.
func body(family byte, attributes ...func(*netlink.AttributeEncoder)) []byte {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	for _, add := range attributes {
		add(ae)
	}
	b, err := ae.Encode()
	if err != nil {
		panic("conntracktest: " + err.Error()) // no attribute gets too long
	}
	return append([]byte{family, 0, 0, 0}, b...)
}

func family(t conntrack.Tuple) byte {
	if t.Source.Addr().Is6() {
		return afInet6
	}
	return afInet
}

// Body gives the body of the message by which the kernel reports an entry, for a
// [conntrack.Transport] of one's own.
func Body(s *conntrack.State) []byte {
	return body(family(s.Original), identity(s), lifetime(s), protocolState(s), counts(s))
}

func identity(s *conntrack.State) func(*netlink.AttributeEncoder) {
	return func(ae *netlink.AttributeEncoder) {
		ae.Nested(ctaTupleOrig, tuple(s.Original))
		ae.Nested(ctaTupleReply, tuple(s.Reply))
		ae.Uint32(ctaStatus, uint32(s.Status))
		ae.Uint32(ctaMark, s.Mark)
		ae.Uint32(ctaID, s.ID)
		if s.Zone != 0 {
			ae.Uint16(ctaZone, s.Zone)
		}
	}
}

func tuple(t conntrack.Tuple) func(*netlink.AttributeEncoder) error {
	return func(ae *netlink.AttributeEncoder) error {
		ae.Nested(ctaTupleIP, func(ae *netlink.AttributeEncoder) error {
			src, dst := uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
			if t.Source.Addr().Is6() {
				src, dst = ctaIPv6Src, ctaIPv6Dst
			}
			ae.Bytes(src, t.Source.Addr().AsSlice())
			ae.Bytes(dst, t.Destination.Addr().AsSlice())
			return nil
		})
		ae.Nested(ctaTupleProto, func(ae *netlink.AttributeEncoder) error {
			ae.Uint8(ctaProtoNum, t.Protocol)
			ae.Uint16(ctaProtoSrcPort, t.Source.Port())
			ae.Uint16(ctaProtoDstPort, t.Destination.Port())
			return nil
		})
		return nil
	}
}

func lifetime(s *conntrack.State) func(*netlink.AttributeEncoder) {
	return func(ae *netlink.AttributeEncoder) { ae.Uint32(ctaTimeout, s.Timeout) }
}

func protocolState(s *conntrack.State) func(*netlink.AttributeEncoder) {
	protocol, typ, state := uint16(ctaProtoinfoTCP), uint16(ctaTCPState), uint8(s.TCP)
	if s.Original.Protocol == protoSCTP {
		protocol, typ, state = ctaProtoinfoSCTP, ctaSCTPState, uint8(s.SCTP)
	}
	return func(ae *netlink.AttributeEncoder) {
		ae.Nested(ctaProtoinfo, func(ae *netlink.AttributeEncoder) error {
			ae.Nested(protocol, func(ae *netlink.AttributeEncoder) error {
				ae.Uint8(typ, state)
				return nil
			})
			return nil
		})
	}
}

// counts writes the counters and the times, as far as they are known.
func counts(s *conntrack.State) func(*netlink.AttributeEncoder) {
	return func(ae *netlink.AttributeEncoder) {
		if s.HasCounters {
			ae.Nested(ctaCountersOrig, counters(s.Sent))
			ae.Nested(ctaCountersReply, counters(s.Received))
		}
		if s.Start.IsZero() {
			return
		}
		ae.Nested(ctaTimestamp, func(ae *netlink.AttributeEncoder) error {
			ae.Uint64(ctaTimestampStart, uint64(s.Start.UnixNano()))
			if !s.Stop.IsZero() {
				ae.Uint64(ctaTimestampStop, uint64(s.Stop.UnixNano()))
			}
			return nil
		})
	}
}

func counters(c conntrack.Counters) func(*netlink.AttributeEncoder) error {
	return func(ae *netlink.AttributeEncoder) error {
		ae.Uint64(ctaCountersPackets, c.Packets)
		ae.Uint64(ctaCountersBytes, c.Bytes)
		return nil
	}
}
