package hostrules

import (
	"bytes"

	"github.com/mdlayher/netlink"

	"github.com/nfqproxy/nfqproxy/datapath/nft"
)

// attributes are those of one object or expression, by their types; of a type that is
// there several times the last one.
type attributes map[uint16][]byte

// typeMask leaves out the flags in an attribute's type (NLA_TYPE_MASK).
const typeMask = 0x3fff

func collect(ad *netlink.AttributeDecoder) attributes {
	a := make(attributes)
	for ad.Next() {
		a[ad.Type()&typeMask] = ad.Bytes()
	}
	return a
}

// parseAttributes takes nested attributes apart; it gives none of those that are
// malformed.
func parseAttributes(data []byte) attributes {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil
	}
	return collect(ad)
}

// elements returns the attributes of each attribute of a list.
func elements(data []byte) []attributes {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil
	}
	var list []attributes
	for ad.Next() {
		list = append(list, parseAttributes(ad.Bytes()))
	}
	return list
}

func (a attributes) has(t uint16) bool {
	_, ok := a[t]
	return ok
}

func (a attributes) nested(t uint16) attributes { return parseAttributes(a[t]) }

// text is a string, without its NUL; "" if there is none.
func (a attributes) text(t uint16) string {
	text, _, _ := bytes.Cut(a[t], []byte{0})
	return string(text)
}

// u16, u32 and u64 are 0 if there is no such number.
func (a attributes) u16(t uint16) uint16 {
	if b := a[t]; len(b) == 2 {
		return nft.ByteOrder.Uint16(b)
	}
	return 0
}

func (a attributes) u32(t uint16) uint32 {
	if b := a[t]; len(b) == 4 {
		return nft.ByteOrder.Uint32(b)
	}
	return 0
}

func (a attributes) u64(t uint16) uint64 {
	if b := a[t]; len(b) == 8 {
		return nft.ByteOrder.Uint64(b)
	}
	return 0
}
