package netfilter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/distinct"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// Read adds the content of a file to the host: the output of `ip -j addr`, of `ip -j route` or `ip
// -6 -j route`, of `ip -j neigh`, or several of them one after the other. It ignores other fields of that output.
func (h *Host) Read(r io.Reader) error {
	decoder := json.NewDecoder(r)
	for n := 1; ; n++ {
		var list []json.RawMessage
		switch err := decoder.Decode(&list); {
		case errors.Is(err, io.EOF) && n > 1:
			return nil
		case errors.Is(err, io.EOF):
			return errors.New("it is empty; want the output of ip -j addr, or of ip -j route")
		case err != nil:
			return fmt.Errorf("list %d: %w; want the output of ip -j addr, or of ip -j route", n, err)
		}
		for i, raw := range list {
			if err := h.readObject(raw); err != nil {
				return fmt.Errorf("list %d, element %d: %w", n, i+1, err)
			}
		}
	}
}

// ipObject is an element of either output: an interface has a name, a route a destination, and a neighbour
// a destination and a state.
type ipObject struct {
	IfName   string   `json:"ifname"`
	LinkType string   `json:"link_type"`
	Address  string   `json:"address"`
	Flags    []string `json:"flags"`
	Group    string   `json:"group"`
	Qdisc    string   `json:"qdisc"` // the one at its root
	XDP      struct {
		Program struct {
			ID int `json:"id"`
		} `json:"prog"`
	} `json:"xdp"`
	AddrInfo []struct {
		Local         string `json:"local"`
		Address       string `json:"address"` // of the peer
		PrefixLen     int    `json:"prefixlen"`
		Scope         string `json:"scope"`
		Secondary     bool   `json:"secondary"`
		NoPrefixRoute bool   `json:"noprefixroute"`
	} `json:"addr_info"`

	Dst     string   `json:"dst"`
	State   []string `json:"state"`
	LLAddr  string   `json:"lladdr"`
	Table   string   `json:"table"`
	Type    string   `json:"type"`
	Gateway string   `json:"gateway"`
	Via     struct {
		Host string `json:"host"`
	} `json:"via"`
	Dev      string `json:"dev"`
	PrefSrc  string `json:"prefsrc"`
	Metric   uint32 `json:"metric"`
	NextHops []struct {
		Gateway string `json:"gateway"`
		Dev     string `json:"dev"`
	} `json:"nexthops"`
}

func (h *Host) readObject(raw json.RawMessage) error {
	var o ipObject
	if err := json.Unmarshal(raw, &o); err != nil {
		return err
	}
	switch {
	case o.IfName != "":
		h.allAddresses = true
		return h.readInterface(&o)
	case o.Dst != "" && o.State != nil:
		return h.readNeighbour(&o)
	case o.Dst != "":
		h.allRoutes = true
		return h.readRoute(&o)
	case strings.TrimSpace(string(raw)) == "{}": // ip prints it for filtered objects
		return nil
	}
	return errors.New("it is neither an interface (\"ifname\") nor a route (\"dst\")")
}

func (h *Host) readInterface(o *ipObject) error {
	i := Interface{Name: o.IfName, PointToPoint: o.LinkType != "" && o.LinkType != "ether" && o.LinkType != "loopback"}
	if mac, err := net.ParseMAC(o.Address); err == nil && len(mac) == len(i.MAC) {
		i.MAC = iptables.MACAddress(mac)
	}
	if n, err := strconv.ParseUint(o.Group, 10, 32); err == nil || o.Group == "default" {
		group := uint32(n)
		i.Group = &group
	}
	if id := o.XDP.Program.ID; id != 0 {
		i.Programs = append(i.Programs, fmt.Sprintf("XDP program %d", id))
	}
	i.addQdisc(o.Qdisc)
	for _, a := range o.AddrInfo {
		addr, err := netip.ParseAddr(a.Local)
		if err != nil {
			return fmt.Errorf("interface %s: local address %q: %w", o.IfName, a.Local, err)
		}
		prefix, err := addr.Prefix(a.PrefixLen)
		if err != nil {
			return fmt.Errorf("interface %s: %w", o.IfName, err)
		}
		i.Addresses = append(i.Addresses, Address{
			Prefix: netip.PrefixFrom(addr, prefix.Bits()), Narrow: a.Scope == "link" || a.Scope == "host",
			Secondary: a.Secondary, NoRoute: a.NoPrefixRoute,
		})
		if peer, err := netip.ParseAddr(a.Address); err == nil {
			h.Routes = append(h.Routes, Route{Destination: netip.PrefixFrom(peer, peer.BitLen()), Interface: i.Name, Source: addr})
		}
	}
	if h.device(i.Name) != nil {
		return fmt.Errorf("interface %s is there twice", i.Name)
	}
	h.Interfaces = append(h.Interfaces, i)
	return nil
}

// AddQdisc notes that a device has a queueing discipline of a kind, as tc qdisc lists them. Only those matter that have filters, or
// that drop packets without congestion.
func (h *Host) AddQdisc(device, kind string) {
	if i := h.device(device); i != nil {
		i.addQdisc(kind)
	}
}

func (i *Interface) addQdisc(kind string) {
	switch kind {
	case "clsact", "ingress", "netem":
		i.Programs = distinct.Append(i.Programs, "qdisc "+kind)
	}
}

// ipRouteTypes are the types of `ip route` that are not those of unicast routes.
var ipRouteTypes = map[string]RouteType{
	"local": Local, "broadcast": Broadcast, "blackhole": Blackhole, "unreachable": Unreachable, "prohibit": Prohibit, "throw": NoRoute,
}

func (h *Host) readRoute(o *ipObject) error {
	r := Route{Type: ipRouteTypes[o.Type], Interface: o.Dev, Metric: o.Metric}
	gateway := o.Gateway
	if gateway == "" {
		gateway = o.Via.Host
	}
	if len(o.NextHops) > 0 { // flows are spread over them; only the first is used
		r.Interface, gateway = o.NextHops[0].Dev, o.NextHops[0].Gateway
		for _, other := range o.NextHops[1:] {
			r.Others = append(r.Others, other.Dev)
		}
	}
	for _, field := range []struct {
		text string
		to   *netip.Addr
	}{{gateway, &r.Via}, {o.PrefSrc, &r.Source}} {
		if field.text == "" {
			continue
		}
		a, err := netip.ParseAddr(field.text)
		if err != nil {
			return fmt.Errorf("route to %s: %w", o.Dst, err)
		}
		*field.to = a
	}
	switch p, err := netip.ParsePrefix(o.Dst); {
	case o.Dst == "default" && r.Via.Is6():
		r.Destination = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	case o.Dst == "default":
		r.Destination = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	case err == nil:
		r.Destination = p.Masked()
	default:
		a, err := netip.ParseAddr(o.Dst)
		if err != nil {
			return fmt.Errorf("route to %q: want an address, a network, or default", o.Dst)
		}
		r.Destination = netip.PrefixFrom(a, a.BitLen())
	}
	switch name := TableName(o.Table); name {
	case mainTable:
		h.Routes = append(h.Routes, r)
	case localTable: // addresses imply them
	default:
		if h.Tables == nil {
			h.Tables = make(map[string][]Route)
		}
		h.Tables[name] = append(h.Tables[name], r)
	}
	return nil
}

func (h *Host) readNeighbour(o *ipObject) error {
	a, err := netip.ParseAddr(o.Dst)
	if err != nil {
		return fmt.Errorf("neighbour %q: want an address", o.Dst)
	}
	n := Neighbour{Addr: a, Interface: o.Dev, Permanent: slices.Contains(o.State, "PERMANENT")}
	for _, state := range o.State {
		if state == "FAILED" || state == "INCOMPLETE" {
			n.Unanswered = state
		}
	}
	if mac, err := net.ParseMAC(o.LLAddr); err == nil && len(mac) == len(n.MAC) {
		n.MAC = iptables.MACAddress(mac)
	}
	h.Neighbours = append(h.Neighbours, n)
	return nil
}

// AddSources adds the addresses that routes show, the sources of packets that the host sends by them, if no addresses were read.
func (h *Host) AddSources() {
	for _, r := range h.Routes {
		if a := r.Source; a.IsValid() && !h.allAddresses && !h.Has(a) && r.Interface != "" {
			bits := a.BitLen()
			if r.Destination.Contains(a) {
				bits = r.Destination.Bits()
			}
			h.AddAddress(r.Interface, netip.PrefixFrom(a, bits))
		}
	}
}

// AddAddress adds an address to an interface, and the interface if it is missing. An empty name: the interface is not
// known, and [GuessHost] finds one.
func (h *Host) AddAddress(name string, p netip.Prefix) {
	i := h.device(name)
	if i == nil {
		h.Interfaces = append(h.Interfaces, Interface{Name: name})
		i = &h.Interfaces[len(h.Interfaces)-1]
	}
	i.Addresses = append(slices.Clip(i.Addresses), Address{Prefix: p, Narrow: p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast()}) // copies of the host share the others
}
