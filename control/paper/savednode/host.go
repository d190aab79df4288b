package savednode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/bundle"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Host is the node for packets of a family: its addresses, routes and sysctls. What the bundle lacks is left out. The notes
// say what it has that the simulation does not follow, one sentence each.
func (n *Node) Host(f iptables.Family) (h *netfilter.Host, notes []string, err error) {
	h = new(netfilter.Host)
	if forwards, known := n.forwarding(f); known {
		h.NoForwarding = !forwards
		if f == iptables.IPv4 {
			h.ForwardingDiffers = slices.Sorted(maps.Keys(n.devicesWith("forwarding", n.sysctls["net/ipv4/ip_forward"])))
		}
	}
	h.ReverseFilter = n.reverseFilter()
	if h.Bridges, err = n.bridges(f); err != nil {
		return nil, nil, err
	}
	if value := n.sysctls["net/ipv4/conf/all/route_localnet"]; value != "" {
		h.RouteLocalnet, h.LocalnetKnown = value != "0", true
	}
	if err := n.addAddresses(h); err != nil {
		return nil, nil, err
	}
	for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		tables, err := n.addRoutes(h, family)
		if err != nil {
			return nil, nil, err
		}
		if err := n.addNeighbours(h, family); err != nil {
			return nil, nil, err
		}
		note, err := n.addRules(h, family, tables)
		if err != nil {
			return nil, nil, err
		}
		if family == f {
			notes = append(notes, note...)
			h.OtherRules = len(note) > 0
		}
	}
	return h, append(notes, n.sysctlNotes(f)...), nil
}

// link is a device of ip -j -d link.
type link struct {
	Name string `json:"ifname"`
	Info struct {
		Kind string `json:"info_kind"`
		Data struct {
			CallIPTables  int `json:"nf_call_iptables"`
			CallIP6Tables int `json:"nf_call_ip6tables"`
		} `json:"info_data"`
	} `json:"linkinfo"`
}

// bridges are the bridges, and whether what they forward passes the rules of a family (br_nf_pre_routing, net/bridge/br_netfilter_hooks.c).
// Without the sysctl, the module is not loaded.
func (n *Node) bridges(f iptables.Family) (map[string]bool, error) {
	text := n.bundle.File(bundle.LinkFile)
	if text == nil || n.sysctls["net/ipv4/ip_forward"] == "" {
		return nil, nil
	}
	var raw []json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, fmt.Errorf("%s: %w", n.file(bundle.LinkFile), err)
	}
	name := "net/bridge/bridge-nf-call-iptables"
	if f == iptables.IPv6 {
		name = "net/bridge/bridge-nf-call-ip6tables"
	}
	bridges := make(map[string]bool)
	for _, r := range raw {
		var l link
		if json.Unmarshal(r, &l) != nil || l.Info.Kind != "bridge" { // the data of other kinds have other types
			continue
		}
		call := l.Info.Data.CallIPTables
		if f == iptables.IPv6 {
			call = l.Info.Data.CallIP6Tables
		}
		bridges[l.Name] = n.sysctls[name] == "1" || n.sysctls[name] != "" && call == 1
	}
	return bridges, nil
}

func (n *Node) addAddresses(h *netfilter.Host) error {
	text, name := n.bundle.File(bundle.AddrFile), bundle.AddrFile
	if text == nil {
		name = "addr.txt"
		if text = addressesOf(n.bundle.File(name)); text == nil {
			return nil
		}
	}
	if err := h.Read(bytes.NewReader(text)); err != nil {
		return fmt.Errorf("%s: %w", n.file(name), err)
	}
	return nil
}

// number is 4 or 6, as in the names of files.
func number(f iptables.Family) string {
	if f == iptables.IPv6 {
		return "6"
	}
	return "4"
}

// route is what decides whether a route of ip -j route is one of the host's.
type route struct {
	Type  string `json:"type"`
	Dst   string `json:"dst"`
	Table string `json:"table"` // empty: main
	Dev   string `json:"dev"`
}

// addRoutes adds the routes of the main table, and those of the table local that no address implies. It returns the
// tables in which a default route delivers packets on the host itself.
func (n *Node) addRoutes(h *netfilter.Host, f iptables.Family) (here map[string]bool, err error) {
	name := "route" + number(f) + ".json"
	text := n.bundle.File(name)
	if text == nil {
		name = "route" + number(f) + ".txt"
		if text = routesOf(n.bundle.File(name)); text == nil {
			return nil, nil
		}
	}
	wrap := func(err error) error { return fmt.Errorf("%s: %w", n.file(name), err) }
	var list []map[string]any
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, wrap(err)
	}
	here = make(map[string]bool)
	main := list[:0]
	for _, raw := range list {
		r := routeIn(raw)
		if r.Dst == "" {
			continue
		}
		isDefault := r.Dst == "default" || strings.HasSuffix(r.Dst, "/0")
		switch {
		case r.Table == "" || r.Table == "main" || r.Table == "254":
			if r.Type == "multicast" || r.Type == "anycast" {
				continue
			}
			if isDefault { // ip does not print its family
				raw["dst"] = map[iptables.Family]string{iptables.IPv4: "0.0.0.0/0", iptables.IPv6: "::/0"}[f]
			}
			main = append(main, raw)
		case (r.Table == "local" || r.Table == "255") && r.Type == "local" && isNetwork(r.Dst):
			main = append(main, raw)
		case r.Type == "local" && isDefault:
			here[r.Table] = true
		}
	}
	data, err := json.Marshal(main)
	if err == nil {
		err = h.Read(bytes.NewReader(data))
	}
	if err != nil {
		return nil, wrap(err)
	}
	return here, nil
}

func routeIn(raw map[string]any) route {
	text := func(key string) string {
		switch v := raw[key].(type) {
		case string:
			return v
		case float64:
			return strconv.Itoa(int(v))
		}
		return ""
	}
	return route{text("type"), text("dst"), text("table"), text("dev")}
}

// isNetwork reports whether a route is to more than one address, and not to loopback addresses.
func isNetwork(dst string) bool {
	p, err := netip.ParsePrefix(dst)
	return err == nil && !p.IsSingleIP() && !p.Addr().IsLoopback()
}

// rule is a routing rule of ip -j rule.
type rule struct {
	Priority int    `json:"priority"`
	Source   string `json:"src"`
	Mark     string `json:"fwmark"`
	Mask     string `json:"fwmask"`
	Table    string `json:"table"`
}

// addRules adds the marks for which rules deliver packets on the host itself; here are the tables that do that. The notes
// are about other rules.
func (n *Node) addRules(h *netfilter.Host, f iptables.Family, here map[string]bool) (notes []string, err error) {
	name := "rule" + number(f) + ".json"
	text := n.bundle.File(name)
	if text == nil {
		name = "rule" + number(f) + ".txt"
		text = rulesOf(n.bundle.File(name))
	}
	if text == nil {
		return nil, nil
	}
	var list []map[string]any
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", n.file(name), err)
	}
	var others []string
	for _, raw := range list {
		encoded, err := json.Marshal(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.file(name), err)
		}
		var r rule
		if json.Unmarshal(encoded, &r) != nil {
			r.Table = fmt.Sprint(raw["table"])
		}
		switch plain := r.Source == "all" && r.Mark == "" && len(raw) <= 3; {
		case plain && (r.Table == "local" || r.Table == "main" || r.Table == "default"):
		case r.Source == "all" && r.Mark != "" && here[r.Table]:
			if mark, ok := maskedMark(r.Mark, r.Mask); ok {
				h.LocalMarks = append(h.LocalMarks, mark)
				continue
			}
			fallthrough
		default:
			others = append(others, strconv.Itoa(r.Priority))
		}
	}
	if len(others) > 0 {
		notes = append(notes, fmt.Sprintf("routing rules of %s other than the usual ones are not followed: see priority %s in %s", f, nearest.Few(others), n.file(name)))
	}
	return notes, nil
}

func maskedMark(mark, mask string) (iptables.MaskedValue, bool) {
	value, err := strconv.ParseUint(mark, 0, 32)
	if err != nil {
		return iptables.MaskedValue{}, false
	}
	bits := uint64(1<<32 - 1)
	if mask != "" {
		if bits, err = strconv.ParseUint(mask, 0, 32); err != nil {
			return iptables.MaskedValue{}, false
		}
	}
	return iptables.MaskedValue{Value: uint32(value), Mask: uint32(bits)}, true
}
