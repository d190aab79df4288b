package netfilter

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// A walk is what the rules see of the host: the methods of iptables.Host.
var _ iptables.Host = (*walk)(nil)

func (w *walk) Connection() *iptables.Connection {
	if w.entry == nil {
		return nil
	}
	return &w.entry.Connection
}

func (w *walk) Reply() bool            { return w.reply }
func (w *walk) Tracked() bool          { return w.tracked }
func (w *walk) State() iptables.States { return w.tracking.bit() }
func (w *walk) Expires() uint32        { return w.entry.expires() }
func (w *walk) Zone() uint16           { return w.zone }

func (w *walk) Lives(original iptables.Tuple, zone uint16) bool {
	c, alive := w.state.table[tupleKey{original, zone}]
	return alive && !c.entry.closed()
}

func (w *walk) AddrType(a netip.Addr, device string, types iptables.AddrTypes) bool {
	return w.machine.network.isType(a, device, types)
}

func (w *walk) Hook() string { return w.hook.String() }

func (w *walk) RouteBack(to netip.Addr, mark uint32) (iptables.AddrTypes, string) {
	from := w.Packet.Destination.Addr()
	if to == from {
		from = w.Packet.Source.Addr()
	}
	switch r := w.machine.network.back(to, from, "", mark); r.Type {
	case Unicast:
		return iptables.AddrUnicast, r.Interface
	case Broadcast:
		return iptables.AddrBroadcast, r.Interface
	case Blackhole:
		return iptables.AddrBlackhole, ""
	case Unreachable:
		return iptables.AddrUnreachable, ""
	case Prohibit:
		return iptables.AddrProhibit, ""
	case Local:
		if on, own := w.machine.network.local[to]; own {
			return iptables.AddrLocal, on
		}
		return iptables.AddrLocal, loopbackName
	}
	return iptables.AddrUnspec, ""
}

func (w *walk) IsBroadcast(a netip.Addr) bool { return w.machine.network.isBroadcast(a) }

func (w *walk) NextHop() netip.Addr {
	to := w.Packet.Destination.Addr()
	switch via := w.route.Via; {
	case w.hook == Prerouting && w.In != loopbackName:
		return netip.Addr{}
	case via.IsValid() && via.Is4() == to.Is4(): // rt_nexthop, rt6_nexthop
		return via
	}
	return to
}

func (w *walk) Group(device string) (group uint32, known bool) {
	d := w.machine.network.device(device)
	if d == nil || d.Group == nil {
		return 0, false
	}
	return *d.Group, true
}

func (w *walk) Translates() bool {
	return slices.ContainsFunc(w.machine.hooks.nat[:], func(list []base) bool { return len(list) > 0 })
}

func (w *walk) HasFrames(device string) bool {
	d := w.machine.network.device(device)
	return device != loopbackName && (d == nil || !d.PointToPoint)
}

func (w *walk) Assigned() bool { return w.assigned != nil }

func (w *walk) Listener() (found, wildcard, transparent bool) {
	s := w.assigned
	if s == nil {
		s = w.machine.network.socket(w.Packet.Protocol, w.Packet.Destination)
	}
	if s == nil {
		return false, false, false
	}
	return true, s.Address.Addr().IsUnspecified(), s.Transparent
}

func (w *walk) Set(name string) *iptables.Set { return w.machine.sets[name] }
func (w *walk) Memory() *iptables.Memory      { return &w.state.memory }
func (w *walk) Uptime() float64               { return w.state.Now }
func (w *walk) Fresh() bool                   { return w.machine.options.FreshCounters }

func (w *walk) Time() time.Time {
	if w.state.Began.IsZero() {
		return time.Time{}
	}
	return w.state.Began.Add(time.Duration(w.state.Now * float64(time.Second))).UTC()
}

// Draw records the choice for the step.
func (w *walk) Draw(p float64) bool {
	decided := w.chooser.coin(p)
	if !decided {
		p = 1 - p
	}
	if w.probability == 0 {
		w.probability = 1
	}
	w.probability *= p
	return decided
}

func (w *walk) Assume(text string) {
	if !slices.Contains(w.result.Assumptions, text) {
		w.result.Assumptions = append(w.result.Assumptions, text)
	}
}
