package ipvs

import (
	"math"
	"strconv"
	"strings"
)

// row reads a line of ipvsadm -Ln (print_title and print_service_entry of ipvsadm.c).
func (s *reader) row() error {
	first, err := s.take("a line of ipvsadm -Ln")
	if err != nil {
		return err
	}
	arrow := first.text == "->" || first.text == "→" // as some editors write it
	switch {
	case first.text == "IP" && s.peek() == "Virtual":
		return nil // IP Virtual Server version 1.2.1 (size=4096)
	case first.text == "Prot" && s.peek() == "LocalAddress:Port":
		return s.title(first)
	case arrow && s.peek() == "RemoteAddress:Port":
		return nil
	case !s.titled && !IsLine(first.text+" "+s.peek()):
		return s.fail(first, "-A, or the heading of ipvsadm -Ln (Prot LocalAddress:Port ...)")
	case !s.titled:
		s.titled, s.headless, s.state.Format = true, true, List
	}
	if arrow {
		return s.realRow(first)
	}
	return s.serverRow(first)
}

// title tells the format by the heading.
func (s *reader) title(at word) error {
	if s.titled {
		return s.fail(at, "one listing: there is another heading before")
	}
	s.titled = true
	columns := map[string]Format{"Scheduler": List, "Conns": Stats, "CPS": Rate, "Uthreshold": Thresholds, "Weight": Persistence}
	s.take("")
	w, err := s.take("the columns of ipvsadm -Ln")
	if err != nil {
		return err
	}
	f, ok := columns[w.text]
	if !ok {
		return s.fail(w, "Scheduler, Conns, CPS, Uthreshold or Weight, as ipvsadm -Ln prints")
	}
	s.state.Format = f
	return nil
}

// serverRow reads the line of a virtual server: "TCP  10.96.0.1:443 rr persistent 10800", "FWM  1 IPv6 rr".
func (s *reader) serverRow(first word) error {
	v := &VirtualServer{}
	s.orphans = false
	switch first.text {
	case "FWM":
		mark, err := s.integer(math.MaxUint32, "a packet mark")
		if err != nil {
			return err
		}
		v.Mark = uint32(mark)
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
			return s.fail(first, "TCP, UDP, SCTP, FWM or ->")
		}
		at, err := s.take("the address of the virtual server")
		if err != nil {
			return err
		}
		if v.Address, err = s.address(at, false); err != nil {
			return err
		}
		v.IPv6 = v.Address.Addr().Is6()
	}
	v.ClientBits = v.addressBits()
	var err error
	switch s.state.Format {
	case List:
		err = s.schedulerColumns(v)
	case Stats, Rate:
		err = s.traffic(&v.Traffic)
	}
	if err != nil {
		return err
	}
	return s.add(first, v)
}

// schedulerColumns are the columns "Scheduler Flags".
func (s *reader) schedulerColumns(v *VirtualServer) error {
	name, err := s.take("a scheduler, like rr")
	if err != nil {
		return err
	}
	v.Scheduler = name.text
	for len(s.words) > 0 {
		w, _ := s.take("")
		switch {
		case w.text == "persistent":
			n, err := s.integer(math.MaxUint32, "a time in seconds")
			if err != nil {
				return err
			}
			v.Persistence = uint32(n)
		case w.text == "mask":
			if err := s.netmask(v); err != nil {
				return err
			}
		case w.text == "pe":
			engine, err := s.take("a persistence engine, like sip")
			if err != nil {
				return err
			}
			v.Engine = engine.text
		case w.text == "ops":
			v.OnePacket = true
		case strings.HasPrefix(w.text, "(") && strings.HasSuffix(w.text, ")"):
			v.Flags = flags(strings.Trim(w.text, "()"))
		default:
			return s.fail(w, "persistent, mask, pe, ops or flags in parentheses")
		}
	}
	return nil
}

// realRow reads the line of a real server: "  -> 10.244.1.5:8443  Masq  1  3  0".
func (s *reader) realRow(arrow word) error {
	if s.orphans || s.headless && len(s.state.Servers) == 0 {
		return nil
	}
	if len(s.state.Servers) == 0 {
		return s.fail(arrow, "a virtual server before its real servers")
	}
	v := s.state.Servers[len(s.state.Servers)-1]
	at, err := s.take("the address of the real server")
	if err != nil {
		return err
	}
	r := RealServer{}
	if r.Address, err = s.address(at, false); err != nil {
		return err
	}
	counts := func(fields ...*uint32) error {
		for _, f := range fields {
			n, err := s.integer(math.MaxUint32, "a number")
			if err != nil {
				return err
			}
			*f = uint32(n)
		}
		return nil
	}
	var weight, persistent uint32
	switch s.state.Format {
	case List:
		if r.Forward, err = s.method(); err == nil {
			err = counts(&weight, &r.Active, &r.Inactive)
		}
	case Thresholds:
		err = counts(&r.Upper, &r.Lower, &r.Active, &r.Inactive)
	case Persistence:
		err = counts(&weight, &persistent, &r.Active, &r.Inactive)
	default:
		err = s.traffic(&r.Traffic)
	}
	switch {
	case err != nil:
		return err
	case len(s.words) > 0:
		return s.fail(s.words[0], "the end of the line")
	case weight > math.MaxInt32:
		return s.fail(at, "a weight of at most %d", math.MaxInt32)
	}
	r.Weight = int(weight)
	return s.addReal(at, v, r)
}

// traffic reads the five columns of --stats and --rate (print_largenum: large numbers are rounded down, with a unit).
func (s *reader) traffic(t *Traffic) error {
	for _, to := range []*uint64{&t.Connections, &t.InPackets, &t.OutPackets, &t.InBytes, &t.OutBytes} {
		w, err := s.take("a number")
		if err != nil {
			return err
		}
		unit := uint64(1)
		digits := w.text
		if i := strings.IndexAny(digits, "KMGT"); i >= 0 && i == len(digits)-1 {
			unit = map[byte]uint64{'K': 1e3, 'M': 1e6, 'G': 1e9, 'T': 1e12}[digits[i]]
			digits = digits[:i]
		}
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || n > math.MaxUint64/unit {
			return s.fail(w, "a number, like 1234 or 567K")
		}
		*to = n * unit
	}
	if len(s.words) > 0 {
		return s.fail(s.words[0], "the end of the line")
	}
	return nil
}
