package nft

import (
	"fmt"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// TestEachElement reads what AddElement writes, and what is malformed without a panic.
func TestEachElement(t *testing.T) {
	elements := []Element{
		{Key: "keys", Data: ""}, {Key: "with", Data: "data and more"},
		{Key: "jump", Data: "some_chain", Verdict: true}, {Key: "pass", Data: Accepted, Verdict: true},
	}
	var tr Transaction
	want := ""
	for _, e := range elements {
		tr.AddElement(unix.NFPROTO_IPV4, unix.NFT_MSG_NEWSETELEM, "table", "set", e)
		want += fmt.Sprintf("%s: %s\n", e.Key, e.Data)
	}
	message := Parse(tr.buf[unix.NLMSG_HDRLEN+headerSize:])
	list := message.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	got := ""
	EachElement(list, func(key, data []byte) { got += fmt.Sprintf("%s: %s\n", key, data) })
	if got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
	for n := range list {
		EachElement(list[:n], func(_, _ []byte) {})
		broken := append([]byte(nil), list...)
		broken[n] ^= 0xff
		EachElement(broken, func(_, _ []byte) {})
	}
	if n := testing.AllocsPerRun(10, func() { EachElement(list, func(_, _ []byte) {}) }); n > 0 {
		t.Errorf("%.0f allocations", n)
	}
	catchall := encode(t, func(e *netlink.AttributeEncoder) {
		e.Nested(unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) error {
			e.Uint32(unix.NFTA_SET_ELEM_FLAGS, 2)
			return nil
		})
	})
	EachElement(catchall, func(key, _ []byte) { t.Errorf("key %q", key) })
}
