package iptables

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/pasted"
)

// Set is an ipset as `ipset save` prints it.
type Set struct {
	Name string
	Line int // of "create", from 1
	// Type is the name of the type: "hash:ip,port". An unknown type is no fault, but its elements
	// have only their text.
	Type   string
	Family Family // of hash types: IPv4 if the text does not have it
	// Timeout is that of elements added without one, in seconds; nil: they stay.
	Timeout *uint32
	// Options are the words after the type, unchanged.
	Options []Token
	// First and Last are the ends of a bitmap:ip, FirstPort and LastPort those of a
	// bitmap:port; zero for the other types.
	First, Last         netip.Addr
	FirstPort, LastPort uint16
	Elements            []Element
}

// Element is a member of a set. The set's type determines the valid fields.
type Element struct {
	Line int    // from 1
	Text string // the element as it is written; the only field for unknown types
	// Network is the first address or network, of hash:ip, hash:net and types that begin with
	// them. A single address is a prefix of full length. An added range of addresses is in Range
	// instead.
	Network netip.Prefix
	Range   AddrRange // valid iff Network is not, and the type has addresses
	// Second is the second address or network, of hash:ip,port,ip and the like.
	Second netip.Prefix
	// Protocol is the IANA number, and Ports the ports, of types with "port". For ICMP
	// Ports is type*256 + code of one message. bitmap:port has no protocol (0).
	Protocol  uint8
	Ports     PortRange
	MAC       MACAddress // of hash:mac
	Interface string     // of hash:net,iface
	Member    string     // the name of a set, of list:set
	// Nomatch is an exception from a larger network in the set.
	Nomatch bool
	Timeout *uint32 // remaining seconds; nil: the set's, or none
	Comment string
	// Options are the other options (packets, bytes, skbmark, ...), unchanged.
	Options []Token
}

// setTypes are the types, with the sorts of their parts.
var setTypes = map[string][]string{
	"hash:ip": {"ip"}, "hash:net": {"net"}, "hash:ip,port": {"ip", "port"}, "hash:net,port": {"net", "port"},
	"hash:ip,port,ip": {"ip", "port", "ip2"}, "hash:ip,port,net": {"ip", "port", "net2"},
	"hash:net,net": {"net", "net2"}, "hash:net,port,net": {"net", "port", "net2"}, "hash:net,iface": {"net", "iface"},
	"hash:mac": {"mac"}, "bitmap:port": {"bareport"}, "bitmap:ip": {"ip"}, "list:set": {"set"},
}

// IsSetLine reports whether a line is one of ipset save or ipset list.
func IsSetLine(line string) bool {
	element := line != "" && line[0] >= '0' && line[0] <= '9' && !strings.Contains(line, " ")
	return element || strings.HasPrefix(line, "create ") || strings.HasPrefix(line, "add ") || strings.HasPrefix(line, "Name: ")
}

// maskedPart finds a part of an address that somebody masked.
var maskedPart = regexp.MustCompile(`(?i)[0-9a-f][.:](x{1,4}|\*)([.:/,]|$)`)

// ParseSets reads the text of `ipset save` or `ipset list`. Sets of which a member is masked are left out: what they have is not known. An error is that of r, or joins all faults
// of the text: see [Errors].
func ParseSets(r io.Reader) (map[string]*Set, error) {
	text, err := pasted.Read(r)
	if err != nil {
		return nil, err
	}
	sets := make(map[string]*Set)
	var errs errorList
	number := 0
	var members []*Set
	var masked []string // the names of sets with members that somebody masked
	var list setListing
	for line := range strings.Lines(text) {
		number++
		if errs.tooMany(number) {
			break
		}
		line, e := list.line(strings.TrimRight(line, " \t\r\n"))
		errs.add(number, e)
		words, e := Split(line)
		if e != nil {
			errs.add(number, e)
			continue
		}
		if len(words) == 0 || strings.HasPrefix(words[0].Text, "#") {
			continue
		}
		if len(words) < 3 {
			errs.add(number, &Error{Column: 1, Problem: fmt.Sprintf("unknown line %.40q", line), Want: `"create set type options" or "add set element"`})
			continue
		}
		switch words[0].Text {
		case "create":
			s, e := createSet(words, number)
			if e == nil && sets[s.Name] != nil {
				e = &Error{Column: words[1].Column, Problem: fmt.Sprintf("set %s is there already", s.Name), Want: "each set once"}
			}
			if e == nil {
				sets[s.Name] = s
				if s.Type == "list:set" {
					members = append(members, s)
				}
			}
			errs.add(number, e)
		case "add":
			s := sets[words[1].Text]
			if s == nil {
				errs.add(number, &Error{Column: words[1].Column, Problem: fmt.Sprintf("there is no set %.40q", words[1].Text), Want: "a line \"create\" before it"})
				continue
			}
			e, fault := s.element(words[2:])
			switch e.Line = number; {
			case fault == nil:
				s.Elements = append(s.Elements, e)
			case pasted.IsMask(words[2].Text), maskedPart.MatchString(words[2].Text):
				masked = append(masked, s.Name)
			default:
				errs.add(number, fault)
			}
		default:
			errs.add(number, &Error{Column: words[0].Column, Problem: fmt.Sprintf("unknown command %.40q", words[0].Text), Want: "create or add"})
		}
	}
	errs.add(number, list.end())
	for _, s := range members {
		for _, e := range s.Elements {
			if sets[e.Member] == nil {
				errs.add(e.Line, &Error{Column: 1, Problem: fmt.Sprintf("there is no set %.40q", e.Member), Want: "a set of the file"})
			}
		}
	}
	if err := errs.err(); err != nil {
		return nil, err
	}
	for _, name := range masked { // what it has is not known, nor what those of kube-proxy have together
		maps.DeleteFunc(sets, func(other string, _ *Set) bool {
			return other == name || strings.HasPrefix(name, "KUBE-") && strings.HasPrefix(other, "KUBE-")
		})
	}
	return sets, nil
}

// createSet reads "create name type options".
func createSet(words []Token, line int) (*Set, *Error) {
	name, typ, rest := words[1], words[2], words[3:]
	s := &Set{Name: name.Text, Line: line, Type: typ.Text, Options: rest}
	if !strings.Contains(s.Type, ":") {
		return nil, &Error{Column: typ.Column, Problem: fmt.Sprintf("%.40q is not a type of set", s.Type), Want: "hash:ip, bitmap:port, list:set or the like"}
	}
	if name.Text == "" || len(name.Text) > 31 { // IPSET_MAXNAMELEN
		return nil, &Error{Column: name.Column, Problem: fmt.Sprintf("%.40q cannot be the name of a set", name.Text), Want: "1 to 31 characters"}
	}
	// Bitmaps are for IPv4 only; the other types without addresses have no family.
	if parts := setTypes[s.Type]; len(parts) > 0 && (parts[0] == "ip" || parts[0] == "net") {
		s.Family = IPv4
	}
	in := section{family: s.Family}
	for i := 0; i+1 < len(rest); i++ {
		v := rest[i+1]
		switch rest[i].Text {
		case "family":
			s.Family = value(&in, v, kind[Family]{"a family", "inet or inet6", func(t string) (Family, bool) {
				return map[string]Family{"inet": IPv4, "inet6": IPv6}[t], t == "inet" || t == "inet6"
			}})
			in.family = s.Family
		case "timeout":
			n := value(&in, v, anyUint32)
			s.Timeout = &n
		case "range":
			switch s.Type {
			case "bitmap:port":
				r := value(&in, v, kind[PortRange]{"a range of ports", "first-last", func(t string) (PortRange, bool) { return parseRange[uint16](t, "-") }})
				s.FirstPort, s.LastPort = r.First, r.Last
			case "bitmap:ip":
				r := value(&in, v, anAddrRange(IPv4))
				s.First, s.Last = r.First, r.Last
			}
		default:
			continue
		}
		i++
	}
	return s, in.err
}

// anAddrRange reads "first-last", or a prefix as the range that it is.
func anAddrRange(f Family) kind[AddrRange] {
	return kind[AddrRange]{"a range of " + f.String() + " addresses", "first-last or address/length", func(t string) (AddrRange, bool) {
		if p, err := netip.ParsePrefix(t); err == nil && isOf(p.Addr(), f) {
			n := NetworkOf(p)
			return AddrRange{n.Addr, n.last()}, true
		}
		return parseAddrRange(f, t)
	}}
}

// last is the highest address of the network.
func (n Network) last() netip.Addr {
	a, m := n.Addr.AsSlice(), n.Mask.AsSlice()
	for i := range a {
		a[i] |= ^m[i]
	}
	last, _ := netip.AddrFromSlice(a)
	return last
}

// element reads what follows "add set".
func (s *Set) element(words []Token) (Element, *Error) {
	e := Element{Text: words[0].Text}
	in := section{family: s.Family}
	sorts, known := setTypes[s.Type]
	if !known {
		e.options(&in, words[1:])
		return e, in.err
	}
	parts := strings.Split(words[0].Text, ",")
	if len(parts) != len(sorts) {
		in.fail(words[0], fmt.Sprintf("%.60q is not an element of a set of type %s", words[0].Text, s.Type), fmt.Sprintf("%d parts", len(sorts)))
		return e, in.err
	}
	column := words[0].Column
	for i, part := range parts {
		t := Token{Text: part, Column: column}
		column += len(part) + 1
		switch sorts[i] {
		case "ip", "net":
			if strings.Contains(part, "-") {
				e.Range = value(&in, t, anAddrRange(s.Family))
			} else {
				e.Network = value(&in, t, aPrefix(s.Family))
			}
		case "ip2", "net2":
			e.Second = value(&in, t, aPrefix(s.Family))
		case "port":
			e.port(&in, t)
		case "bareport":
			e.Ports = value(&in, t, kind[PortRange]{"a port", "0 to 65535, or first-last", func(t string) (PortRange, bool) { return parseRange[uint16](t, "-") }})
		case "mac":
			e.MAC = value(&in, t, kind[MACAddress]{"an Ethernet address", "six bytes like 00:11:22:AA:BB:CC", parseMAC})
		case "iface":
			e.Interface = t.Text
		case "set":
			e.Member = t.Text
		}
	}
	e.options(&in, words[1:])
	return e, in.err
}

func aPrefix(f Family) kind[netip.Prefix] {
	return kind[netip.Prefix]{"an " + f.String() + " address", "address or address/length", func(t string) (netip.Prefix, bool) {
		n, ok := parseNetwork(f, t)
		if !ok {
			return netip.Prefix{}, false
		}
		return n.Prefix()
	}}
}

// port reads "tcp:80", "80" (tcp), "udp:53-54" and "icmp:8/0".
func (e *Element) port(in *section, t Token) {
	e.Protocol = protoTCP
	protocol, ports, named := strings.Cut(t.Text, ":")
	if !named {
		ports = protocol
	} else {
		e.Protocol = value(in, Token{Text: protocol, Column: t.Column}, aProtocol)
		t.Column += len(protocol) + 1
	}
	t.Text = ports
	if e.Protocol == protoICMP || e.Protocol == protoICMPv6 {
		names := icmpNames
		if e.Protocol == protoICMPv6 {
			names = icmp6Names
		}
		m := value(in, t, anICMPType(names))
		code := uint16(m.Type)<<8 | uint16(m.Code.Value)
		e.Ports = PortRange{code, code}
		return
	}
	e.Ports = value(in, t, kind[PortRange]{"a port", "0 to 65535, or first-last", func(s string) (PortRange, bool) { return parseRange[uint16](s, "-") }})
}

// options reads what follows the element.
func (e *Element) options(in *section, words []Token) {
	for i := 0; i < len(words); i++ {
		name := words[i]
		if name.Text == "nomatch" {
			e.Nomatch = true
			continue
		}
		if i+1 == len(words) {
			// An option without a value: kept unchanged.
			e.Options = append(e.Options, name)
			continue
		}
		i++
		switch name.Text {
		case "timeout":
			n := value(in, words[i], anyUint32)
			e.Timeout = &n
		case "comment":
			e.Comment = words[i].Text
		default:
			e.Options = append(e.Options, name, words[i])
		}
	}
}
