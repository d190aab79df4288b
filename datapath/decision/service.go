package decision

import (
	"fmt"
	"net/netip"
	"strings"
)

// Protocol is an IANA protocol number, as in the IP header.
type Protocol uint8

// The protocols a Service can have (core/v1 Protocol).
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String gives the name Kubernetes uses: TCP, UDP or SCTP.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// Lower gives the name iptables uses: tcp, udp or sctp.
func (p Protocol) Lower() string { return strings.ToLower(p.String()) }

// ParseProtocol reads a protocol name in either case.
func ParseProtocol(s string) (Protocol, error) {
	for _, p := range []Protocol{TCP, UDP, SCTP} {
		if strings.EqualFold(s, p.String()) {
			return p, nil
		}
	}
	return 0, fmt.Errorf("protocol %q: want TCP, UDP or SCTP", s)
}

// Family is the address family of a service port. kube-proxy keeps one set of
// tables per family; so does [Table].
type Family uint8

// The two address families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String gives IPv4 or IPv6.
func (f Family) String() string { return fmt.Sprintf("IPv%d", uint8(f)) }

// FamilyOf gives the family of an address. IPv4-mapped IPv6 addresses count as IPv4.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// ServicePortName names one port of one Service, as kube-proxy's type of the
// same name does.
type ServicePortName struct {
	Namespace string
	Name      string
	Port      string // the port's name; empty where a Service has one unnamed port
}

// String gives "namespace/name:port", or "namespace/name" for an unnamed port.
// Chain names are hashes over this string, so it may not change.
func (n ServicePortName) String() string {
	if n.Port == "" {
		return n.Namespace + "/" + n.Name
	}
	return n.Namespace + "/" + n.Name + ":" + n.Port
}

// ServicePort is one port of one Service in one address family, with the
// endpoints that back it. It is immutable once it is in a [Table].
type ServicePort struct {
	Name     ServicePortName
	Protocol Protocol
	Family   Family

	ClusterIP netip.Addr // of the family Family
	Port      uint16     // on the ClusterIP
	NodePort  uint16     // 0: none

	// Endpoints are those that new flows may go to, sorted by address and port,
	// without duplicates.
	Endpoints []Endpoint
	// Excluded are the other endpoints of the service port, with the reason why
	// no flow goes there; sorted in the same way.
	Excluded []ExcludedEndpoint
}

// Endpoint is one address and port behind a service port.
type Endpoint struct {
	AddrPort netip.AddrPort
	NodeName string // empty: not known, which counts as remote
	Pod      string // "namespace/name" of the endpoint's target, where the slice names one
}

// ExcludedEndpoint is an endpoint that gets no new flows.
type ExcludedEndpoint struct {
	Endpoint
	Reason ExclusionReason
}

// ExclusionReason says why an endpoint gets no new flows.
type ExclusionReason uint8

// The reasons for excluding an endpoint.
const (
	NotReady    ExclusionReason = iota + 1 // conditions.ready is false
	Terminating                            // shutting down, and there are ready endpoints
)

// String gives the reason as the flow record writes it.
func (r ExclusionReason) String() string {
	switch r {
	case NotReady:
		return "not-ready"
	case Terminating:
		return "terminating"
	}
	return "unknown"
}
