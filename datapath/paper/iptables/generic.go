package iptables

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// Source is "-s network".
type Source struct {
	Network Network
	Negated bool
}

func (Source) module() string   { return "" }
func (m Source) write(w *words) { w.option(m.Negated, "-s", m.Network.String()) }

func (m Source) test(c *Context) Truth {
	return c.address(true).inNetwork(m.Network, m.Negated)
}

func (m Source) tell(c *Context, matched bool) string {
	return inNetwork("the source", c.Packet.Source.Addr(), m.Network, m.Negated != matched)
}

func inNetwork(what string, a netip.Addr, n Network, negated bool) string {
	if p, ok := n.Prefix(); ok && p.IsSingleIP() {
		return isNot(fmt.Sprintf("%s is %s", what, a), p.Addr().String(), negated)
	}
	if negated {
		return fmt.Sprintf("%s %s is within %s", what, a, n)
	}
	return fmt.Sprintf("%s %s is not within %s", what, a, n)
}

// Destination is "-d network".
type Destination struct {
	Network Network
	Negated bool
}

func (Destination) module() string   { return "" }
func (m Destination) write(w *words) { w.option(m.Negated, "-d", m.Network.String()) }

func (m Destination) test(c *Context) Truth {
	return c.address(false).inNetwork(m.Network, m.Negated)
}

func (m Destination) tell(c *Context, matched bool) string {
	return inNetwork("the destination", c.Packet.Destination.Addr(), m.Network, m.Negated != matched)
}

// Interface is the name of a network device.
type Interface struct {
	Name string // without the "+"; at most 15 bytes
	// Wildcard is set for "eth+": all devices whose name begins with Name.
	Wildcard bool
}

// Matches reports whether a device of that name matches. A packet without such a device, like a
// locally generated one without input, has the name "" (x_tables.h, ifname_compare_aligned).
func (i Interface) Matches(name string) bool {
	if i.Wildcard {
		return strings.HasPrefix(name, i.Name)
	}
	return name == i.Name
}

func (i Interface) String() string {
	if i.Wildcard {
		return i.Name + "+"
	}
	return i.Name
}

// text is "it arrives on eth0, not eth1".
func (i Interface) text(verb, name string, negated bool) string {
	if name == "" {
		name = "no device"
	}
	return isNot("it "+verb+" "+name, i.String(), negated)
}

var aDevice = kind[Interface]{"the name of a device", "at most 15 characters", func(s string) (Interface, bool) {
	if s == "" || len(s) > 15 {
		return Interface{}, false
	}
	name, wildcard := strings.CutSuffix(s, "+")
	return Interface{name, wildcard}, true
}}

// InInterface is "-i device".
type InInterface struct {
	Interface Interface
	Negated   bool
}

func (InInterface) module() string   { return "" }
func (m InInterface) write(w *words) { w.option(m.Negated, "-i", m.Interface.String()) }

func (m InInterface) test(c *Context) Truth {
	return c.meta(rules.InDevice).names(m.Interface, m.Negated)
}

func (m InInterface) tell(c *Context, matched bool) string {
	return m.Interface.text("arrives on", c.In, m.Negated != matched)
}

// OutInterface is "-o device".
type OutInterface struct {
	Interface Interface
	Negated   bool
}

func (OutInterface) module() string   { return "" }
func (m OutInterface) write(w *words) { w.option(m.Negated, "-o", m.Interface.String()) }

func (m OutInterface) test(c *Context) Truth {
	return c.meta(rules.OutDevice).names(m.Interface, m.Negated)
}

func (m OutInterface) tell(c *Context, matched bool) string {
	return m.Interface.text("leaves on", c.Out, m.Negated != matched)
}

// Protocol is "-p protocol".
type Protocol struct {
	Number  uint8 // IANA number; 0 is every protocol
	Negated bool
}

func (Protocol) module() string   { return "" }
func (m Protocol) write(w *words) { w.option(m.Negated, "-p", protocolName(m.Number)) }

func (m Protocol) test(c *Context) Truth {
	if m.Number == 0 {
		return True
	}
	return c.meta(rules.Protocol).is(m.Negated, m.Number)
}

func (m Protocol) whyNot(c *Context) string {
	return isNot("it is "+ProtocolName(c.Packet.Protocol), ProtocolName(m.Number), m.Negated)
}

// Fragment is "-f": the second and later fragments of an IPv4 packet.
type Fragment struct{ Negated bool }

func (Fragment) module() string   { return "" }
func (m Fragment) write(w *words) { w.option(m.Negated, "-f") }

func (m Fragment) test(*Context) Truth { return truthOf(m.Negated) } // there are none: see Packet

// protocols are the names that iptables-save prints and reads: its own list
// (xtables_chain_protos), and what /etc/protocols of the common distributions has. If one number
// has several names, the first is printed.
var protocols = []struct {
	name   string
	number uint8
}{
	{"all", 0}, {"ip", 0}, {"hopopt", 0}, {"icmp", 1}, {"igmp", 2}, {"ggp", 3}, {"ipencap", 4}, {"ipv4", 4},
	{"st", 5}, {"tcp", 6}, {"cbt", 7}, {"egp", 8}, {"igp", 9}, {"pup", 12}, {"udp", 17}, {"hmp", 20},
	{"xns-idp", 22}, {"rdp", 27}, {"iso-tp4", 29}, {"dccp", 33}, {"idpr", 35}, {"xtp", 36}, {"ddp", 37},
	{"idpr-cmtp", 38}, {"ipv6", 41}, {"sdrp", 42}, {"ipv6-route", 43}, {"ipv6-frag", 44}, {"idrp", 45},
	{"rsvp", 46}, {"gre", 47}, {"dsr", 48}, {"bna", 49}, {"esp", 50}, {"ipv6-crypt", 50}, {"ah", 51},
	{"ipv6-auth", 51}, {"narp", 54}, {"mobile", 55}, {"skip", 57}, {"ipv6-icmp", 58}, {"icmpv6", 58},
	{"ipv6-nonxt", 59}, {"ipv6-opts", 60}, {"rspf", 73}, {"vmtp", 81}, {"eigrp", 88}, {"ospf", 89},
	{"ospfigp", 89}, {"ax.25", 93}, {"ipip", 94}, {"etherip", 97}, {"encap", 98}, {"pim", 103}, {"ipcomp", 108},
	{"vrrp", 112}, {"carp", 112}, {"pgm", 113}, {"l2tp", 115}, {"isis", 124}, {"sctp", 132}, {"fc", 133},
	{"mobility-header", 135}, {"ipv6-mh", 135}, {"mh", 135}, {"udplite", 136}, {"mpls-in-ip", 137},
	{"manet", 138}, {"hip", 139}, {"shim6", 140}, {"wesp", 141}, {"rohc", 142}, {"ethernet", 143},
}

// IANA numbers of the protocols that have a module.
const (
	protoICMP    = 1
	protoTCP     = 6
	protoUDP     = 17
	protoDCCP    = 33
	protoICMPv6  = 58
	protoSCTP    = 132
	protoUDPLite = 136
)

func protocolName(number uint8) string {
	for _, p := range protocols {
		if p.number == number {
			return p.name
		}
	}
	return strconv.Itoa(int(number))
}

// ParseProtocol reads a number of a protocol, or a name as iptables takes it. ok is false
// if it is neither.
func ParseProtocol(text string) (n uint8, ok bool) {
	for _, p := range protocols {
		if strings.EqualFold(p.name, text) {
			return p.number, true
		}
	}
	return number[uint8](text)
}

var aProtocol = kind[uint8]{"a protocol", "tcp, udp, icmp, ... or 0 to 255", ParseProtocol}

// buildGeneric makes the matches that need no module, in the order of iptables-save.
func (s *section) buildGeneric() []Match {
	var matches []Match
	if o, ok := s.find("-s"); ok {
		if n := value(s, o.values[0], s.network()); o.negated || !n.all() {
			matches = append(matches, Source{n, o.negated})
		}
	}
	if o, ok := s.find("-d"); ok {
		if n := value(s, o.values[0], s.network()); o.negated || !n.all() {
			matches = append(matches, Destination{n, o.negated})
		}
	}
	if o, ok := s.find("-i"); ok {
		matches = append(matches, InInterface{value(s, o.values[0], aDevice), o.negated})
	}
	if o, ok := s.find("-o"); ok {
		matches = append(matches, OutInterface{value(s, o.values[0], aDevice), o.negated})
	}
	if o, ok := s.find("-p"); ok {
		p := Protocol{Number: value(s, o.values[0], aProtocol), Negated: o.negated}
		if p.Number == 0 && p.Negated {
			s.fail(o.values[0], "a rule for no protocol never matches", "a protocol, or no !")
		}
		if p.Number != 0 { // -p all is no test
			matches = append(matches, p)
		}
	}
	if o, ok := s.find("-f"); ok {
		if s.family == IPv6 {
			s.fail(o.name, "-f is not for IPv6", "-m frag")
		}
		matches = append(matches, Fragment{o.negated})
	}
	return matches
}
