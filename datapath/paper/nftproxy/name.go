package nftproxy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Table is the name of kube-proxy's tables, one of each family.
const Table = decision.NFTablesTable

// The chains, maps and sets that do not depend on services, as kube-proxy 1.29 to 1.37 has them (proxier.go).
const (
	Services            = "services"
	ServiceIPs          = "service-ips"
	ServiceNodePorts    = "service-nodeports"
	NodePortIPs         = "nodeport-ips"
	ClusterIPs          = "cluster-ips"
	ClusterIPsCheck     = "cluster-ips-check"
	ServiceEndpoints    = "service-endpoints-check"
	NodePortEndpoints   = "nodeport-endpoints-check"
	NoEndpointServices  = "no-endpoint-services"
	NoEndpointNodePorts = "no-endpoint-nodeports"
	RejectChain         = "reject-chain"
	FirewallIPs         = "firewall-ips"
	FirewallCheck       = "firewall-check"
	Masquerading        = "masquerading"
	HairpinConnections  = "hairpin-connections" // since 1.36

	MarkMasq = "mark-for-masquerade" // until 1.35

	EndpointsCheck     = "endpoints-check"      // 1.29
	Forward            = "forward"              // 1.29
	FirewallSet        = "firewall"             // 1.29
	FirewallAllow      = "firewall-allow"       // 1.29
	FirewallAllowCheck = "firewall-allow-check" // 1.29
)

// Kind is what a chain or set of a service port is for: the beginning of its name.
type Kind string

// The kinds.
const (
	ServiceChain  Kind = "service-"  // balances over the endpoints of the cluster
	LocalChain    Kind = "local-"    // balances over the node's own
	ExternalChain Kind = "external-" // for flows from outside
	FirewallChain Kind = "firewall-" // drops sources outside of the source ranges
	EndpointChain Kind = "endpoint-" // one endpoint
	AffinitySet   Kind = "affinity-" // the clients of one endpoint
)

// Name is the name of a chain or set that a service port, or one of its endpoints, has.
type Name struct {
	Kind Kind
	// Base is the name without its kind: "ULMVA6XW-ns1/svc1/tcp/p80", and for an endpoint
	// "5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80".
	Base     string
	Service  decision.ServicePortName
	Protocol decision.Protocol
	Endpoint netip.AddrPort // valid iff Kind is EndpointChain or AffinitySet
}

func (n Name) String() string { return string(n.Kind) + n.Base }

// Base is the name of all chains of a service port without their kind (servicePortChainNameBase).
func Base(name decision.ServicePortName, p decision.Protocol) string {
	return decision.NFTablesName(identity(name, p))
}

// EndpointBase is the name of an endpoint's chain and set without their kind (servicePortEndpointChainNameBase).
func EndpointBase(name decision.ServicePortName, p decision.Protocol, ep netip.AddrPort) string {
	return decision.NFTablesName(identity(name, p) + "__" + decision.NFTablesEndpoint(ep))
}

func identity(name decision.ServicePortName, p decision.Protocol) string {
	return fmt.Sprintf("%s/%s/%s/%s", name.Namespace, name.Name, p.Lower(), name.Port)
}

// ParseName reads the name of a chain or set of a service port or an endpoint. The hash is not checked: see [Name.Want].
func ParseName(text string) (Name, bool) {
	for _, kind := range []Kind{ServiceChain, LocalChain, ExternalChain, FirewallChain, EndpointChain, AffinitySet} {
		base, ok := strings.CutPrefix(text, string(kind))
		// kube-proxy tells its chains of services by the slash, too (isServiceChainName).
		if !ok || !strings.Contains(base, "/") {
			continue
		}
		n := Name{Kind: kind, Base: base}
		return n, n.parse()
	}
	return Name{}, false
}

// parse reads the parts of the base.
func (n *Name) parse() bool {
	_, rest, ok := strings.Cut(n.Base, "-")
	if !ok {
		return false
	}
	ofEndpoint := n.Kind == EndpointChain || n.Kind == AffinitySet
	if ofEndpoint {
		at := strings.LastIndex(rest, "__")
		if at < 0 {
			return false
		}
		if n.Endpoint, ok = parseEndpoint(rest[at+len("__"):]); !ok {
			return false
		}
		rest = rest[:at]
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 4 || parts[0] == "" || parts[1] == "" {
		return false
	}
	p, err := decision.ParseProtocol(parts[2])
	n.Service, n.Protocol = decision.ServicePortName{Namespace: parts[0], Name: parts[1], Port: parts[3]}, p
	return err == nil
}

// parseEndpoint reads "10.180.0.1/80", or "fd00..1/80", in which dots stand for colons.
func parseEndpoint(text string) (netip.AddrPort, bool) {
	address, port, _ := strings.Cut(text, "/")
	a, err := netip.ParseAddr(address)
	if err != nil {
		a, err = netip.ParseAddr(strings.ReplaceAll(address, ".", ":"))
	}
	number, portErr := strconv.ParseUint(port, 10, 16)
	return netip.AddrPortFrom(a, uint16(number)), err == nil && portErr == nil
}

// Want is the name that kube-proxy gives a chain or set of this service port or endpoint: another one has a wrong hash.
func (n Name) Want() string {
	if n.Endpoint.IsValid() {
		return string(n.Kind) + EndpointBase(n.Service, n.Protocol, n.Endpoint)
	}
	return string(n.Kind) + Base(n.Service, n.Protocol)
}
