package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// target is the destination of a request, as its user writes it.
type target struct {
	protocol decision.Protocol
	host     string // a name or an address
	port     uint16 // 0: none is given
	http     bool   // the request is HTTP, for the path; otherwise a line
	path     string
}

// parseTarget reads a URL, NAME[:PORT] or ADDRESS[:PORT]; protocol is tcp, udp or empty. field is the faulty one of the
// two.
func parseTarget(to, protocol string) (t target, field string, err error) {
	bad := func(why string) (target, string, error) { return target{}, "to", fmt.Errorf("%q: %s", to, why) }
	t.protocol = decision.TCP
	if protocol != "" {
		p, err := decision.ParseProtocol(protocol)
		if err != nil || p == decision.SCTP {
			return target{}, "protocol", fmt.Errorf("%q: want tcp or udp", protocol)
		}
		t.protocol = p
	}
	scheme, rest, isURL := strings.Cut(to, "://")
	if !isURL {
		scheme, rest = "", to
	}
	switch scheme = strings.ToLower(scheme); scheme {
	case "http", "":
		t.http = scheme == "http"
	case "tcp", "udp":
		if p, _ := decision.ParseProtocol(scheme); protocol == "" {
			t.protocol = p
		}
	case "https":
		return bad("the servers of a lab do not encrypt; use http, with the port")
	default:
		return bad("unknown scheme; want http, tcp or udp")
	}
	if a, err := netip.ParseAddr(rest); err == nil && a.Is6() { // [] are for ports only
		rest = "[" + rest + "]"
	}
	u, err := url.Parse("any://" + rest)
	if err != nil || u.User != nil || u.Hostname() == "" {
		return bad("want a URL (http://NAME/, udp://NAME:PORT), NAME[:PORT] or ADDRESS[:PORT]")
	}
	t.host, t.path = u.Hostname(), u.RequestURI()
	if text := u.Port(); text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			return bad("want a port from 1 to 65535")
		}
		t.port = uint16(n)
	}
	switch {
	case t.http && t.port == 0:
		t.port = 80
	case u.Path != "" && u.Path != "/", u.RawQuery != "":
		t.http = true
	}
	if given := t.protocol; (t.http && given == decision.UDP) || scheme != "" && scheme != "http" && !strings.EqualFold(given.String(), scheme) {
		return target{}, "protocol", fmt.Errorf("%s: %q is for another protocol", strings.ToLower(given.String()), to)
	}
	return t, "", nil
}

// portOf is the port for an address without one: that of the only service port of the protocol at the address; 80 over
// TCP, if there is none or one of that number.
func portOf(services []*decision.ServicePort, at netip.Addr, p decision.Protocol) (uint16, error) {
	const http = 80
	var ports []string
	var only uint16
	for _, s := range services {
		if s.ClusterIP == at && s.Protocol == p {
			if p == decision.TCP && s.Port == http {
				return http, nil
			}
			ports, only = append(ports, strconv.Itoa(int(s.Port))), s.Port
		}
	}
	switch {
	case len(ports) == 1:
		return only, nil
	case len(ports) > 1:
		return 0, fmt.Errorf("give one of these ports: %s", strings.Join(ports, ", "))
	case p == decision.TCP:
		return http, nil
	}
	return 0, errors.New("give the port, as in udp://NAME:53")
}
