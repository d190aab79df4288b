package observe

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// anyPort stands for a source port that was left out.
const anyPort = 40000

// Packet makes the packet of a question about addresses; package resolve knows names. The error is an [*Error].
func Packet(q flow.Question) (decision.Packet, error) {
	p := decision.Packet{Local: q.Local, InInterface: q.InInterface}
	var err error
	if p.Protocol, err = ProtocolOf(q); err != nil {
		return p, err
	}
	if q.Local && q.InInterface != "" {
		return p, badParameter("inInterface", "a packet that originates on the node has no input interface, but %s is given", q.InInterface)
	}
	p.Destination, err = ParseAddress(q.Destination)
	if err == nil && p.Destination.Port() == 0 {
		err = ErrNoPort
	}
	if err != nil {
		return p, BadEnd("destination", q.Destination, err)
	}
	if p.Source, err = ParseAddress(q.Source); err != nil {
		return p, BadEnd("source", q.Source, err)
	}
	if p.Source.Port() == 0 {
		p.Source = netip.AddrPortFrom(p.Source.Addr(), anyPort)
	}
	if decision.FamilyOf(p.Source.Addr()) != decision.FamilyOf(p.Destination.Addr()) {
		return p, TwoFamilies(q, p.Source.Addr(), p.Destination.Addr())
	}
	return p, nil
}

// ProtocolOf is the protocol of a question. The error is an [*Error].
func ProtocolOf(q flow.Question) (decision.Protocol, error) {
	if q.Protocol == "" {
		return 0, badParameter("protocol", "protocol is missing: tcp, udp or sctp")
	}
	p, err := decision.ParseProtocol(q.Protocol)
	if err != nil {
		return 0, badParameter("protocol", "%v", err)
	}
	return p, nil
}

// ErrNoPort is the error of a destination without a port.
var ErrNoPort = errors.New("a port is missing: write ADDRESS:PORT, [IPV6]:PORT or pod/NAMESPACE/NAME:PORT")

// TwoFamilies is the error of a question whose ends have no address of the same family.
func TwoFamilies(q flow.Question, source, destination netip.Addr) error {
	return badParameter("destination", "source %q is %s and destination %q is %s: a packet has one address family",
		q.Source, decision.FamilyOf(source), q.Destination, decision.FamilyOf(destination))
}

// BadEnd is the error of a question whose source or destination has this value.
func BadEnd(field, value string, err error) error {
	if value == "" {
		return badParameter(field, "%s is missing", field)
	}
	return badParameter(field, "%s %q: %v", field, value, err)
}

// ParseAddress reads ADDRESS or ADDRESS:PORT; the port is 0 if there is none.
func ParseAddress(s string) (netip.AddrPort, error) {
	a, err := netip.ParseAddr(kubeaddr.Unbracket(s))
	port := uint16(0)
	if err != nil {
		i := strings.LastIndexByte(s, ':')
		if i < 0 {
			return netip.AddrPort{}, errors.New("not an address such as 10.96.0.10:53 or [fd00::10]:53")
		}
		if a, err = netip.ParseAddr(kubeaddr.Unbracket(s[:i])); err != nil {
			return netip.AddrPort{}, fmt.Errorf("%q is not an address; write it as in 10.96.0.10:53 or [fd00::10]:53", s[:i])
		}
		if port, err = ParsePort(s[i+1:]); err != nil {
			return netip.AddrPort{}, err
		}
	}
	if a.Zone() != "" {
		return netip.AddrPort{}, errors.New("services never have addresses with a zone (%)")
	}
	return netip.AddrPortFrom(a.Unmap(), port), nil
}

// ParsePort reads the number of a port.
func ParsePort(s string) (uint16, error) {
	port, err := parsePort(s)
	if err != nil {
		return 0, fmt.Errorf("port %q: %w", s, err)
	}
	return port, nil
}
