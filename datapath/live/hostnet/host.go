// Package hostnet follows the node's own network: its addresses, and the source address that
// MASQUERADE selects for a destination.
package hostnet

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"time"
)

// Host follows the addresses and routes of one network namespace. It is safe for
// concurrent use.
type Host struct {
	kernel kernel
	// changes counts the changes of routes and addresses; cached results are valid for one count.
	changes atomic.Uint64
}

// kernel is the kernel's part of Host.
type kernel interface {
	// addresses lists all addresses of the namespace in the kernel's order:
	// by interface, and there as they stand in the interface's list.
	addresses() ([]address, error)
	// route looks up the route to the destination for a packet from this host.
	route(dst netip.Addr) (route, error)
	// linkName names an interface. The error is errNoLink if there is none.
	linkName(index int) (string, error)
	// watch calls changed after every change of links, addresses and routes, and
	// whenever changes may have been missed, until close. addresses is false if
	// only routes changed.
	watch(changed func(addresses bool)) error
	close() error
}

// address is one address of an interface.
type address struct {
	link      int
	addr      netip.Addr
	subnet    netip.Prefix // of the peer, on point-to-point interfaces
	secondary bool         // IFA_F_SECONDARY
	global    bool         // scope universe
}

// route is the result of a route lookup.
type route struct {
	link    int
	gateway netip.Addr // invalid: the destination is on the link
	source  netip.Addr // the kernel's choice for local packets; used for IPv6 only
}

// errNoLink means that there is no such interface.
var errNoLink = errors.New("there is no such interface")

func newHost(k kernel) *Host { return &Host{kernel: k} }

// Addresses lists the node's local addresses, without loopback ones, each once.
func (h *Host) Addresses() ([]netip.Addr, error) {
	all, err := h.kernel.addresses()
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	var addrs []netip.Addr
	seen := make(map[netip.Addr]bool)
	for _, a := range all {
		if !a.addr.IsLoopback() && !seen[a.addr] {
			seen[a.addr] = true
			addrs = append(addrs, a.addr)
		}
	}
	return addrs, nil
}

// InterfaceAddress is an address of an interface, with the length of the network that it is in.
type InterfaceAddress struct {
	Interface string
	Address   netip.Prefix // not masked
}

// InterfaceAddresses lists the addresses of all interfaces, in the kernel's order.
func (h *Host) InterfaceAddresses() ([]InterfaceAddress, error) {
	all, err := h.kernel.addresses()
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	var list []InterfaceAddress
	for _, a := range all {
		name, err := h.kernel.linkName(a.link)
		if errors.Is(err, errNoLink) {
			continue // gone in between: an event follows
		}
		if err != nil {
			return nil, fmt.Errorf("name the interface with index %d: %w", a.link, err)
		}
		list = append(list, InterfaceAddress{name, netip.PrefixFrom(a.addr, a.subnet.Bits())})
	}
	return list, nil
}

// Watch calls changed with the node's addresses, at once and after each change, until
// [Host.Close]. Caches follow route changes only while Watch runs. An error ends it: changes of
// the node's network are no longer noticed.
func (h *Host) Watch(changed func([]netip.Addr)) error {
	return h.kernel.watch(func(addresses bool) {
		h.changes.Add(1)
		if !addresses {
			return
		}
		// There may be no further event for a long time, so a failed listing is repeated.
		for {
			a, err := h.Addresses()
			if err == nil {
				changed(a)
			}
			if err == nil || errors.Is(err, os.ErrClosed) {
				return
			}
			time.Sleep(relistAfter)
		}
	})
}

// relistAfter is how long a failed listing waits for the next attempt.
const relistAfter = 100 * time.Millisecond

// masqueradeSource returns the source address that the MASQUERADE target gives to a packet that
// leaves this node for the destination (nf_nat_masquerade.c): for IPv4 the first primary address
// of the outgoing interface in the next hop's subnet, else its first one, else any of the node's
// (inet_select_addr); for IPv6 the one that source address selection prefers.
func (h *Host) masqueradeSource(dst netip.Addr) (netip.Addr, error) {
	r, err := h.kernel.route(dst)
	if err != nil {
		return netip.Addr{}, err
	}
	if !dst.Is4() {
		if !r.source.IsValid() {
			return netip.Addr{}, errors.New("the kernel returned no source address")
		}
		return r.source, nil
	}
	addrs, err := h.kernel.addresses()
	if err != nil {
		return netip.Addr{}, err
	}
	nextHop := dst
	if r.gateway.Is4() {
		nextHop = r.gateway
	}
	if a := selectIPv4(addrs, r, nextHop); a.IsValid() {
		return a, nil
	}
	return netip.Addr{}, errors.New("the node has no IPv4 address of global scope")
}

// selectIPv4 is inet_select_addr (net/ipv4/devinet.c) for scope universe. The result is invalid if there is no such address.
func selectIPv4(addrs []address, r route, nextHop netip.Addr) netip.Addr {
	var onLink, anywhere netip.Addr
	for _, a := range addrs {
		if !a.addr.Is4() || a.secondary || !a.global {
			continue
		}
		if a.link == r.link {
			if a.subnet.Contains(nextHop) {
				return a.addr
			}
			onLink = cmp.Or(onLink, a.addr)
		}
		anywhere = cmp.Or(anywhere, a.addr)
	}
	return cmp.Or(onLink, anywhere)
}

// Cache looks up routes and interfaces, and caches the results until a route or address changes. It is not safe
// for concurrent use: each worker has its own.
type Cache struct {
	host    *Host
	changes uint64 // up to which the results are valid
	sources map[netip.Addr]netip.Addr
	devices map[netip.Addr]string
	names   map[uint32]string
}

// maxCached bounds a cache. There is one result for each endpoint of masqueraded flows.
const maxCached = 1 << 17

// NewCache makes an empty cache.
func (h *Host) NewCache() *Cache {
	return &Cache{host: h, sources: make(map[netip.Addr]netip.Addr), devices: make(map[netip.Addr]string), names: make(map[uint32]string)}
}

// MasqueradeSource returns the source address that MASQUERADE gives to a packet that leaves this node for the
// destination. Errors are not cached.
func (c *Cache) MasqueradeSource(dst netip.Addr) (netip.Addr, error) {
	c.refresh()
	if a, ok := c.sources[dst]; ok {
		return a, nil
	}
	a, err := c.host.masqueradeSource(dst)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("masquerade to %s: %w", dst, err)
	}
	c.sources[dst] = a
	return a, nil
}

// OutInterface names the output interface of a packet for the destination; "lo" for the node's own
// addresses. Errors are not cached.
func (c *Cache) OutInterface(dst netip.Addr) (string, error) {
	c.refresh()
	if name, ok := c.devices[dst]; ok {
		return name, nil
	}
	r, err := c.host.kernel.route(dst)
	if err != nil {
		return "", fmt.Errorf("route to %s: %w", dst, err)
	}
	name, err := c.InterfaceName(uint32(r.link))
	if err != nil {
		return "", fmt.Errorf("route to %s: %w", dst, err)
	}
	c.devices[dst] = name
	return name, nil
}

// InterfaceName names an interface by its index. Errors are not cached.
func (c *Cache) InterfaceName(index uint32) (string, error) {
	c.refresh()
	if name, ok := c.names[index]; ok {
		return name, nil
	}
	name, err := c.host.kernel.linkName(int(index))
	if err != nil {
		return "", fmt.Errorf("name the interface with index %d: %w", index, err)
	}
	c.names[index] = name
	return name, nil
}

// refresh drops results that may have changed. It comes before a lookup, so that a change in
// between makes the result outdated.
func (c *Cache) refresh() {
	if now := c.host.changes.Load(); now != c.changes || len(c.sources) >= maxCached || len(c.devices) >= maxCached {
		clear(c.sources)
		clear(c.devices)
		clear(c.names)
		c.changes = now
	}
}

// Close ends Watch.
func (h *Host) Close() error { return h.kernel.close() }
