package savednode

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// readSysctls reads lines "net/ipv4/ip_forward = 1".
func readSysctls(text []byte) map[string]string {
	values := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " = "); ok {
			values[name] = value
		}
	}
	return values
}

// Sysctl is the value of a sysctl, by its path in /proc/sys; empty: the bundle does not have it.
func (n *Node) Sysctl(path string) string { return n.sysctls[path] }

// devicesWith are the devices whose sysctl of IPv4 of that name has another value, with their values.
func (n *Node) devicesWith(name, other string) map[string]string {
	found := make(map[string]string)
	for path, value := range n.sysctls {
		device, of := strings.CutPrefix(path, "net/ipv4/conf/")
		if device, ok := strings.CutSuffix(device, "/"+name); of && ok && device != "all" && device != "default" && device != "lo" && value != other {
			found[device] = value
		}
	}
	return found
}

// forwarding is whether the node forwards packets of a family, and whether the bundle says so.
func (n *Node) forwarding(f iptables.Family) (forwards, known bool) {
	path := "net/ipv4/ip_forward"
	if f == iptables.IPv6 {
		path = "net/ipv6/conf/all/forwarding"
	}
	value := n.sysctls[path]
	return value != "0", value != ""
}

// reverseFilter is rp_filter in force, of the devices that have it.
func (n *Node) reverseFilter() map[string]int {
	of := make(map[string]int)
	all := n.sysctls["net/ipv4/conf/all/rp_filter"]
	for device, value := range n.devicesWith("rp_filter", "") {
		if filter, err := strconv.Atoi(max(all, value)); err == nil && filter > 0 {
			of[device] = filter
		}
	}
	return of
}

// Connections are the entries of the node's connection table, and how many it may have. ok: the bundle says so.
func (n *Node) Connections() (entries, limit int, ok bool) {
	entries, err := strconv.Atoi(n.sysctls["net/netfilter/nf_conntrack_count"])
	if err != nil {
		return 0, 0, false
	}
	limit, err = strconv.Atoi(n.sysctls["net/netfilter/nf_conntrack_max"])
	return entries, limit, err == nil && limit > 0
}

// sysctlNotes are what the sysctls say that the simulation does not follow.
func (n *Node) sysctlNotes(f iptables.Family) (notes []string) {
	if f == iptables.IPv6 {
		return nil
	}
	if n.sysctls["net/ipv4/conf/all/route_localnet"] == "0" {
		for device, value := range n.devicesWith("route_localnet", "0") {
			notes = append(notes, fmt.Sprintf("route_localnet is %s on %s only: it is taken for 0", value, device))
		}
	}
	slices.Sort(notes)
	return notes
}
