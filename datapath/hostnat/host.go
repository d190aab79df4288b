package hostnat

import "net/netip"

// Host is the addresses and devices of a host. The zero value has none. It must not change while
// rules are evaluated.
type Host struct {
	local     map[netip.Addr]string // with their device
	broadcast map[netip.Addr]string
	devices   map[string]uint32
}

const loopback = "lo"

// AddAddress adds an address, with the length of its network, and its device.
func (h *Host) AddAddress(device string, a netip.Prefix) {
	if h.local == nil {
		h.local, h.broadcast = make(map[netip.Addr]string), make(map[netip.Addr]string)
	}
	h.local[a.Addr()] = device
	if a.Addr().Is4() && a.Bits() < 31 && !a.Addr().IsLoopback() {
		last := a.Masked().Addr().As4()
		for bit := a.Bits(); bit < 32; bit++ {
			last[bit/8] |= 0x80 >> (bit % 8)
		}
		h.broadcast[netip.AddrFrom4(last)] = device
	}
}

// AddDevice adds a device with its index.
func (h *Host) AddDevice(name string, index uint32) {
	if h.devices == nil {
		h.devices = make(map[string]uint32)
	}
	h.devices[name] = index
}

// Has reports whether an address is the host's.
func (h *Host) Has(a netip.Addr) bool {
	_, ok := h.local[a]
	return ok
}

// Types of addresses, RTN_... of rtnetlink.h.
const (
	rtnUnspec    = 0
	rtnUnicast   = 1
	rtnLocal     = 2
	rtnBroadcast = 3
	rtnMulticast = 5
)

// addrType is the type of an address: inet_addr_type and inet_dev_addr_type
// (net/ipv4/fib_frontend.c), which use the local table only, and __nft_fib6_eval_type
// (nft_fib_ipv6.c). Routes that refuse packets are not known. With a device, only its own addresses
// count.
func (h *Host) addrType(a netip.Addr, device string) uint32 {
	on, own := h.local[a]
	if a.IsLoopback() {
		on, own = loopback, true
	}
	here := func(on string) bool { return device == "" || device == on }
	broadcastOn, broadcast := h.broadcast[a]
	switch {
	case a.Is4() && (a.As4()[0] == 0 || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})):
		return rtnBroadcast
	case own && here(on):
		return rtnLocal
	case a.IsMulticast():
		return rtnMulticast
	case broadcast && here(broadcastOn):
		return rtnBroadcast
	case a.IsUnspecified():
		return rtnUnspec
	}
	return rtnUnicast
}
