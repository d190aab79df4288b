package nft

import (
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

func encode(t *testing.T, attributes Encode) []byte {
	t.Helper()
	b, err := Data(0, attributes)
	if err != nil {
		t.Fatal(err)
	}
	return b[headerSize:]
}

// TestAttributes: numbers count only in their size, strings up to their NUL, and the last attribute
// of a type.
func TestAttributes(t *testing.T) {
	inner := encode(t, func(e *netlink.AttributeEncoder) { e.Uint32(1, 7) })
	a := Parse(encode(t, func(e *netlink.AttributeEncoder) {
		e.Uint16(1, 0x1234)
		e.Uint32(2, 1)
		e.Uint32(2, 0x12345678)
		e.Uint64(3, 1<<40)
		e.Bytes(4, []byte("web\x00rest"))
		e.Bytes(5|netlink.Nested, inner)
	}))
	if a.Uint32(2) != 0x12345678 || a.Uint64(3) != 1<<40 || a.Text(4) != "web" || a.Nested(5).Uint32(1) != 7 {
		t.Errorf("%v", a)
	}
	if a.Uint32(1) != 0 || a.Uint64(2) != 0 || a.Text(9) != "" || a.Has(9) || !a.Has(5) || len(a.Nested(9)) != 0 {
		t.Errorf("missing attributes and other sizes have values: %v", a)
	}
	if whole := encode(t, func(e *netlink.AttributeEncoder) { e.Uint32(1, 7) }); Parse(whole[:len(whole)-1]) != nil || Parse(whole) == nil {
		t.Error("a truncated attribute is not malformed")
	}
	if n := testing.AllocsPerRun(10, func() {
		for range a.All() {
			_ = a.Nested(5).Uint32(1) + a.Uint32(2)
		}
		_ = a.IsText(4, "web")
	}); n > 0 {
		t.Errorf("%.0f allocations", n)
	}
}

func TestExpressions(t *testing.T) {
	element := func(name string, data byte) []byte {
		return encode(t, func(e *netlink.AttributeEncoder) {
			e.String(1, name)        // NFTA_EXPR_NAME
			e.Bytes(2, []byte{data}) // NFTA_EXPR_DATA
		})
	}
	list := Expressions(encode(t, func(e *netlink.AttributeEncoder) {
		e.Bytes(1, element("cmp", 1)) // NFTA_LIST_ELEM
		e.Bytes(1, element("counter", 2))
	}))
	if len(list) != 2 || list[0].Name != "cmp" || list[1].Name != "counter" || list[1].Data[0] != 2 {
		t.Errorf("%v", list)
	}
}

func TestTableString(t *testing.T) {
	for family, want := range map[uint8]string{1: "inet x", 2: "ip x", 10: "ip6 x", 5: "family-5 x"} {
		if got := (&Table{Family: family, Name: "x"}).String(); got != want {
			t.Errorf("family %d: %q, want %q", family, got, want)
		}
	}
}

// TestEventOf: a truncated message is an error, not an event.
func TestEventOf(t *testing.T) {
	data, err := Data(unix.NFPROTO_IPV6, func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, "nat") })
	if err != nil {
		t.Fatal(err)
	}
	m := netlink.Message{Header: netlink.Header{Type: messageType(unix.NFT_MSG_DELTABLE), PID: 7}, Data: data}
	if e, err := EventOf(m); err != nil || e.Family != unix.NFPROTO_IPV6 || e.Kind != unix.NFT_MSG_DELTABLE || e.Port != 7 || e.Table() != "nat" {
		t.Errorf("%+v, %v", e, err)
	}
	for n := range data {
		m.Data = data[:n]
		if e, err := EventOf(m); err == nil && n != headerSize {
			t.Errorf("%d bytes: %+v", n, e)
		}
	}
}
