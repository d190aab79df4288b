package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// EachElement calls each for the elements of a list (NFTA_SET_ELEM_LIST_ELEMENTS) that have a key, with
// key and data as in [Element]. The slices are parts of the list. It makes no garbage: large sets have a
// hundred thousand elements. What is malformed is left out.
func EachElement(list []byte, each func(key, data []byte)) {
	for len(list) > 0 {
		var element []byte
		if _, element, list = next(list); element == nil {
			return
		}
		var key, data []byte
		for len(element) > 0 {
			kind, value, rest := next(element)
			switch kind {
			case unix.NFTA_SET_ELEM_KEY:
				key = find(value, unix.NFTA_DATA_VALUE)
			case unix.NFTA_SET_ELEM_DATA:
				data = elementData(value)
			}
			element = rest
		}
		if key != nil {
			each(key, data)
		}
	}
}

var accepted = []byte(Accepted)

// elementData is the data of an element, as in [Element].
func elementData(data []byte) []byte {
	verdict := find(data, unix.NFTA_DATA_VERDICT)
	switch chain, code := find(verdict, unix.NFTA_VERDICT_CHAIN), find(verdict, unix.NFTA_VERDICT_CODE); {
	case len(chain) > 0:
		return chain[:len(chain)-1] // without NUL
	case len(code) == 4 && ByteOrder.Uint32(code) == Accept:
		return accepted
	}
	return find(data, unix.NFTA_DATA_VALUE)
}

// find is the value of the first attribute of a kind; nil: there is none.
func find(attributes []byte, want uint16) []byte {
	for len(attributes) > 0 {
		kind, value, rest := next(attributes)
		if kind == want {
			return value
		}
		attributes = rest
	}
	return nil
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
