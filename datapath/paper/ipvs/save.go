package ipvs

import (
	"math"
	"net/netip"
)

// command reads a line of ipvsadm -Sn, or of a file for ipvsadm -R: -A adds a virtual server, -a a real server.
func (s *reader) command() {
	switch first := s.take("-A or -a"); first.text {
	case "-A", "--add-service":
		s.addService(first)
	case "-a", "--add-server":
		s.addServer(first)
	default:
		s.fail(first, "-A (a virtual server) or -a (a real server)")
	}
}

// addService reads the options of -A.
func (s *reader) addService(at word) {
	v := &VirtualServer{Scheduler: defaultScheduler}
	var named bool
	for len(s.words) > 0 {
		w := s.take("")
		if s.service(w, v) {
			named = true
			continue
		}
		switch w.text {
		case "-s", "--scheduler":
			v.Scheduler = s.take("a scheduler, like rr").text
		case "-p", "--persistent":
			v.Persistence = defaultPersistence
			if next := s.peek(); next != "" && next[0] >= '0' && next[0] <= '9' {
				v.Persistence = s.integer(math.MaxUint32, "a time in seconds")
			}
		case "-M", "--netmask":
			s.netmask(v)
		case "-b", "--sched-flags":
			v.Flags = flags(s.take("flags of the scheduler, like sh-port").text)
		case "--pe", "pe": // without dashes until 1.26
			v.Engine = s.take("a persistence engine, like sip").text
		case "-o", "--ops", "ops":
			v.OnePacket = true
		default:
			s.fail(w, "an option of -A: -t, -u, --sctp-service, -f, -6, -s, -p, -M, -b, --pe or -o")
		}
	}
	if !named || v.Protocol == 0 && v.Mark == 0 {
		s.fail(word{column: s.end}, "the address of the virtual server: -t, -u, --sctp-service or -f")
	}
	if v.ClientBits == 0 {
		v.ClientBits = v.addressBits()
	}
	s.add(at, v)
}

// The defaults of ipvsadm (DEF_SCHED of ipvsadm.c, IPVS_SVC_PERSISTENT_TIMEOUT of libipvs.h).
const (
	defaultScheduler   = "wlc"
	defaultPersistence = 360
)

// service reads an option that names a virtual server; ok is false if it is another one.
func (s *reader) service(w word, v *VirtualServer) (ok bool) {
	protocol := uint8(0)
	switch w.text {
	case "-t", "--tcp-service":
		protocol = protoTCP
	case "-u", "--udp-service":
		protocol = protoUDP
	case "--sctp-service":
		protocol = protoSCTP
	case "-f", "--fwmark-service":
		if v.Mark = s.integer(math.MaxUint32, "a packet mark"); v.Mark == 0 {
			s.fail(w, "a packet mark above 0")
		}
		v.Protocol, v.Address = 0, netip.AddrPort{}
		return true
	case "-6", "--ipv6":
		v.IPv6 = true
		return true
	default:
		return false
	}
	v.Address = s.address(s.take("the address of the virtual server"), false)
	v.Protocol, v.Mark, v.IPv6 = protocol, 0, v.Address.Addr().Is6()
	return true
}

// addServer reads the options of -a.
func (s *reader) addServer(at word) {
	of := &VirtualServer{}
	r := RealServer{Forward: Route, Weight: 1} // ipvsadm's defaults
	var server word
	for len(s.words) > 0 {
		w := s.take("")
		if s.service(w, of) {
			continue
		}
		switch w.text {
		case "-r", "--real-server":
			server = s.take("the address of the real server")
			r.Address = s.address(server, true)
		case "-m", "--masquerading":
			r.Forward = Masquerade
		case "-g", "--gatewaying":
			r.Forward = Route
		case "-i", "--ipip":
			r.Forward = Tunnel
		case "-w", "--weight":
			r.Weight = int(s.integer(math.MaxInt32, "a weight"))
		case "-x", "--u-threshold":
			r.Upper = s.integer(math.MaxUint32, "a number of connections")
		case "-y", "--l-threshold":
			r.Lower = s.integer(math.MaxUint32, "a number of connections")
		case "--tun-type", "--tun-port":
			s.take("the value of " + w.text)
		case "--tun-nocsum", "--tun-csum", "--tun-remcsum":
		default:
			s.fail(w, "an option of -a: -t, -u, --sctp-service, -f, -6, -r, -m, -g, -i, -w, -x, -y or --tun-type")
		}
	}
	v := s.known[of.identity()]
	switch {
	case v == nil && of.Protocol == 0 && of.Mark == 0:
		s.fail(word{column: s.end}, "the virtual server: -t, -u, --sctp-service or -f")
		return
	case v == nil:
		s.fail(at, "a virtual server of a line before: %s was not added with -A", of)
		return
	case server.text == "":
		s.fail(word{column: s.end}, "the address of the real server: -r")
	}
	if r.Address.Port() == 0 && r.Forward != LocalNode {
		r.Address = netip.AddrPortFrom(r.Address.Addr(), v.Address.Port())
	}
	s.addReal(server, v, r)
}
