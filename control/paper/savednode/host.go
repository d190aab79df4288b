package savednode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/bundle"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Host is the node for packets of a family: its addresses, routes and sysctls. What the bundle lacks is left out. The notes
// say what it has that cannot be read, or that the simulation does not follow, one sentence each.
func (n *Node) Host(f iptables.Family) (h *netfilter.Host, notes []string) {
	h = new(netfilter.Host)
	if forwards, known := n.forwarding(f); known {
		h.NoForwarding = !forwards
		if f == iptables.IPv4 {
			h.ForwardingDiffers = slices.Sorted(maps.Keys(n.devicesWith("forwarding", n.sysctls["net/ipv4/ip_forward"])))
		}
	}
	h.ReverseFilter = n.reverseFilter()
	h.Tables = make(map[string][]netfilter.Route)
	read := func(part func(*netfilter.Host) error) {
		with := *h
		with.Tables = maps.Clone(h.Tables)
		if err := part(&with); err != nil {
			notes = append(notes, fmt.Sprintf("a file of the bundle cannot be read, and what it says of the node is not known: %v", err))
			return
		}
		*h = with
	}
	read(func(h *netfilter.Host) (err error) {
		h.Bridges, err = n.bridges(f)
		return err
	})
	if value := n.sysctls["net/ipv4/conf/all/route_localnet"]; value != "" {
		h.RouteLocalnet, h.LocalnetKnown = value != "0", true
	}
	read(n.addAddresses)
	for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		read(func(h *netfilter.Host) error { return n.addRoutes(h, family) })
		read(func(h *netfilter.Host) error { return n.addNeighbours(h, family) })
	}
	h.AddSources()
	h.OtherRules = true
	read(func(h *netfilter.Host) error {
		more, err := n.addRules(h, f)
		notes = append(notes, more...)
		return err
	})
	h.SourceMarks = n.sysctls["net/ipv4/conf/all/src_valid_mark"] != "0"
	return h, append(notes, n.sysctlNotes(f)...)
}

// link is a device of ip -j -d link.
type link struct {
	Name   string   `json:"ifname"`
	Master string   `json:"master"`
	Flags  []string `json:"flags"`
	Info   struct {
		Kind string `json:"info_kind"`
		Data struct {
			CallIPTables  int `json:"nf_call_iptables"`
			CallIP6Tables int `json:"nf_call_ip6tables"`
		} `json:"info_data"`
		PortOf string `json:"info_slave_kind"`
		Port   struct {
			Hairpin bool `json:"hairpin"`
		} `json:"info_slave_data"`
	} `json:"linkinfo"`
}

// bridges are the bridges. Whether what they forward passes the rules depends on the family (br_nf_pre_routing,
// net/bridge/br_netfilter_hooks.c). Without the sysctl, the module is not loaded.
func (n *Node) bridges(f iptables.Family) (map[string]netfilter.Bridge, error) {
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
	bridges := make(map[string]netfilter.Bridge)
	for _, r := range raw {
		var l link
		err := json.Unmarshal(r, &l) // the data of other kinds have other types
		if l.Info.PortOf == "bridge" {
			b := bridges[l.Master]
			if b.Ports++; l.Info.Port.Hairpin {
				b.Hairpins++
			}
			bridges[l.Master] = b
		}
		if err != nil || l.Info.Kind != "bridge" {
			continue
		}
		call := l.Info.Data.CallIPTables
		if f == iptables.IPv6 {
			call = l.Info.Data.CallIP6Tables
		}
		b := bridges[l.Name]
		b.PassesRules = n.sysctls[name] == "1" || n.sysctls[name] != "" && call == 1
		b.Promiscuous = slices.Contains(l.Flags, "PROMISC")
		bridges[l.Name] = b
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
	for line := range strings.Lines(string(n.bundle.File("qdisc.txt"))) { // "qdisc clsact ffff: dev eth0 parent ffff:fff1"
		if words := strings.Fields(line); after(words, "qdisc") != "" {
			h.AddQdisc(after(words, "dev"), after(words, "qdisc"))
		}
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
