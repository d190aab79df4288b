package noderules

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/executable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// readState reads what the calling thread's network namespace shows, and its routes to addresses. What cannot be read is
// missing, with an error.
func readState(to []netip.Addr) (s State, err error) {
	s.ReversePath, err = reversePath()
	if err == nil {
		s.Filtered, err = netstat("IPReversePathFilter")
	}
	s.Daemons, s.Stopped = daemons()
	entries, e := entriesOfUDP()
	s.Entries = entries
	handle, e2 := netlink.NewHandle(unix.NETLINK_ROUTE)
	if e2 != nil {
		return s, errors.Join(err, e, e2)
	}
	defer handle.Close()
	var e3, e4 error
	s.Delays, e3 = delays(handle)
	s.Routes, e4 = routes(handle, to)
	return s, errors.Join(err, e, e3, e4)
}

// reversePath are the devices with strict source validation: the higher one of a device's value and that of all counts.
func reversePath() (devices []string, err error) {
	files, err := filepath.Glob("/proc/sys/net/ipv4/conf/*/rp_filter")
	if err != nil {
		return nil, err
	}
	values := make(map[string]int)
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // the device is gone
		}
		values[filepath.Base(filepath.Dir(f))], _ = strconv.Atoi(string(bytes.TrimSpace(data)))
	}
	for device, value := range values {
		if max(value, values["all"]) == 1 && device != "all" && device != "default" && device != "lo" {
			devices = append(devices, device)
		}
	}
	slices.Sort(devices)
	return devices, nil
}

// netstat is a counter of the network namespace.
func netstat(name string) (uint64, error) {
	data, err := os.ReadFile("/proc/thread-self/net/netstat")
	if err != nil {
		return 0, err
	}
	lines := strings.Split(string(data), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if at := slices.Index(names, name); at >= 0 && at < len(values) {
			return strconv.ParseUint(values[at], 10, 64)
		}
	}
	return 0, nil // an older kernel's
}

// daemons are the processes nfqproxyd of the network namespace: how many, and those in state T.
func daemons() (all int, stopped []int) {
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return 0, nil
	}
	processes, _ := filepath.Glob("/proc/[0-9]*") // never an error
	for _, p := range processes {
		command, err := os.ReadFile(p + "/cmdline")
		arguments := bytes.Split(command, []byte{0})
		// Packages of other systems may give it another name that begins so, as "nfqproxyd-1.2".
		if err != nil || !strings.HasPrefix(filepath.Base(string(arguments[0])), executable.Daemon) {
			continue
		}
		if ns, err := os.Readlink(p + "/ns/net"); err != nil || ns != own {
			continue
		}
		all++
		stat, err := os.ReadFile(p + "/stat")
		at := bytes.LastIndexByte(stat, ')')
		pid, err2 := strconv.Atoi(filepath.Base(p))
		if err == nil && err2 == nil && bytes.HasPrefix(stat[at+1:], []byte(" T ")) {
			stopped = append(stopped, pid)
		}
	}
	slices.Sort(stopped)
	return all, stopped
}

// maxEntries is how many kinds of connections are listed.
const maxEntries = 10_000

func entriesOfUDP() ([]Entry, error) {
	table, err := conntrack.Open(new(conntrack.Locks))
	if err != nil {
		return nil, err
	}
	defer table.Close()
	type kind struct{ destination, endpoint netip.AddrPort }
	kinds := make(map[kind]*Entry)
	err = table.Dump(conntrack.Filter{Protocol: uint8(decision.UDP)}, func(s *conntrack.State) {
		k := kind{s.Original.Destination, s.Endpoint()}
		switch {
		case s.Status&conntrack.StatusDestinationNAT == 0:
		case kinds[k] != nil:
			kinds[k].Count++
		case len(kinds) < maxEntries:
			kinds[k] = &Entry{s.Original.Source, k.destination, k.endpoint, 1}
		}
	})
	var list []Entry
	for _, e := range kinds {
		list = append(list, *e)
	}
	slices.SortFunc(list, func(a, b Entry) int {
		return cmp.Or(a.Destination.Compare(b.Destination), a.Endpoint.Compare(b.Endpoint))
	})
	return list, err
}

// delays are the devices with netem.
func delays(handle *netlink.Handle) (list []Delay, _ error) {
	links, err := handle.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the devices: %w", err)
	}
	for _, l := range links {
		disciplines, err := handle.QdiscList(l)
		if err != nil {
			continue // the device is gone
		}
		if slices.ContainsFunc(disciplines, func(q netlink.Qdisc) bool { return q.Type() == "netem" }) {
			list = append(list, Delay{l.Attrs().Name})
		}
	}
	return list, nil
}

// routes are those of packets that the host sends.
func routes(handle *netlink.Handle, to []netip.Addr) (list []Route, _ error) {
	for _, a := range to {
		r := Route{To: a, Prefix: matching(handle, a)}
		found, err := handle.RouteGet(a.AsSlice())
		switch {
		case errors.Is(err, unix.EINVAL):
			r.None = "blackhole"
		case errors.Is(err, unix.EHOSTUNREACH):
			r.None = "unreachable"
		case errors.Is(err, unix.EACCES):
			r.None = "prohibit"
		case errors.Is(err, unix.ENETUNREACH) || err == nil && len(found) == 0:
			r.None = "no route"
		case err != nil:
			return list, fmt.Errorf("look up the route to %s: %w", a, err)
		default:
			if via, ok := netip.AddrFromSlice(found[0].Gw); ok {
				r.Via = via.Unmap()
			}
			if l, err := handle.LinkByIndex(found[0].LinkIndex); err == nil {
				r.Device = l.Attrs().Name
			}
			r.Unresolved = unresolved(handle, found[0].LinkIndex, cmp.Or(r.Via, a))
		}
		list = append(list, r)
	}
	return list, nil
}

func familyOf(a netip.Addr) int {
	if a.Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// matching is the longest prefix with an address of the main table's routes.
func matching(handle *netlink.Handle, a netip.Addr) (longest netip.Prefix) {
	list, err := handle.RouteListFiltered(familyOf(a), &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return longest
	}
	for i := range list {
		if list[i].Dst == nil {
			continue
		}
		ip, ok := netip.AddrFromSlice(list[i].Dst.IP)
		bits, _ := list[i].Dst.Mask.Size()
		if p := netip.PrefixFrom(ip.Unmap(), bits); ok && p.Contains(a) && (!longest.IsValid() || p.Bits() > longest.Bits()) {
			longest = p
		}
	}
	return longest
}

// unresolved reports whether the kernel has asked for a neighbour's hardware address and got no answer.
func unresolved(handle *netlink.Handle, link int, a netip.Addr) bool {
	neighbours, err := handle.NeighList(link, familyOf(a))
	return err == nil && slices.ContainsFunc(neighbours, func(n netlink.Neigh) bool {
		ip, ok := netip.AddrFromSlice(n.IP)
		return ok && ip.Unmap() == a && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) != 0
	})
}
