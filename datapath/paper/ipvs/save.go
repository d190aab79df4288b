package ipvs

import (
	"math"
	"net/netip"
)

// command reads a line of ipvsadm -Sn, or of a file for ipvsadm -R: -A adds a virtual server, -a a real server.
func (s *reader) command() error {
	first, err := s.take("-A or -a")
	if err != nil {
		return err
	}
	switch first.text {
	case "-A", "--add-service":
		return s.addService(first)
	case "-a", "--add-server":
		return s.addServer(first)
	}
	return s.fail(first, "-A (a virtual server) or -a (a real server)")
}

// addService reads the options of -A.
func (s *reader) addService(at word) error {
	v := &VirtualServer{Scheduler: defaultScheduler}
	var named bool
	for len(s.words) > 0 {
		w, _ := s.take("")
		ok, err := s.service(w, v)
		switch {
		case err != nil:
			return err
		case ok:
			named = true
			continue
		}
		switch w.text {
		case "-s", "--scheduler":
			name, err := s.take("a scheduler, like rr")
			if err != nil {
				return err
			}
			v.Scheduler = name.text
		case "-p", "--persistent":
			v.Persistence = defaultPersistence
			if next := s.peek(); next != "" && next[0] >= '0' && next[0] <= '9' {
				n, err := s.integer(math.MaxUint32, "a time in seconds")
				if err != nil {
					return err
				}
				v.Persistence = uint32(n)
			}
		case "-M", "--netmask":
			if err := s.netmask(v); err != nil {
				return err
			}
		case "-b", "--sched-flags":
			names, err := s.take("flags of the scheduler, like sh-port")
			if err != nil {
				return err
			}
			v.Flags = flags(names.text)
		case "--pe", "pe": // without dashes until 1.26
			engine, err := s.take("a persistence engine, like sip")
			if err != nil {
				return err
			}
			v.Engine = engine.text
		case "-o", "--ops", "ops":
			v.OnePacket = true
		default:
			return s.fail(w, "an option of -A: -t, -u, --sctp-service, -f, -6, -s, -p, -M, -b, --pe or -o")
		}
	}
	if !named || v.Protocol == 0 && v.Mark == 0 {
		return s.fail(word{column: s.end}, "the address of the virtual server: -t, -u, --sctp-service or -f")
	}
	if v.ClientBits == 0 {
		v.ClientBits = v.addressBits()
	}
	return s.add(at, v)
}

// The defaults of ipvsadm (DEF_SCHED of ipvsadm.c, IPVS_SVC_PERSISTENT_TIMEOUT of libipvs.h).
const (
	defaultScheduler   = "wlc"
	defaultPersistence = 360
)

// service reads an option that names a virtual server; ok is false if it is another one.
func (s *reader) service(w word, v *VirtualServer) (ok bool, err error) {
	protocol := uint8(0)
	switch w.text {
	case "-t", "--tcp-service":
		protocol = protoTCP
	case "-u", "--udp-service":
		protocol = protoUDP
	case "--sctp-service":
		protocol = protoSCTP
	case "-f", "--fwmark-service":
		mark, err := s.integer(math.MaxUint32, "a packet mark")
		if err != nil {
			return true, err
		}
		if mark == 0 {
			return true, s.fail(w, "a packet mark above 0")
		}
		v.Protocol, v.Address, v.Mark = 0, netip.AddrPort{}, uint32(mark)
		return true, nil
	case "-6", "--ipv6":
		v.IPv6 = true
		return true, nil
	default:
		return false, nil
	}
	to, err := s.take("the address of the virtual server")
	if err != nil {
		return true, err
	}
	if v.Address, err = s.address(to, false); err != nil {
		return true, err
	}
	v.Protocol, v.Mark, v.IPv6 = protocol, 0, v.Address.Addr().Is6()
	return true, nil
}

// addServer reads the options of -a.
func (s *reader) addServer(at word) error {
	of := &VirtualServer{}
	r := RealServer{Forward: Route, Weight: 1} // ipvsadm's defaults
	var server word
	for len(s.words) > 0 {
		w, _ := s.take("")
		if ok, err := s.service(w, of); err != nil {
			return err
		} else if ok {
			continue
		}
		var err error
		switch w.text {
		case "-r", "--real-server":
			if server, err = s.take("the address of the real server"); err == nil {
				r.Address, err = s.address(server, true)
			}
		case "-m", "--masquerading":
			r.Forward = Masquerade
		case "-g", "--gatewaying":
			r.Forward = Route
		case "-i", "--ipip":
			r.Forward = Tunnel
		case "-w", "--weight":
			var n uint64
			n, err = s.integer(math.MaxInt32, "a weight")
			r.Weight = int(n)
		case "-x", "--u-threshold":
			r.Upper, err = s.threshold()
		case "-y", "--l-threshold":
			r.Lower, err = s.threshold()
		case "--tun-type", "--tun-port":
			_, err = s.take("the value of " + w.text)
		case "--tun-nocsum", "--tun-csum", "--tun-remcsum":
		default:
			return s.fail(w, "an option of -a: -t, -u, --sctp-service, -f, -6, -r, -m, -g, -i, -w, -x, -y or --tun-type")
		}
		if err != nil {
			return err
		}
	}
	v := s.known[of.identity()]
	switch {
	case v == nil && of.Protocol == 0 && of.Mark == 0:
		return s.fail(word{column: s.end}, "the virtual server: -t, -u, --sctp-service or -f")
	case v == nil:
		return s.fail(at, "a virtual server of a line before: %s was not added with -A", of)
	case server.text == "":
		return s.fail(word{column: s.end}, "the address of the real server: -r")
	}
	if r.Address.Port() == 0 && r.Forward != LocalNode {
		r.Address = netip.AddrPortFrom(r.Address.Addr(), v.Address.Port())
	}
	return s.addReal(server, v, r)
}

func (s *reader) threshold() (uint32, error) {
	n, err := s.integer(math.MaxUint32, "a number of connections")
	return uint32(n), err
}
