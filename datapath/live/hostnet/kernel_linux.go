package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	mdl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Open follows the network namespace of the calling thread.
func Open() (*Host, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink socket: %w", err)
	}
	// Subscribed from here on, so that nothing is missed between the first listing
	// and Watch.
	events, err := mdl.Dial(unix.NETLINK_ROUTE, &mdl.Config{Groups: unix.RTMGRP_LINK |
		unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE |
		1<<(unix.RTNLGRP_IPV4_RULE-1) | 1<<(unix.RTNLGRP_IPV6_RULE-1)})
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("subscribe to route netlink events: %w", err)
	}
	return newHost(&rtnetlink{handle: handle, events: events}), nil
}

type rtnetlink struct {
	events *mdl.Conn

	mu     sync.RWMutex // held for writing while the handle is closed
	handle *netlink.Handle
	closed bool
}

func (k *rtnetlink) close() error {
	err := k.events.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed {
		k.closed = true
		k.handle.Close()
	}
	return err
}

// call calls f with the handle, which several goroutines may use at once, but none while it is
// closed; after that the library would open a socket in the namespace of the calling thread.
func call[T any](k *rtnetlink, f func(*netlink.Handle) (T, error)) (answer T, err error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.closed {
		return answer, os.ErrClosed
	}
	return f(k.handle)
}

// maxAttempts is how often addresses are listed again if they change meanwhile.
const maxAttempts = 10

func (k *rtnetlink) addresses() ([]address, error) {
	var list []netlink.Addr
	err := error(netlink.ErrDumpInterrupted) // addresses changed during the listing
	for attempt := 0; errors.Is(err, netlink.ErrDumpInterrupted) && attempt <= maxAttempts; attempt++ {
		list, err = call(k, func(h *netlink.Handle) ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	}
	if err != nil {
		return nil, err
	}
	var addrs []address
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		if !ok || a.Flags&unix.IFA_F_TENTATIVE != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0 {
			continue
		}
		subnet := a.IPNet
		if a.Peer != nil {
			subnet = a.Peer
		}
		addrs = append(addrs, address{
			link:      a.LinkIndex,
			addr:      addr.Unmap(),
			subnet:    prefix(subnet),
			secondary: a.Flags&unix.IFA_F_SECONDARY != 0 && addr.Unmap().Is4(),
			global:    a.Scope == unix.RT_SCOPE_UNIVERSE,
		})
	}
	// The dump goes by family first; interfaces are numbered in the order in which
	// the kernel lists them.
	slices.SortStableFunc(addrs, func(a, b address) int { return a.link - b.link })
	return addrs, nil
}

// prefix converts a network; the zero Prefix, which contains nothing, if it is none.
func prefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if a = a.Unmap(); !ok || bits != a.BitLen() {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(a, ones)
}

func (k *rtnetlink) route(dst netip.Addr) (route, error) {
	list, err := call(k, func(h *netlink.Handle) ([]netlink.Route, error) { return h.RouteGet(dst.AsSlice()) })
	if err != nil {
		return route{}, fmt.Errorf("look up the route: %w", err)
	}
	if len(list) == 0 {
		return route{}, errors.New("no route")
	}
	gateway, _ := netip.AddrFromSlice(list[0].Gw) // invalid: there is none
	source, _ := netip.AddrFromSlice(list[0].Src)
	return route{link: list[0].LinkIndex, gateway: gateway.Unmap(), source: source.Unmap()}, nil
}

func (k *rtnetlink) linkName(index int) (string, error) {
	link, err := call(k, func(h *netlink.Handle) (netlink.Link, error) { return h.LinkByIndex(index) })
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return "", errNoLink
	}
	if err != nil {
		return "", err
	}
	return link.Attrs().Name, nil
}

func (k *rtnetlink) watch(changed func(addresses bool)) error {
	changed(true)
	for {
		msgs, err := k.events.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS): // events were lost: anything may have changed
			changed(true)
			continue
		case err != nil:
			return fmt.Errorf("follow the node's addresses and routes: %w", err)
		}
		changed(slices.ContainsFunc(msgs, func(m mdl.Message) bool {
			return slices.Contains([]mdl.HeaderType{unix.RTM_NEWADDR, unix.RTM_DELADDR, unix.RTM_NEWLINK, unix.RTM_DELLINK}, m.Header.Type)
		}))
	}
}
