package savednode

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// listOf reads a file of ip -j, or the one that ip without -j wrote in its place. nil: there is none.
func (n *Node) listOf(name string, plain func([]byte) []byte) (list []map[string]any, file string, err error) {
	file = n.file(name + ".json")
	text := n.bundle.File(name + ".json")
	if text == nil {
		file = n.file(name + ".txt")
		if text = plain(n.bundle.File(name + ".txt")); text == nil {
			return nil, file, nil
		}
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, file, fmt.Errorf("%s: %w", file, err)
	}
	return list, file, nil
}

// word is a field of an object, as text; empty: it has none.
func word(raw map[string]any, key string) string {
	switch v := raw[key].(type) {
	case string:
		return v
	case float64:
		return strconv.Itoa(int(v))
	}
	return ""
}

// addRoutes adds the routes of all tables, but of the table local only those that no address implies.
func (n *Node) addRoutes(h *netfilter.Host, f iptables.Family) error {
	list, file, err := n.listOf("route"+number(f), routesOf)
	if list == nil {
		return err
	}
	var kept []map[string]any
	for _, raw := range list {
		dst, typ := word(raw, "dst"), word(raw, "type")
		if netfilter.TableName(word(raw, "table")) == "local" && typ == "local" && isNetwork(dst) {
			delete(raw, "table") // none implies it
		}
		if dst == "" || typ == "multicast" || typ == "anycast" {
			continue
		}
		if dst == "default" { // ip does not print its family
			raw["dst"] = map[iptables.Family]string{iptables.IPv4: "0.0.0.0/0", iptables.IPv6: "::/0"}[f]
		}
		kept = append(kept, raw)
	}
	return add(h, kept, file)
}

// addNeighbours adds the neighbour entries.
func (n *Node) addNeighbours(h *netfilter.Host, f iptables.Family) error {
	list, file, err := n.listOf("neigh"+number(f), neighboursOf)
	if list == nil {
		return err
	}
	return add(h, list, file)
}

// add adds a list of ip -j to the host.
func add(h *netfilter.Host, list []map[string]any, file string) error {
	data, err := json.Marshal(list)
	if err == nil {
		err = h.Read(bytes.NewReader(data))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// isNetwork reports whether a route is to more than one address, and not to loopback addresses.
func isNetwork(dst string) bool {
	p, err := netip.ParsePrefix(dst)
	return err == nil && !p.IsSingleIP() && !p.Addr().IsLoopback()
}

// addRules adds the routing rules of a family, if they are not the usual ones. The notes are about those that are not followed.
func (n *Node) addRules(h *netfilter.Host, f iptables.Family) (notes []string, err error) {
	list, file, err := n.listOf("rule"+number(f), rulesOf)
	if err != nil {
		return nil, err
	}
	usual := true
	var others []string
	for _, raw := range list {
		r, ok := ruleOf(raw)
		if !ok {
			others = append(others, word(raw, "priority"))
			continue
		}
		usual = usual && r == (netfilter.RoutingRule{Table: r.Table}) && slices.Contains([]string{"local", "main", "default"}, r.Table)
		h.Rules = append(h.Rules, r)
	}
	if usual {
		h.Rules = nil
	}
	if h.OtherRules = len(others) > 0; h.OtherRules {
		notes = append(notes, fmt.Sprintf("some routing rules of %s are not followed: see priority %s in %s", f, nearest.Few(others), file))
	}
	return notes, nil
}

// ruleOf reads an object of ip -j rule. false: it selects packets by what is not simulated.
func ruleOf(raw map[string]any) (r netfilter.RoutingRule, ok bool) {
	if _, isLookup := raw["table"]; isLookup {
		r.Table = netfilter.TableName(word(raw, "table"))
	}
	for key := range raw {
		text, known := word(raw, key), true
		switch key {
		case "priority", "table", "protocol", "srclen", "dstlen", "fwmask", "iif_detached":
		case "not":
			r.Not = true
		case "src":
			r.From, known = selector(text, word(raw, "srclen"))
		case "dst":
			r.To, known = selector(text, word(raw, "dstlen"))
		case "iif":
			r.In = text
		case "fwmark":
			r.Mark, known = maskedMark(text, word(raw, "fwmask"))
		case "suppress_prefixlen":
			r.MinBits, known = int(integer(text))+1, true
		case "action":
			r.Type, known = actions[text]
		default:
			known = false
		}
		if !known {
			return r, false
		}
	}
	if r.Table == "" {
		r.Priority = int(integer(word(raw, "priority")))
	}
	return r, r.Table != "" || r.Type != netfilter.Unicast
}

var actions = map[string]netfilter.RouteType{"blackhole": netfilter.Blackhole, "unreachable": netfilter.Unreachable, "prohibit": netfilter.Prohibit}

// selector is the network that a rule is about; not valid: "all".
func selector(text, bits string) (p netip.Prefix, ok bool) {
	if text == "all" {
		return p, true
	}
	if bits != "" {
		text += "/" + bits
	}
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err == nil
}

func maskedMark(mark, mask string) (m iptables.MaskedValue, ok bool) {
	value, err := strconv.ParseUint(mark, 0, 32)
	bits, err2 := strconv.ParseUint(cmp.Or(mask, "0xffffffff"), 0, 32)
	return iptables.MaskedValue{Value: uint32(value), Mask: uint32(bits)}, err == nil && err2 == nil
}
