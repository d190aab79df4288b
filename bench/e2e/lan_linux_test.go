package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

func TestAddresses(t *testing.T) {
	for _, tc := range []struct {
		f          family
		node, pods string
	}{
		{ipv4, "172.30.0.13", "10.244.3.0/24"},
		{ipv6, "fd00:172:30::13", "fd00:10:244:3::/64"},
	} {
		if got := tc.f.node(3).String(); got != tc.node {
			t.Errorf("node 3 has the address %s, want %s", got, tc.node)
		}
		if got := tc.f.podCIDR(3).String(); got != tc.pods {
			t.Errorf("node 3 has the pods %s, want %s", got, tc.pods)
		}
		for i := 1; i <= maxNodes; i++ {
			if !tc.f.control.Masked().Contains(tc.f.node(i)) || !tc.f.pods.Overlaps(tc.f.podCIDR(i)) || tc.f.podCIDR(i) == tc.f.podCIDR(i-1) {
				t.Errorf("node %d has the address %s and the pods %s", i, tc.f.node(i), tc.f.podCIDR(i))
			}
		}
		if !tc.f.services.Contains(tc.f.clusterDNS) {
			t.Errorf("the cluster's name server %s is not in %s", tc.f.clusterDNS, tc.f.services)
		}
	}
}

// TestLAN: nodes reach each other and each other's pods; an address of the load balancer leads to
// its nodes, and without nodes into silence.
func TestLAN(t *testing.T) {
	netnstest.Require(t)
	router, err := netns.New("router")
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	l, err := newLAN(router, []family{ipv4, ipv6})
	if err != nil {
		t.Fatal(err)
	}
	const nodes = 3
	var ns [nodes]*netns.Namespace
	for i := range ns {
		if ns[i], err = l.attach(i + 1); err != nil {
			t.Fatal(err)
		}
		defer ns[i].Close()
		if err := l.route(ns[i], i+1, nodes); err != nil {
			t.Fatal(err)
		}
	}
	listen(t, ns[1])
	listen(t, ns[2])
	for _, f := range l.families {
		pod := f.podCIDR(2).Addr().Next()
		balanced := f.balancers.Addr().Next()
		if err := errors.Join(ns[1].AddAddress("lo", host(pod)), ns[1].AddAddress("lo", host(balanced)), ns[2].AddAddress("lo", host(balanced))); err != nil {
			t.Fatal(err)
		}
		reach(t, ns[0], f.node(2), connected)
		reach(t, ns[0], pod, connected)
		reach(t, l.Namespace, pod, connected)
		reach(t, ns[0], f.control.Addr(), refused)
		reach(t, l.Namespace, balanced, silence)
		for _, to := range [][]int{{2}, {2, 3}, {3}} {
			if err := l.balance(balanced, to); err != nil {
				t.Fatal(err)
			}
			reach(t, l.Namespace, balanced, connected)
		}
		if err := errors.Join(l.balance(balanced, nil), l.balance(balanced, nil)); err != nil {
			t.Fatal(err)
		}
		reach(t, l.Namespace, balanced, silence)
	}
}

const port = 8080

func listen(t *testing.T, in *netns.Namespace) {
	t.Helper()
	s, err := in.Listen(t.Context(), netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
}

// outcome is that of an attempt to connect.
type outcome string

const (
	connected outcome = "connected"
	refused   outcome = "refused"
	silence   outcome = "silence"
)

// reach tries to connect to an address.
func reach(t *testing.T, from *netns.Namespace, to netip.Addr, want outcome) {
	t.Helper()
	timeout := 10 * time.Second
	if want == silence {
		timeout = 300 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", netip.AddrPort{}, netip.AddrPortFrom(to, port))
	got := connected
	switch {
	case err == nil:
		_ = c.Close()
	case errors.Is(err, unix.ECONNREFUSED):
		got = refused
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		got = silence
	}
	if got != want {
		t.Errorf("from %s to %s: %s (%v), want %s", from.Name(), to, got, err, want)
	}
}
