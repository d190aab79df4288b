package netns_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func newNamespace(t *testing.T, name string) *netns.Namespace {
	t.Helper()
	netnstest.Require(t)
	n, err := netns.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// networkID returns the inode of the calling thread's network namespace.
func networkID() (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat("/proc/thread-self/ns/net", &st)
	return st.Ino, err
}

func do(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestDoIsInsideAndComesBack(t *testing.T) {
	n := newNamespace(t, "a")
	outside, err := networkID()
	do(t, err)
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			var inside uint64
			if err := n.Do(func() (err error) { inside, err = networkID(); return err }); err != nil {
				t.Error(err)
			}
			if inside == outside {
				t.Error("Do ran outside")
			}
			if now, _ := networkID(); now != outside {
				t.Error("a goroutine found itself elsewhere after Do")
			}
		})
	}
	wg.Wait()
	want := errors.New("mine")
	if err := n.Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("Do gave %v, want the function's error", err)
	}
}

func TestClosed(t *testing.T) {
	n := newNamespace(t, "a")
	do(t, n.Close(), n.Close())
	if err := n.Do(func() error { return nil }); !errors.Is(err, os.ErrClosed) || !strings.Contains(err.Error(), "namespace a") {
		t.Errorf("Do on a closed namespace: %v", err)
	}
}

// TestCloseMeanwhile: an entry into a namespace that is being closed succeeds or returns an error.
func TestCloseMeanwhile(t *testing.T) {
	netnstest.Require(t)
	for range 20 {
		n, err := netns.New("a")
		if err != nil {
			t.Fatal(err)
		}
		var entering sync.WaitGroup
		entered := make(chan struct{}, 1)
		for range 4 {
			entering.Go(func() {
				var err error
				for err == nil {
					err = n.Do(func() error { return nil })
					select {
					case entered <- struct{}{}:
					default:
					}
				}
				if !errors.Is(err, os.ErrClosed) {
					t.Error(err)
				}
			})
		}
		<-entered
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		entering.Wait()
	}
}

// a - router - b, in both families; the router's side towards b is a bridge.
func TestPathBetweenNamespaces(t *testing.T) {
	a, router, b := newNamespace(t, "a"), newNamespace(t, "router"), newNamespace(t, "b")
	do(t,
		router.SetSysctl("net.ipv4.ip_forward", "1"),
		router.SetSysctl("net.ipv6.conf.all.forwarding", "1"),
		a.AddVeth("eth0", router, "to-a"),
		b.AddVeth("eth0", router, "to-b"),
		router.AddBridge("br0"),
		router.SetBridge("to-b", "br0"),
	)
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	do(t,
		// a has its gateway on the link by word, not by prefix.
		a.AddAddress("eth0", prefix("192.0.2.1/32")),
		router.AddAddress("to-a", prefix("192.0.2.254/32")),
		router.AddRoute(netns.Route{Destination: prefix("192.0.2.1/32"), Link: "to-a"}),
		a.AddRoute(netns.Route{Destination: prefix("0.0.0.0/0"), Via: addr("192.0.2.254"), Link: "eth0", OnLink: true}),
		b.AddAddress("eth0", prefix("198.51.100.1/24")),
		router.AddAddress("br0", prefix("198.51.100.254/24")),
		b.AddRoute(netns.Route{Destination: prefix("192.0.2.0/24"), Via: addr("198.51.100.254"), Link: "eth0"}),

		a.AddAddress("eth0", prefix("2001:db8:a::1/128")),
		router.AddAddress("to-a", prefix("2001:db8:a::fe/128")),
		router.AddRoute(netns.Route{Destination: prefix("2001:db8:a::1/128"), Link: "to-a"}),
		a.AddRoute(netns.Route{Destination: prefix("::/0"), Via: addr("2001:db8:a::fe"), Link: "eth0", OnLink: true}),
		b.AddAddress("eth0", prefix("2001:db8:b::1/64")),
		router.AddAddress("br0", prefix("2001:db8:b::fe/64")),
		b.AddRoute(netns.Route{Destination: prefix("2001:db8:a::/64"), Via: addr("2001:db8:b::fe"), Link: "eth0"}),
	)
	for _, tc := range []struct{ from, to string }{{"192.0.2.1:0", "198.51.100.1:80"}, {"[2001:db8:a::1]:4242", "[2001:db8:b::1]:80"}} {
		from, to := netip.MustParseAddrPort(tc.from), netip.MustParseAddrPort(tc.to)
		l, err := b.Listen(t.Context(), to)
		do(t, err)
		defer l.Close()
		c, err := a.Dial(t.Context(), "tcp", from, to)
		do(t, err)
		defer c.Close()
		s, err := l.Accept()
		do(t, err)
		defer s.Close()
		if got := netip.MustParseAddrPort(s.RemoteAddr().String()); got.Addr() != from.Addr() || from.Port() != 0 && got != from {
			t.Errorf("%s sees %s, want %s", to, got, from)
		}

		u, err := b.ListenPacket(t.Context(), to)
		do(t, err)
		defer u.Close()
		d, err := a.Dial(t.Context(), "udp", from, to)
		do(t, err)
		defer d.Close()
		_, err = d.Write([]byte("x"))
		do(t, err)
		if n, peer, err := u.ReadFrom(make([]byte, 10)); n != 1 || err != nil || netip.MustParseAddrPort(peer.String()).Addr() != from.Addr() {
			t.Errorf("%s got %d bytes from %v, %v", to, n, peer, err)
		}
	}
	// There is no listener outside, and none there for us.
	if _, err := a.Dial(context.Background(), "tcp", netip.AddrPort{}, netip.MustParseAddrPort("198.51.100.1:81")); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a port without server: %v, want connection refused", err)
	}
}

// Neighbours remember a bridge's hardware address for half a minute.
func TestBridgeKeepsItsAddress(t *testing.T) {
	n := newNamespace(t, "a")
	do(t, n.AddBridge("br0"))
	address := func() string {
		var bridge *net.Interface
		do(t, n.Do(func() (err error) { bridge, err = net.InterfaceByName("br0"); return err }))
		return bridge.HardwareAddr.String()
	}
	first := address()
	for _, port := range []string{"b", "c", "d", "e"} {
		do(t, n.AddVeth(port, n, port+"-end"), n.SetBridge(port, "br0"))
		if now := address(); now != first {
			t.Fatalf("with port %s the bridge's address is %s, was %s", port, now, first)
		}
	}
}

// The router knows the way to b for itself, not for a.
func TestOwnTable(t *testing.T) {
	a, router, b := newNamespace(t, "a"), newNamespace(t, "router"), newNamespace(t, "b")
	prefix := netip.MustParsePrefix
	do(t,
		router.SetSysctl("net.ipv4.ip_forward", "1"),
		router.SetSysctl("net.ipv6.conf.all.forwarding", "1"),
		a.AddVeth("eth0", router, "to-a"),
		b.AddVeth("eth0", router, "to-b"),
		router.AddOwnTable(100),
	)
	for _, f := range []struct{ a, toA, b, toB, everywhere string }{
		{"192.0.2.1/24", "192.0.2.254/24", "198.51.100.1/32", "203.0.113.1/32", "0.0.0.0/0"},
		{"2001:db8:a::1/64", "2001:db8:a::fe/64", "2001:db8:b::1/128", "2001:db8:c::1/128", "::/0"},
	} {
		do(t,
			a.AddAddress("eth0", prefix(f.a)),
			router.AddAddress("to-a", prefix(f.toA)),
			a.AddRoute(netns.Route{Destination: prefix(f.everywhere), Via: prefix(f.toA).Addr(), Link: "eth0"}),
			b.AddAddress("eth0", prefix(f.b)),
			router.AddAddress("to-b", prefix(f.toB)),
			router.AddRoute(netns.Route{Destination: prefix(f.b), Link: "to-b", Table: 100}),
			b.AddRoute(netns.Route{Destination: prefix(f.everywhere), Via: prefix(f.toB).Addr(), Link: "eth0", OnLink: true}),
		)
		to := netip.AddrPortFrom(prefix(f.b).Addr(), 80)
		if _, err := router.Dial(t.Context(), "tcp", netip.AddrPort{}, to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("router to %s: %v, want connection refused", to, err)
		}
		if _, err := a.Dial(t.Context(), "tcp", netip.AddrPort{}, to); !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("a to %s: %v, want unreachable", to, err)
		}
	}
}

func TestSysctl(t *testing.T) {
	n, other := newNamespace(t, "a"), newNamespace(t, "b")
	do(t, n.AddVeth("eth0.7", other, "eth0"), n.SetSysctl("net.ipv4.conf.eth0/7.rp_filter", "2"))
	if v, err := n.Sysctl("net.ipv4.conf.eth0/7.rp_filter"); v != "2" || err != nil {
		t.Errorf("reads %q, %v, want 2", v, err)
	}
	if v, err := other.Sysctl("net.ipv4.conf.eth0.rp_filter"); v == "2" || err != nil {
		t.Errorf("the other namespace reads %q, %v", v, err)
	}
	for _, name := range []string{"kernel.hostname", "net", "net.//.//.kernel.hostname", ""} {
		if err := n.SetSysctl(name, "x"); err == nil {
			t.Errorf("sysctl %q was accepted", name)
		}
	}
}

func TestErrorsNameTheObject(t *testing.T) {
	n := newNamespace(t, "node-a")
	for _, tc := range []struct {
		err  error
		want string
	}{
		{n.SetUp("eth7"), "eth7"},
		{n.AddAddress("lo", netip.MustParsePrefix("::1/128")), "::1/128"},
		{n.AddRoute(netns.Route{Destination: netip.MustParsePrefix("192.0.2.0/24"), Via: netip.MustParseAddr("198.51.100.1"), Link: "lo"}), "192.0.2.0/24"},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) || !strings.Contains(tc.err.Error(), "node-a") {
			t.Errorf("error %v does not name %s and the namespace", tc.err, tc.want)
		}
	}
}

func TestStart(t *testing.T) {
	n, other := newNamespace(t, "a"), newNamespace(t, "b")
	do(t, n.AddVeth("inside0", other, "eth0"))
	cmd := exec.Command("ls", "/sys/class/net")
	var out bytes.Buffer
	cmd.Stdout = &out
	do(t, n.Start(cmd), cmd.Wait())
	if !strings.Contains(out.String(), "inside0") {
		t.Errorf("/sys/class/net inside: %q", out.String())
	}
	if err := n.Start(exec.Command("/no/such/program")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("starting nothing: %v", err)
	}
}

// A process with a parent-death signal lives as long as the namespace, not as
// long as the thread that started it.
func TestStartWithParentDeathSignal(t *testing.T) {
	n := newNamespace(t, "a")
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	in, err := cmd.StdinPipe()
	do(t, err)
	out, err := cmd.StdoutPipe()
	do(t, err)
	do(t, n.Start(cmd))
	_, err = io.WriteString(in, "alive")
	do(t, err)
	if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	do(t, n.Close())
	if _, err := io.ReadAll(out); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("after Close: %v, want killed", err)
	}
}
