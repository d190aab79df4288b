package nft

import (
	"bytes"
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Attributes are the encoded attributes of one object or expression; nil: there are none, or they were
// malformed. They are part of the message that they came in. Reading them makes no garbage.
type Attributes []byte

// typeMask leaves out the flags in an attribute's type (NLA_TYPE_MASK).
const typeMask = 0x3fff

// All iterates over the types, without flags, and the values, up to one that is malformed.
func (a Attributes) All() iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for rest := a; len(rest) > 0; {
			kind, value, after := next(rest)
			if value == nil || !yield(kind, value) {
				return
			}
			rest = after
		}
	}
}

// Parse returns nested attributes; nil if they are malformed.
func Parse(data []byte) Attributes {
	for rest := data; len(rest) > 0; {
		var value []byte
		if _, value, rest = next(rest); value == nil {
			return nil
		}
	}
	return data
}

// Elements returns the attributes of each element of a list.
func Elements(data []byte) []Attributes {
	var list []Attributes
	for _, element := range Parse(data).All() {
		list = append(list, Parse(element))
	}
	return list
}

// Get is the value of the last attribute of a type, without flags; nil: there is none. The last one
// is what the kernel takes, too (lib/nlattr.c, __nla_parse).
func (a Attributes) Get(want uint16) (last []byte) {
	for kind, value := range a.All() {
		if kind == want {
			last = value
		}
	}
	return last
}

// Has reports whether there is an attribute of the type.
func (a Attributes) Has(t uint16) bool { return a.Get(t) != nil }

// Nested returns the attributes in an attribute; none if there is no such attribute.
func (a Attributes) Nested(t uint16) Attributes { return Parse(a.Get(t)) }

// Text is a string, without its NUL; "" if there is none.
func (a Attributes) Text(t uint16) string { return string(a.text(t)) }

// IsText reports whether a string is this one.
func (a Attributes) IsText(t uint16, text string) bool { return string(a.text(t)) == text }

func (a Attributes) text(t uint16) []byte {
	text, _, _ := bytes.Cut(a.Get(t), []byte{0})
	return text
}

// Uint32 is a number; 0 if there is none of this size.
func (a Attributes) Uint32(t uint16) uint32 {
	if b := a.Get(t); len(b) == 4 {
		return ByteOrder.Uint32(b)
	}
	return 0
}

// Uint64 is a number; 0 if there is none of this size.
func (a Attributes) Uint64(t uint16) uint64 {
	if b := a.Get(t); len(b) == 8 {
		return ByteOrder.Uint64(b)
	}
	return 0
}

// next splits the first attribute off; a nil value: there is none, or it is malformed.
func next(attributes []byte) (kind uint16, value, rest []byte) {
	if len(attributes) < unix.SizeofNlAttr {
		return 0, nil, nil
	}
	length := int(binary.NativeEndian.Uint16(attributes))
	if length < unix.SizeofNlAttr || length > len(attributes) {
		return 0, nil, nil
	}
	kind = binary.NativeEndian.Uint16(attributes[2:]) & typeMask
	value = attributes[unix.SizeofNlAttr:length:length]
	return kind, value, attributes[min(len(attributes), (length+3)&^3):]
}
