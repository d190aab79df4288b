package replay

import (
	"encoding/binary"
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/packet"
)

// LinkType is the type of the link layer header of a capture's packets: a number of
// https://www.tcpdump.org/linktypes.html.
type LinkType uint16

// The link types that are read.
const (
	linkNull     LinkType = 0 // BSD loopback: the address family in the host's byte order
	linkEthernet LinkType = 1
	linkRaw12    LinkType = 12 // raw IP by the number it has on most systems
	linkRaw14    LinkType = 14 // and on OpenBSD
	linkRaw      LinkType = 101
	linkLoop     LinkType = 108 // as linkNull, in network byte order
	linkCooked   LinkType = 113 // Linux "cooked", of captures on "any"
	linkIPv4     LinkType = 228
	linkIPv6     LinkType = 229
	linkCooked2  LinkType = 276
)

// check reports whether packets of the type can be read.
func (l LinkType) check() error {
	switch l {
	case linkNull, linkEthernet, linkRaw12, linkRaw14, linkRaw, linkLoop, linkCooked, linkIPv4, linkIPv6, linkCooked2:
		return nil
	}
	return fmt.Errorf("captured with link type %d, which is not known here: want Ethernet (1), raw IP (101), Linux cooked (113, 276) or loopback (0)", l)
}

// EtherTypes.
const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100 // IEEE 802.1Q
	etherQinQ = 0x88a8 // 802.1ad
	etherOld  = 0x9100 // the same, before it was standardised
)

// packetOf finds the IP packet in a frame; nil with packet.ErrNotIP or packet.ErrTruncated if there is none.
func (l LinkType) packetOf(frame []byte) ([]byte, error) {
	switch l {
	case linkEthernet:
		return behindTags(frame, 12)
	case linkCooked:
		return behindTags(frame, 14)
	case linkCooked2:
		if len(frame) < 20 {
			return nil, packet.ErrTruncated
		}
		switch binary.BigEndian.Uint16(frame) {
		case etherIPv4, etherIPv6:
			return frame[20:], nil
		case etherVLAN, etherQinQ, etherOld:
			return behindTags(frame, 22) // the tag's number, then what it holds
		}
		return nil, packet.ErrNotIP
	case linkNull, linkLoop:
		if len(frame) < 4 {
			return nil, packet.ErrTruncated
		}
		// AF_INET is 2 everywhere; AF_INET6 10, 24, 28 or 30. Either byte order has
		// them in the first or the last byte.
		switch frame[0] | frame[3] {
		case 2, 10, 24, 28, 30:
			return frame[4:], nil
		}
		return nil, packet.ErrNotIP
	}
	return frame, nil
}

// sender returns the Ethernet source address of a frame; nil if it has none.
func (l LinkType) sender(frame []byte) *[6]byte {
	const ethernet = 1 // ARPHRD_ETHER
	switch {
	case l == linkEthernet && len(frame) >= 12:
		return (*[6]byte)(frame[6:12])
	case l == linkCooked && len(frame) >= 12 && binary.BigEndian.Uint16(frame[2:]) == ethernet && binary.BigEndian.Uint16(frame[4:]) == 6:
		return (*[6]byte)(frame[6:12])
	case l == linkCooked2 && len(frame) >= 18 && binary.BigEndian.Uint16(frame[8:]) == ethernet && frame[11] == 6:
		return (*[6]byte)(frame[12:18])
	}
	return nil
}

// behindTags follows EtherTypes from the position of the first one.
func behindTags(frame []byte, at int) ([]byte, error) {
	for len(frame) >= at+2 {
		switch binary.BigEndian.Uint16(frame[at:]) {
		case etherIPv4, etherIPv6:
			return frame[at+2:], nil
		case etherVLAN, etherQinQ, etherOld:
			at += 4
		default:
			return nil, packet.ErrNotIP
		}
	}
	return nil, packet.ErrTruncated
}
