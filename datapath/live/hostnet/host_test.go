package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
)

// fakeKernel is a host with the addresses and routes it is given.
type fakeKernel struct {
	addrs  []address
	routes map[string]route
	err    error
	// failures: err is that of so many listings; 0: of all.
	failures int
	linkErr  error
	lookups  int
	events   []bool // what watch reports
}

func (k *fakeKernel) addresses() ([]address, error) {
	err := k.err
	if k.failures > 0 {
		if k.failures--; k.failures == 0 {
			k.err = nil
		}
	}
	return k.addrs, err
}
func (k *fakeKernel) route(dst netip.Addr) (route, error) {
	k.lookups++
	r, ok := k.routes[dst.String()]
	if !ok {
		return route{}, errors.New("network is unreachable")
	}
	return r, nil
}
func (k *fakeKernel) watch(changed func(bool)) error {
	for _, e := range k.events {
		changed(e)
	}
	return errors.New("socket closed")
}
func (k *fakeKernel) close() error { return nil }
func (k *fakeKernel) linkName(index int) (string, error) {
	k.lookups++
	return fmt.Sprint("veth", index), k.linkErr
}

// on makes an address of an interface from "addr/bits".
func on(link int, cidr string) address {
	p := netip.MustParsePrefix(cidr)
	return address{link: link, addr: p.Addr(), subnet: p.Masked(), global: true}
}

func TestMasqueradeSource(t *testing.T) {
	secondary := on(2, "172.20.0.99/16")
	secondary.secondary = true
	linkScope := on(3, "169.254.1.1/16")
	linkScope.global = false
	peer := on(4, "10.8.0.1/32")
	peer.subnet = netip.MustParsePrefix("10.8.0.2/32")
	lo := on(1, "127.0.0.1/8")
	lo.global = false
	gw := netip.MustParseAddr
	k := &fakeKernel{
		addrs: []address{lo, on(2, "172.20.0.2/16"), secondary, on(2, "192.168.7.1/24"), linkScope, on(3, "10.1.0.1/24"), peer, on(5, "fd44::1/64")},
		routes: map[string]route{
			"172.20.0.3":  {link: 2},
			"10.244.2.2":  {link: 2, gateway: gw("172.20.0.3")},
			"10.99.0.1":   {link: 2, gateway: gw("192.168.7.254")},
			"10.98.0.1":   {link: 2, gateway: gw("203.0.113.1")},
			"10.1.0.7":    {link: 3},
			"10.8.0.2":    {link: 4},
			"10.244.1.2":  {link: 9},
			"172.20.0.2":  {link: 1},
			"fd44::2":     {link: 5, source: gw("fd44::1")},
			"fd44::3":     {link: 5},
			"10.244.9.99": {link: 2, gateway: gw("fe80::1")}, // RFC 5549
		},
	}
	for _, tt := range []struct{ name, dst, want string }{
		{"on the link", "172.20.0.3", "172.20.0.2"},
		{"via a gateway in the first subnet", "10.244.2.2", "172.20.0.2"},
		{"via a gateway in the second subnet", "10.99.0.1", "192.168.7.1"},
		{"via a gateway in no subnet: the interface's first", "10.98.0.1", "172.20.0.2"},
		{"link scope does not count", "10.1.0.7", "10.1.0.1"},
		{"point-to-point: the peer's subnet", "10.8.0.2", "10.8.0.1"},
		{"interface without an address: the node's first", "10.244.1.2", "172.20.0.2"},
		{"an address of the node itself: not the loopback one", "172.20.0.2", "172.20.0.2"},
		{"IPv6: what the kernel selects", "fd44::2", "fd44::1"},
		{"IPv4 via an IPv6 gateway", "10.244.9.99", "172.20.0.2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := newHost(k).NewCache().MasqueradeSource(netip.MustParseAddr(tt.dst))
			if err != nil || got.String() != tt.want {
				t.Errorf("got %v, error %v; want %s", got, err, tt.want)
			}
		})
	}
	for _, dst := range []string{"8.8.8.8", "fd44::3"} {
		if a, err := newHost(k).NewCache().MasqueradeSource(netip.MustParseAddr(dst)); err == nil {
			t.Errorf("%s: got %v, want an error", dst, a)
		}
	}
	none := &fakeKernel{addrs: []address{lo}, routes: k.routes}
	if a, err := newHost(none).NewCache().MasqueradeSource(netip.MustParseAddr("172.20.0.3")); err == nil {
		t.Errorf("host without addresses: got %v, want an error", a)
	}
}

func TestCacheFollowsChanges(t *testing.T) {
	dst := netip.MustParseAddr("172.20.0.3")
	k := &fakeKernel{addrs: []address{on(2, "172.20.0.2/16")}, routes: map[string]route{dst.String(): {link: 2}}}
	h := newHost(k)
	c := h.NewCache()
	source := func() string {
		t.Helper()
		a, err := c.MasqueradeSource(dst)
		if err != nil {
			t.Fatal(err)
		}
		return a.String()
	}
	source()
	source()
	if k.lookups != 1 {
		t.Errorf("%d look-ups for one destination, want 1", k.lookups)
	}
	k.addrs = []address{on(2, "172.20.0.5/16")}
	k.events = []bool{false}
	_ = h.Watch(func([]netip.Addr) {})
	if got := source(); got != "172.20.0.5" {
		t.Errorf("after the change: %s, want the new address", got)
	}
	if n := testing.AllocsPerRun(100, func() { source() }); n > 1 { // String is one
		t.Errorf("%v allocations for a remembered answer", n)
	}
}

func TestWatchReportsAddresses(t *testing.T) {
	k := &fakeKernel{
		addrs:  []address{on(1, "127.0.0.1/8"), on(2, "172.20.0.2/16"), on(3, "172.20.0.2/32"), on(2, "fd20::2/64"), on(1, "::1/128")},
		events: []bool{true, false, true},
	}
	var got []string
	err := newHost(k).Watch(func(a []netip.Addr) { got = append(got, fmt.Sprint(a)) })
	if err == nil {
		t.Error("the end of the events is no error")
	}
	want := "[[172.20.0.2 fd20::2] [172.20.0.2 fd20::2]]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s: without loopback, each once, not for route changes", got, want)
	}
}

func TestInterfaceName(t *testing.T) {
	k := &fakeKernel{events: []bool{true}}
	h := newHost(k)
	c := h.NewCache()
	named := func(want string) {
		t.Helper()
		if got, err := c.InterfaceName(7); err != nil || got != want {
			t.Errorf("interface 7 is %q, error %v, want %q", got, err, want)
		}
	}
	k.linkErr = errors.New("no buffer space available")
	if got, err := c.InterfaceName(7); err == nil {
		t.Errorf("interface 7 is %q, though the look-up failed", got)
	}
	k.linkErr = nil
	named("veth7") // without an event
	named("veth7")
	named("veth7")
	if k.lookups != 2 {
		t.Errorf("%d look-ups, want 2", k.lookups)
	}
	_ = h.Watch(func([]netip.Addr) {})
	if named("veth7"); k.lookups != 3 {
		t.Errorf("%d look-ups after a change, want 3", k.lookups)
	}
}

// TestOutInterfaceLooksAgain: neither a way that could not be found nor an interface that could
// not be named is remembered.
func TestOutInterfaceLooksAgain(t *testing.T) {
	dst := netip.MustParseAddr("172.20.0.3")
	k := &fakeKernel{routes: map[string]route{}, linkErr: errNoLink}
	c := newHost(k).NewCache()
	if got, err := c.OutInterface(dst); err == nil {
		t.Errorf("without a route: %q", got)
	}
	k.routes[dst.String()] = route{link: 2}
	if got, err := c.OutInterface(dst); !errors.Is(err, errNoLink) {
		t.Errorf("without the interface: %q, error %v", got, err)
	}
	k.linkErr = nil
	if got, err := c.OutInterface(dst); got != "veth2" {
		t.Errorf("out by %q, error %v", got, err)
	}
}

// TestInterfaceAddressesLeavesOutWhatIsGone: an interface that is gone is left out, but one that could
// not be named is an error, so that the host is described again.
func TestInterfaceAddressesLeavesOutWhatIsGone(t *testing.T) {
	k := &fakeKernel{addrs: []address{on(2, "172.20.0.2/16")}, linkErr: errNoLink}
	if _, err := newHost(k).InterfaceAddresses(); err != nil {
		t.Errorf("the interface is gone: %v", err)
	}
	k.linkErr = errors.New("no buffer space available")
	if d, err := newHost(k).InterfaceAddresses(); err == nil {
		t.Errorf("the interface has no name: %+v", d)
	}
}

// TestWatchListsAgain: a failed listing is repeated without another event.
func TestWatchListsAgain(t *testing.T) {
	k := &fakeKernel{addrs: []address{on(2, "172.20.0.2/16")}, err: errors.New("no buffer space available"), failures: 2, events: []bool{true}}
	var got []string
	_ = newHost(k).Watch(func(a []netip.Addr) { got = append(got, fmt.Sprint(a)) })
	if want := "[[172.20.0.2]]"; fmt.Sprint(got) != want {
		t.Errorf("reported %v, want %s", got, want)
	}
}
