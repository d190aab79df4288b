package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Checksum is "-j CHECKSUM --checksum-fill": fills in a checksum that was left to a device.
type Checksum struct{}

var _ = addTarget(&target{
	name: "CHECKSUM", table: "mangle", shapes: map[string]shape{"--checksum-fill": flag},
	phrases: map[string]phrase{"CHECKSUM": checksumPhrase},
	build:   func(s *section) Target { s.oneOf("--checksum-fill"); return Checksum{} },
})

func (Checksum) name() string     { return "CHECKSUM" }
func (t Checksum) write(w *words) { w.bare("--checksum-fill") }

func (Checksum) inert() {}

// TCPMSS is "-j TCPMSS": lowers the maximum segment size in a SYN.
type TCPMSS struct {
	ClampToPMTU bool   // to the path MTU less the headers
	MSS         uint16 // valid iff ClampToPMTU is not set
}

var _ = addTarget(&target{
	name: "TCPMSS", shapes: map[string]shape{"--set-mss": one, "--clamp-mss-to-pmtu": flag},
	phrases: map[string]phrase{"TCPMSS": tcpmssPhrase},
	build: func(s *section) Target {
		s.needs(s.name, "TCPMSS", protoTCP)
		o, ok := s.last("--set-mss", "--clamp-mss-to-pmtu")
		if !ok {
			s.miss("--set-mss or --clamp-mss-to-pmtu")
		}
		if len(o.values) == 0 {
			return TCPMSS{ClampToPMTU: true}
		}
		return TCPMSS{MSS: value(s, o.values[0], anyUint16)}
	},
})

func (TCPMSS) name() string { return "TCPMSS" }
func (t TCPMSS) write(w *words) {
	if t.ClampToPMTU {
		w.bare("--clamp-mss-to-pmtu")
	} else {
		w.bare("--set-mss", decimal(t.MSS))
	}
}

func (TCPMSS) inert() {}

// change is tcpmss_mangle_packet (xt_TCPMSS.c): the segment size in a SYN is lowered,
// never raised; a SYN without one gets the option, with at most the size that every host accepts
// (RFC 879, RFC 8200).
func (t TCPMSS) change(c *Context) {
	const length = 4
	p := &c.Packet
	if p.Protocol != protoTCP {
		return
	}
	headers, least := uint16(lengthIPv4+lengthTCP), uint16(536) // TCP_MSS_DEFAULT
	if !p.Is4() {
		headers, least = lengthIPv6+lengthTCP, 1220
	}
	size := t.MSS
	if t.ClampToPMTU {
		const mtu = 1500 // of Ethernet
		c.assume("that the path's MTU is %d", mtu)
		size = mtu - headers
	}
	if slices.Contains(p.TCPOptions, tcpOptionMSS) {
		p.MSS = min(p.MSS, size)
		p.writeSegmentSize(0)
		return
	}
	p.TCPOptions, p.MSS = append([]uint8{tcpOptionMSS}, p.TCPOptions...), min(size, least)
	p.Length += length
	p.writeSegmentSize(length)
}

// writeSegmentSize writes MSS to Bytes; a new option is inserted before the others.
func (p *Packet) writeSegmentSize(room int) {
	at := p.transportAt(p.Bytes)
	options := at + lengthTCP
	if len(p.Bytes) < options || !p.Is4() && p.Bytes[6] != protoTCP {
		p.Bytes = nil
		return
	}
	p.Bytes, p.remade = slices.Insert(slices.Clone(p.Bytes), options, make([]byte, room)...), true
	if room > 0 {
		p.Bytes[at+12] += byte(room/4) << 4
		p.Bytes[options], p.Bytes[options+1] = tcpOptionMSS, byte(room)
	}
	end := min(len(p.Bytes), at+int(p.Bytes[at+12]>>4)*4)
	for i := options; i+4 <= end && p.Bytes[i] != 0; {
		switch {
		case p.Bytes[i] == 1: // no operation
			i++
			continue
		case p.Bytes[i] == tcpOptionMSS:
			p.Bytes[i+2], p.Bytes[i+3] = byte(p.MSS>>8), byte(p.MSS)
			return
		}
		i += max(2, int(p.Bytes[i+1]))
	}
}

// TProxy is "-j TPROXY": the packet goes to a local socket unchanged.
type TProxy struct {
	Port uint16     // 0: the packet's own destination port
	Addr netip.Addr // unspecified: the address of the input device
	// Mark is set as by [SetMark]: mark &^ Mask ^ Value.
	Mark MaskedValue
}

var _ = addTarget(&target{
	name: "TPROXY", table: "mangle", chains: []string{"PREROUTING"}, shapes: map[string]shape{"--on-port": one, "--on-ip": one, "--tproxy-mark": one},
	phrases: map[string]phrase{"TPROXY": tproxyPhrase},
	build: func(s *section) Target {
		s.needs(s.name, "TPROXY", protoTCP, protoUDP)
		s.oneOf("--on-port")
		return TProxy{
			optional(s, "--on-port", aPort, PortRange{}).First, optional(s, "--on-ip", s.address(), anyAddress(s.family)),
			optional(s, "--tproxy-mark", aMark, MaskedValue{}),
		}
	},
})

func (TProxy) name() string { return "TPROXY" }
func (t TProxy) write(w *words) {
	w.bare("--on-port", decimal(t.Port), "--on-ip", t.Addr.String(), "--tproxy-mark", t.Mark.Full())
}

func (TProxy) effect(*Context) string { return "goes to a transparent socket of this host" }

// SetTOS is "-j TOS": tos = tos &^ Mask ^ Value, of the whole byte.
type SetTOS struct{ Value, Mask uint8 }

var _ = addTarget(&target{
	name: "TOS", table: "mangle", shapes: map[string]shape{"--set-tos": one},
	phrases: map[string]phrase{"TOS": tosPhrase},
	build: func(s *section) Target {
		t, _ := sole(s, "--set-tos", kind[SetTOS]{"a type of service", "value or value/mask, of 8 bits", func(t string) (SetTOS, bool) {
			tos, ok := parseMaskedTOS(t)
			return SetTOS{tos.Value, tos.Mask}, ok
		}})
		return t
	},
})

func (SetTOS) name() string     { return "TOS" }
func (t SetTOS) write(w *words) { w.bare("--set-tos", fmt.Sprintf("0x%02x/0x%02x", t.Value, t.Mask)) }

func (t SetTOS) change(c *Context) { c.Packet.TOS = c.Packet.TOS&^t.Mask ^ t.Value }

// SetDSCP is "-j DSCP": the upper six bits of the type of service.
type SetDSCP struct{ DSCP uint8 } // 0 to 63

// dscpClasses are those of dscp_helper.c.
var dscpClasses = map[string]uint8{
	"CS0": 0, "CS1": 8, "CS2": 16, "CS3": 24, "CS4": 32, "CS5": 40, "CS6": 48, "CS7": 56, "BE": 0,
	"AF11": 10, "AF12": 12, "AF13": 14, "AF21": 18, "AF22": 20, "AF23": 22,
	"AF31": 26, "AF32": 28, "AF33": 30, "AF41": 34, "AF42": 36, "AF43": 38, "EF": 46,
}

func dscpClass(name string) (n uint8, ok bool) {
	n, ok = dscpClasses[strings.ToUpper(name)]
	return n, ok
}

var _ = addTarget(&target{
	name: "DSCP", table: "mangle", shapes: map[string]shape{"--set-dscp": one, "--set-dscp-class": one},
	phrases: map[string]phrase{"DSCP": targetPhrase("--set-dscp", "DSCP", "set")},
	build: func(s *section) Target {
		o, parse := s.oneOf("--set-dscp", "--set-dscp-class"), aDSCP.parse
		if o.name.Text == "--set-dscp-class" {
			parse = dscpClass
		}
		return SetDSCP{first(s, o, kind[uint8]{"a DSCP", "0 to 63, or with --set-dscp-class a class", parse})}
	},
})

func (SetDSCP) name() string     { return "DSCP" }
func (t SetDSCP) write(w *words) { w.bare("--set-dscp", fmt.Sprintf("0x%02x", t.DSCP)) }

func (t SetDSCP) change(c *Context) { c.Packet.TOS = c.Packet.TOS&3 | t.DSCP<<2 }

// Classify is "-j CLASSIFY": skb->priority, a class of the traffic control.
type Classify struct{ Major, Minor uint16 }

var _ = addTarget(&target{
	name: "CLASSIFY", shapes: map[string]shape{"--set-class": one},
	phrases: map[string]phrase{"CLASSIFY": targetPhrase("--set-class", "CLASSIFY", "set")},
	build: func(s *section) Target {
		t, _ := sole(s, "--set-class", kind[Classify]{"a class", "major:minor, both hexadecimal", func(t string) (Classify, bool) {
			major, minor, two := strings.Cut(t, ":")
			a, ok := number[uint16]("0x" + major)
			b, ok2 := number[uint16]("0x" + minor)
			return Classify{a, b}, two && ok && ok2
		}})
		return t
	},
})

func (Classify) name() string { return "CLASSIFY" }
func (t Classify) change(c *Context) {
	c.Packet.Priority = uint32(t.Major)<<16 | uint32(t.Minor)
}
func (t Classify) write(w *words) { w.bare("--set-class", fmt.Sprintf("%04x:%04x", t.Major, t.Minor)) }

func checksumPhrase(w *wording, _ bool) bool {
	w.emit(false, "--checksum-fill")
	return w.word("CHECKSUM", "fill")
}

func tcpmssPhrase(w *wording, _ bool) bool {
	if w.word("TCPMSS", "clamp", "to", "PMTU") {
		w.emit(false, "--clamp-mss-to-pmtu")
		return true
	}
	return w.word("TCPMSS", "set") && w.value("--set-mss")
}

// tproxyPhrase reads "TPROXY redirect fd00::1:50080 mark 0x1/0x1".
func tproxyPhrase(w *wording, _ bool) bool {
	if !w.word("TPROXY", "redirect") {
		return false
	}
	to, _ := w.next()
	i := strings.LastIndexByte(to.Text, ':')
	if i < 0 {
		return false
	}
	w.emit(false, "--on-port", Token{Text: to.Text[i+1:], Column: to.Column + i + 1})
	w.emit(false, "--on-ip", Token{Text: to.Text[:i], Column: to.Column})
	return w.word("mark") && w.value("--tproxy-mark")
}

// tosPhrase reads "TOS set 0x10/0x3f", "TOS and 0x08" and "TOS setMinimize-Delay".
func tosPhrase(w *wording, _ bool) bool {
	if !w.word("TOS") {
		return false
	}
	if name, ok := w.behind("set"); ok && name.Text != "" {
		value, known := tosNames[name.Text]
		w.names = true
		w.emit(false, "--set-tos", Token{Text: fmt.Sprintf("0x%02x/0x3f", value), Column: name.Column})
		return known
	} else if ok {
		return w.value("--set-tos")
	}
	operation, _ := w.next()
	t, _ := w.next()
	n, ok := number[uint8](t.Text)
	set := SetTOS{}
	switch operation.Text {
	case "and":
		set.Mask = ^n
	case "or":
		set = SetTOS{n, n}
	case "xor":
		set.Value = n
	default:
		return false
	}
	w.emit(false, "--set-tos", Token{Text: fmt.Sprintf("0x%02x/0x%02x", set.Value, set.Mask), Column: t.Column})
	return ok
}
