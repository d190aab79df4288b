package xtables

import (
	"bytes"
	"encoding/binary"
)

// Extension is a match or target as the kernel keeps it.
type Extension struct {
	Name     string
	Revision uint8
	Data     []byte // the module's own struct, perhaps with bytes of alignment behind it
}

// Malformed is the name of an extension with an impossible size.
const Malformed = "malformed"

// Equal reports whether two extensions are the same. Zeros at the end are ignored: they may be
// alignment.
func (x Extension) Equal(other Extension) bool {
	return x.Name == other.Name && x.Revision == other.Revision &&
		bytes.Equal(bytes.TrimRight(x.Data, "\x00"), bytes.TrimRight(other.Data, "\x00"))
}

// Comment is match comment, of revision 0:
//
//	struct xt_comment_info { char comment[XT_MAX_COMMENT_LEN]; }
//
// A text longer than 255 bytes, the size of the struct's field, is cut off.
func Comment(text string) Extension {
	data := make([]byte, 256)
	copy(data[:255], text)
	return Extension{Name: "comment", Data: data}
}

// Mark is match mark, of revision 1: packets with mark & mask == value.
//
//	struct xt_mark_mtinfo1 { __u32 mark, mask; __u8 invert; }
func Mark(value, mask uint32) Extension {
	data := make([]byte, 16)
	byteOrder.PutUint32(data, value)
	byteOrder.PutUint32(data[4:], mask)
	return Extension{Name: "mark", Revision: 1, Data: data}
}

// States of connections (linux/netfilter/nf_conntrack_common.h, XT_CONNTRACK_STATE_BIT).
const (
	Established uint16 = 1 << 1
	Related     uint16 = 1 << 2
)

// States is match conntrack, of revision 3: packets of connections in one of the states.
//
//	struct xt_conntrack_mtinfo3 {
//		union nf_inet_addr origsrc_addr, origsrc_mask, origdst_addr, origdst_mask;
//		union nf_inet_addr replsrc_addr, replsrc_mask, repldst_addr, repldst_mask;
//		__u32 expires_min, expires_max;
//		__u16 l4proto, origsrc_port, origdst_port, replsrc_port, repldst_port;
//		__u16 match_flags, invert_flags, state_mask, status_mask;
//		__u16 origsrc_port_high, origdst_port_high, replsrc_port_high, repldst_port_high;
//	}
func States(states uint16) Extension {
	const matchFlags, stateMask, state = 146, 150, 1 << 0 // XT_CONNTRACK_STATE
	data := make([]byte, 168)
	byteOrder.PutUint16(data[matchFlags:], state)
	byteOrder.PutUint16(data[stateMask:], states)
	return Extension{Name: "conntrack", Revision: 3, Data: data}
}

// DestinationPort is match tcp, of revision 0: packets to the port. The rule must be for the
// protocol TCP.
//
//	struct xt_tcp { __u16 spts[2], dpts[2]; __u8 option, flg_mask, flg_cmp, invflags; }
func DestinationPort(port uint16) Extension {
	data := make([]byte, 16)
	byteOrder.PutUint16(data[2:], 65535) // from every port
	byteOrder.PutUint16(data[4:], port)
	byteOrder.PutUint16(data[6:], port)
	return Extension{Name: "tcp", Data: data}
}

// verdictTarget is the standard target.
func verdictTarget(verdict int32) Extension {
	return Extension{Name: StandardTarget, Data: binary.NativeEndian.AppendUint32(nil, uint32(verdict))}
}

// headTarget heads a chain.
func headTarget(name string) Extension {
	data := make([]byte, 30) // XT_FUNCTION_MAXNAMELEN
	copy(data, name)
	return Extension{Name: ErrorTarget, Data: data}
}

// append appends a struct xt_entry_match or xt_entry_target.
func (x Extension) append(raw []byte) []byte {
	const align = 8
	size := (extensionHeader + len(x.Data) + align - 1) / align * align
	at := len(raw)
	raw = append(raw, make([]byte, size)...)
	byteOrder.PutUint16(raw[at:], uint16(size))
	copy(raw[at+2:at+2+29], x.Name)
	raw[at+31] = x.Revision
	copy(raw[at+extensionHeader:], x.Data)
	return raw
}

// extension reads a struct xt_entry_match or xt_entry_target: u16 size, 29 bytes of name, u8
// revision; then the module's own data.
func extension(data []byte) (x Extension, rest []byte) {
	if len(data) < extensionHeader {
		return Extension{Name: Malformed}, nil
	}
	size := int(byteOrder.Uint16(data))
	if size < extensionHeader || size > len(data) {
		return Extension{Name: Malformed}, nil
	}
	return Extension{cString(data[2 : 2+29]), data[31], data[extensionHeader:size]}, data[size:]
}
