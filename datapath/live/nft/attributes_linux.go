package nft

import (
	"bytes"

	"github.com/mdlayher/netlink"
)

// Attributes are the attributes of one object or expression, by their types without flags; of a
// type that is there several times, the last one.
type Attributes map[uint16][]byte

// typeMask leaves out the flags in an attribute's type (NLA_TYPE_MASK).
const typeMask = 0x3fff

func parse(data []byte) (Attributes, error) {
	decoder, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil, err
	}
	a := make(Attributes)
	for decoder.Next() {
		a[decoder.Type()&typeMask] = decoder.Bytes()
	}
	return a, decoder.Err()
}

// Parse takes nested attributes apart. The result is empty if they are malformed.
func Parse(data []byte) Attributes {
	a, err := parse(data)
	if err != nil {
		return nil
	}
	return a
}

// Elements returns the attributes of each element of a list.
func Elements(data []byte) []Attributes {
	decoder, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil
	}
	var list []Attributes
	for decoder.Next() {
		list = append(list, Parse(decoder.Bytes()))
	}
	return list
}

// Has reports whether there is an attribute of the type.
func (a Attributes) Has(t uint16) bool {
	_, ok := a[t]
	return ok
}

// Nested returns the attributes in an attribute; none if there is no such attribute.
func (a Attributes) Nested(t uint16) Attributes { return Parse(a[t]) }

// Text is a string, without its NUL; "" if there is none.
func (a Attributes) Text(t uint16) string {
	text, _, _ := bytes.Cut(a[t], []byte{0})
	return string(text)
}

// Uint16 is a number; 0 if there is none of this size. Uint32 and Uint64 are likewise.
func (a Attributes) Uint16(t uint16) uint16 {
	if b := a[t]; len(b) == 2 {
		return ByteOrder.Uint16(b)
	}
	return 0
}

// Uint32 is a number; 0 if there is none of this size.
func (a Attributes) Uint32(t uint16) uint32 {
	if b := a[t]; len(b) == 4 {
		return ByteOrder.Uint32(b)
	}
	return 0
}

// Uint64 is a number; 0 if there is none of this size.
func (a Attributes) Uint64(t uint16) uint64 {
	if b := a[t]; len(b) == 8 {
		return ByteOrder.Uint64(b)
	}
	return 0
}
