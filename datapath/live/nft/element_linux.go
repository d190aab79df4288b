package nft

import "golang.org/x/sys/unix"

// EachElement calls each for the elements of a list (NFTA_SET_ELEM_LIST_ELEMENTS) that have a key, with
// key and data as in [Element]. The slices are parts of the list. It makes no garbage: large sets have a
// hundred thousand elements. What is malformed is left out.
func EachElement(list Attributes, each func(key, data []byte)) {
	for _, element := range list.All() {
		var key, data []byte
		for kind, value := range Attributes(element).All() {
			switch kind {
			case unix.NFTA_SET_ELEM_KEY:
				key = Attributes(value).Get(unix.NFTA_DATA_VALUE)
			case unix.NFTA_SET_ELEM_DATA:
				data = elementData(value)
			}
		}
		if key != nil {
			each(key, data)
		}
	}
}

var accepted = []byte(Accepted)

// elementData is the data of an element, as in [Element].
func elementData(data Attributes) []byte {
	verdict := Attributes(data.Get(unix.NFTA_DATA_VERDICT))
	switch chain, code := verdict.Get(unix.NFTA_VERDICT_CHAIN), verdict.Get(unix.NFTA_VERDICT_CODE); {
	case len(chain) > 0:
		return chain[:len(chain)-1] // without NUL
	case len(code) == 4 && ByteOrder.Uint32(code) == Accept:
		return accepted
	}
	return data.Get(unix.NFTA_DATA_VALUE)
}
