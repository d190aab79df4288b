package noderules

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestRead: the rules of a network namespace, of both back ends and families, with counters; its addresses, and its
// routes to addresses.
func TestRead(t *testing.T) {
	netnstest.Require(t)
	programs := []string{"iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"}
	for _, program := range programs {
		netnstest.RequireTool(t, program)
	}
	node, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	other, err := netns.New("other")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(node.Close(), other.Close()); err != nil {
			t.Error(err)
		}
	})
	own, near, far := netip.MustParsePrefix("10.245.0.1/24"), netip.MustParseAddr("10.245.0.7"), netip.MustParseAddr("192.0.2.1")
	if err := errors.Join(node.AddVeth("link", other, "eth0"), node.AddAddress("link", own)); err != nil {
		t.Fatal(err)
	}
	for i, program := range programs {
		// The mark tells them apart.
		if out, err := node.Run("", program, "-w", "-A", "FORWARD", "-m", "mark", "--mark", []string{"0x1", "0x2", "0x3", "0x4"}[i], "-j", "DROP"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	var r *Rules
	err = node.Do(func() (err error) {
		r, err = Read(t.Context(), []netip.Addr{near, own.Addr(), far})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, l := range r.Listings {
		for line := range strings.Lines(l.Text) {
			if strings.Contains(line, "-A FORWARD") {
				listed = append(listed, l.Program+" "+strings.TrimSpace(line))
			}
		}
	}
	want := []string{
		"iptables-nft-save [0:0] -A FORWARD -m mark --mark 0x1 -j DROP", "iptables-legacy-save [0:0] -A FORWARD -m mark --mark 0x2 -j DROP",
		"ip6tables-nft-save [0:0] -A FORWARD -m mark --mark 0x3 -j DROP", "ip6tables-legacy-save [0:0] -A FORWARD -m mark --mark 0x4 -j DROP",
	}
	if !slices.Equal(listed, want) {
		t.Errorf("listed %q, want %q", listed, want)
	}
	if !r.Network.Has(own.Addr()) || r.Network.Has(near) {
		t.Errorf("addresses of interfaces %+v", r.Network.Interfaces)
	}
	if len(r.Network.Routes) != 1 || r.Network.Routes[0].Destination.Addr() != near || r.Network.Routes[0].Interface != "link" {
		t.Errorf("routes %+v, want one to %s by link", r.Network.Routes, near)
	}
}

// TestList: what a program prints, and why it fails.
func TestList(t *testing.T) {
	if out, err := List(t.Context(), "echo", "rules"); err != nil || string(out) != "rules\n" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := List(t.Context(), "nfqproxy-no-such-program"); !errors.Is(err, ErrNoProgram) {
		t.Errorf("%v, want %v", err, ErrNoProgram)
	}
	if _, err := List(t.Context(), "sh", "-c", "echo no permission >&2; exit 1"); err == nil || err.Error() != "sh: no permission" {
		t.Errorf("%v, want the program's message", err)
	}
}
