package savednode

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// This file reads what ip prints without -j, as that of BusyBox does, and brings it into the form of ip -j. Lines that it
// does not understand are left out.

// encoded is a list as JSON; nil for a file that is missing.
func encoded(text []byte, list []map[string]any) []byte {
	if text == nil {
		return nil
	}
	if list == nil {
		list = []map[string]any{}
	}
	data, err := json.Marshal(list)
	if err != nil {
		return nil
	}
	return data
}

// integer is a number; 0: it is none.
func integer(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 32)
	return n
}

// addressesOf reads the output of ip addr.
func addressesOf(text []byte) []byte {
	var list []map[string]any
	var addresses []map[string]any
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case len(list) > 0 && len(words) > 0 && strings.HasPrefix(words[0], "link/"):
			i := list[len(list)-1]
			if i["link_type"] = strings.TrimPrefix(words[0], "link/"); len(words) > 1 {
				i["address"] = words[1]
			}
		case len(words) < 2:
		case line[0] != ' ' && line[0] != '\t': // "2: eth0@if3: <UP> mtu 1500"
			name, _, _ := strings.Cut(strings.TrimSuffix(words[1], ":"), "@")
			addresses = nil
			list = append(list, map[string]any{"ifname": name, "addr_info": addresses, "qdisc": after(words, "qdisc"), "xdp": programOf(words)})
		case len(list) == 0:
		case words[0] == "inet" || words[0] == "inet6":
			addresses = append(addresses, addressOf(words))
			list[len(list)-1]["addr_info"] = addresses
		}
	}
	return encoded(text, list)
}

// after is the word after another one; empty: there is none.
func after(words []string, word string) string {
	if i := slices.Index(words, word); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// programOf reads "xdp/id:12", or "xdpgeneric/id:12", as iproute2 prints the program on a device.
func programOf(words []string) map[string]any {
	for _, w := range words {
		if mode, id, ok := strings.Cut(w, "/id:"); ok && strings.HasPrefix(mode, "xdp") {
			return map[string]any{"prog": map[string]any{"id": integer(id)}}
		}
	}
	return nil
}

// addressOf reads "inet 10.0.0.1 peer 10.0.0.2/32 scope global secondary eth0".
func addressOf(words []string) map[string]any {
	local, length, _ := strings.Cut(words[1], "/")
	a := map[string]any{"local": local}
	for i, w := range words[2:] {
		next := ""
		if i+3 < len(words) {
			next = words[i+3]
		}
		switch w {
		case "peer":
			a["address"], length, _ = strings.Cut(next, "/")
		case "scope":
			a["scope"] = next
		case "secondary", "noprefixroute":
			a[w] = true
		}
	}
	if length == "" {
		length = map[bool]string{true: "128", false: "32"}[words[0] == "inet6"]
	}
	a["prefixlen"] = integer(length)
	return a
}

// routeKinds begin a line of ip route that is not about a unicast route.
const routeKinds = " unicast local broadcast multicast throw unreachable prohibit blackhole nat anycast "

// routesOf reads the output of ip route.
func routesOf(text []byte) []byte {
	var list []map[string]any
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		r := make(map[string]any)
		if words[0] == "nexthop" {
			if len(list) == 0 {
				continue
			}
			of := list[len(list)-1]
			hops, _ := of["nexthops"].([]any)
			of["nexthops"] = append(hops, r)
		} else {
			if strings.Contains(routeKinds, " "+words[0]+" ") && len(words) > 1 {
				r["type"], words = words[0], words[1:]
			}
			r["dst"] = words[0]
			list = append(list, r)
		}
		for i, w := range words[:len(words)-1] {
			switch next := words[i+1]; w {
			case "via":
				r["gateway"] = next
			case "dev", "table":
				r[w] = next
			case "src":
				r["prefsrc"] = next
			case "metric":
				r["metric"] = integer(next)
			}
		}
	}
	return encoded(text, list)
}

// neighboursOf reads the output of ip neigh: "10.0.0.2 dev eth0 lladdr 02:00:00:00:00:02 REACHABLE".
func neighboursOf(text []byte) []byte {
	var list []map[string]any
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 4 {
			continue
		}
		n := map[string]any{"dst": words[0], "state": words[len(words)-1:]}
		for i, w := range words[1 : len(words)-1] {
			if w == "dev" || w == "lladdr" {
				n[w] = words[i+2]
			}
		}
		list = append(list, n)
	}
	return encoded(text, list)
}

// rulesOf reads the output of ip rule: "100: not from all to 10.0.0.1 fwmark 0x1/0x1 lookup 100 suppress_prefixlength 0".
func rulesOf(text []byte) []byte {
	var list []map[string]any
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 3 {
			continue
		}
		r := map[string]any{"priority": integer(strings.TrimSuffix(words[0], ":"))}
		for i := 1; i < len(words); i++ {
			next := ""
			if i+1 < len(words) {
				next = words[i+1]
			}
			switch w := words[i]; w {
			case "[detached]":
				continue
			case "not":
				r["not"] = nil
				continue
			case "unreachable", "prohibit", "blackhole":
				r["action"] = w
				continue
			case "fwmark":
				mark, mask, masked := strings.Cut(next, "/")
				if r["fwmark"] = mark; masked {
					r["fwmask"] = mask
				}
			default:
				name := map[string]string{"from": "src", "to": "dst", "lookup": "table", "suppress_prefixlength": "suppress_prefixlen", "proto": "protocol"}[w]
				r[cmp.Or(name, w)] = next
			}
			i++
		}
		list = append(list, r)
	}
	return encoded(text, list)
}
