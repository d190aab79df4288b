package ipvs

import (
	"math"
	"strconv"
	"strings"
)

// row reads a line of ipvsadm -Ln (print_title and print_service_entry of ipvsadm.c).
func (s *reader) row() {
	first := s.take("a line of ipvsadm -Ln")
	arrow := first.text == "->" || first.text == "→" // as some editors write it
	switch {
	case first.text == "IP" && s.peek() == "Virtual": // IP Virtual Server version 1.2.1 (size=4096)
		return
	case first.text == "Prot" && s.peek() == "LocalAddress:Port":
		s.title(first)
		return
	case arrow && s.peek() == "RemoteAddress:Port":
		return
	case !s.titled && !IsLine(first.text+" "+s.peek()):
		s.fail(first, "-A, or the heading of ipvsadm -Ln (Prot LocalAddress:Port ...)")
		return
	case !s.titled:
		s.titled, s.headless, s.state.Format = true, true, List
	}
	if arrow {
		s.realRow(first)
	} else {
		s.serverRow(first)
	}
}

// title tells the format by the heading.
func (s *reader) title(at word) {
	if s.titled {
		s.fail(at, "one listing: there is another heading before")
		return
	}
	s.titled = true
	columns := map[string]Format{"Scheduler": List, "Conns": Stats, "CPS": Rate, "Uthreshold": Thresholds, "Weight": Persistence}
	s.take("")
	w := s.take("the columns of ipvsadm -Ln")
	f, ok := columns[w.text]
	if !ok {
		s.fail(w, "Scheduler, Conns, CPS, Uthreshold or Weight, as ipvsadm -Ln prints")
	}
	s.state.Format = f
}

// serverRow reads the line of a virtual server: "TCP  10.96.0.1:443 rr persistent 10800", "FWM  1 IPv6 rr".
func (s *reader) serverRow(first word) {
	v := &VirtualServer{}
	s.orphans = false
	switch first.text {
	case "FWM":
		v.Mark = s.integer(math.MaxUint32, "a packet mark")
		if s.peek() == "IPv6" {
			v.IPv6 = true
			s.take("")
		}
	default:
		for number, name := range protocolNames {
			if name == first.text {
				v.Protocol = number
			}
		}
		if v.Protocol == 0 {
			s.fail(first, "TCP, UDP, SCTP, FWM or ->")
			return
		}
		v.Address = s.address(s.take("the address of the virtual server"), false)
		v.IPv6 = v.Address.Addr().Is6()
	}
	v.ClientBits = v.addressBits()
	switch s.state.Format {
	case List:
		s.schedulerColumns(v)
	case Stats, Rate:
		s.traffic(&v.Traffic)
	}
	s.add(first, v)
}

// schedulerColumns are the columns "Scheduler Flags".
func (s *reader) schedulerColumns(v *VirtualServer) {
	v.Scheduler = s.take("a scheduler, like rr").text
	for len(s.words) > 0 {
		w := s.take("")
		switch {
		case w.text == "persistent":
			v.Persistence = s.integer(math.MaxUint32, "a time in seconds")
		case w.text == "mask":
			s.netmask(v)
		case w.text == "pe":
			v.Engine = s.take("a persistence engine, like sip").text
		case w.text == "ops":
			v.OnePacket = true
		case strings.HasPrefix(w.text, "(") && strings.HasSuffix(w.text, ")"):
			v.Flags = flags(strings.Trim(w.text, "()"))
		default:
			s.fail(w, "persistent, mask, pe, ops or flags in parentheses")
		}
	}
}

// realRow reads the line of a real server: "  -> 10.244.1.5:8443  Masq  1  3  0".
func (s *reader) realRow(arrow word) {
	if s.orphans || s.headless && len(s.state.Servers) == 0 {
		return
	}
	if len(s.state.Servers) == 0 {
		s.fail(arrow, "a virtual server before its real servers")
		return
	}
	v := s.state.Servers[len(s.state.Servers)-1]
	at := s.take("the address of the real server")
	r := RealServer{Address: s.address(at, false)}
	counts := func(fields ...*uint32) {
		for _, f := range fields {
			*f = s.integer(math.MaxUint32, "a number")
		}
		s.endLine()
	}
	var weight, persistent uint32
	switch s.state.Format {
	case List:
		r.Forward = s.method()
		counts(&weight, &r.Active, &r.Inactive)
	case Thresholds:
		counts(&r.Upper, &r.Lower, &r.Active, &r.Inactive)
	case Persistence:
		counts(&weight, &persistent, &r.Active, &r.Inactive)
	default:
		s.traffic(&r.Traffic)
	}
	if weight > math.MaxInt32 {
		s.fail(at, "a weight of at most %d", math.MaxInt32)
	}
	r.Weight = int(weight)
	s.addReal(at, v, r)
}

func (s *reader) endLine() {
	if len(s.words) > 0 {
		s.fail(s.words[0], "the end of the line")
	}
}

// traffic reads the five columns of --stats and --rate (print_largenum: large numbers are rounded down, with a unit).
func (s *reader) traffic(t *Traffic) {
	for _, to := range []*uint64{&t.Connections, &t.InPackets, &t.OutPackets, &t.InBytes, &t.OutBytes} {
		w := s.take("a number")
		unit := uint64(1)
		digits := w.text
		if i := strings.IndexAny(digits, "KMGT"); i >= 0 && i == len(digits)-1 {
			unit = map[byte]uint64{'K': 1e3, 'M': 1e6, 'G': 1e9, 'T': 1e12}[digits[i]]
			digits = digits[:i]
		}
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || n > math.MaxUint64/unit {
			s.fail(w, "a number, like 1234 or 567K")
		}
		*to = n * unit
	}
	s.endLine()
}
