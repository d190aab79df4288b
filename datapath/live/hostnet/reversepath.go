package hostnet

import "slices"

// ReversePath holds the interfaces, by their indexes, on which the kernel validates the sources of
// IPv4 packets (rp_filter in Documentation/networking/ip-sysctl.rst).
type ReversePath struct {
	// Strict (1): the best route back to the source must leave through the same interface.
	Strict []uint32
	// Loose (2): there must be a route back to the source.
	Loose []uint32
	// Selective: a routing rule has a selector. The reverse path may then depend on more than the
	// source, and both lists are empty.
	Selective bool
}

// equal reports whether both are the same.
func (p ReversePath) equal(q ReversePath) bool {
	return p.Selective == q.Selective && slices.Equal(p.Strict, q.Strict) && slices.Equal(p.Loose, q.Loose)
}

// Indexes that are no interface (NETCONFA_IFINDEX_ALL and NETCONFA_IFINDEX_DEFAULT in
// linux/netconf.h).
const (
	allInterfaces     = -1
	defaultInterfaces = -2
)

// interfaceConf is the reverse path settings of an interface.
type interfaceConf struct {
	index    int32
	rpFilter int32
	// ignoreLinkDown: routes through interfaces whose link is down do not count.
	ignoreLinkDown bool
}

// reversePathOf computes the effective settings: the stricter of the interface's own value and
// that of all (IN_DEV_RPFILTER in linux/inetdevice.h).
//
// If routes without a link do not count, a rule's lookup may differ from the kernel's route,
// because it does count them (nft_fib4_eval). Then strict interfaces are treated as loose ones:
// without any route back the kernel drops the packet there, too.
func reversePathOf(confs []interfaceConf, selective bool) ReversePath {
	p := ReversePath{Selective: selective}
	if selective {
		return p
	}
	var all int32
	linkDown := false
	for _, c := range confs {
		if c.index == allInterfaces {
			all = c.rpFilter
		}
		linkDown = linkDown || c.ignoreLinkDown && c.index != defaultInterfaces
	}
	for _, c := range confs {
		switch value := max(all, c.rpFilter); {
		case c.index <= 0 || value == 0:
		case value == 1 && !linkDown:
			p.Strict = append(p.Strict, uint32(c.index))
		default:
			p.Loose = append(p.Loose, uint32(c.index))
		}
	}
	slices.Sort(p.Strict)
	slices.Sort(p.Loose)
	return p
}
