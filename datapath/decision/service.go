package decision

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"math"
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

// String returns the name in Kubernetes: TCP, UDP or SCTP.
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

// Lower returns the name in iptables: tcp, udp or sctp.
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

// MarshalText writes the name; nothing for 0.
func (p Protocol) MarshalText() ([]byte, error) {
	if p == 0 {
		return nil, nil
	}
	return []byte(p.String()), nil
}

// UnmarshalText reads what [Protocol.MarshalText] writes, as [ParseProtocol] does.
func (p *Protocol) UnmarshalText(text []byte) (err error) {
	if *p = 0; len(text) > 0 {
		*p, err = ParseProtocol(string(text))
	}
	return err
}

// Family is the address family of a service port. kube-proxy keeps one set of
// tables per family; so does [Table].
type Family uint8

// The two address families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String returns IPv4 or IPv6.
func (f Family) String() string { return fmt.Sprintf("IPv%d", uint8(f)) }

// FamilyOf returns the family of an address. IPv4-mapped IPv6 addresses count as IPv4.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// AddressOf finds the first address of a family.
func AddressOf(addresses []netip.Addr, f Family) (netip.Addr, bool) {
	for _, a := range addresses {
		if FamilyOf(a) == f {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// PrefixOf finds the first prefix of a family.
func PrefixOf(prefixes []netip.Prefix, f Family) (netip.Prefix, bool) {
	for _, p := range prefixes {
		if FamilyOf(p.Addr()) == f {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// ServicePortName names one port of one Service, as kube-proxy's type of the
// same name does.
type ServicePortName struct {
	Namespace string
	Name      string
	Port      string // the port's name; empty if a Service has one unnamed port
}

// String returns "namespace/name:port", or "namespace/name" for an unnamed port. Chain names are
// hashes of this string, so it must not change.
func (n ServicePortName) String() string {
	if n.Port == "" {
		return n.Namespace + "/" + n.Name
	}
	return n.Namespace + "/" + n.Name + ":" + n.Port
}

// ServiceName names a Service.
type ServiceName struct {
	Namespace string
	Name      string
}

// Service returns the name of the port's Service.
func (n ServicePortName) Service() ServiceName { return ServiceName{n.Namespace, n.Name} }

// String returns "namespace/name".
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace and name.
func (n ServiceName) Compare(m ServiceName) int {
	return cmp.Or(cmp.Compare(n.Namespace, m.Namespace), cmp.Compare(n.Name, m.Name))
}

// Policy is a traffic policy: which endpoints a flow may go to.
type Policy uint8

// The traffic policies (core/v1 ServiceInternalTrafficPolicy, ServiceExternalTrafficPolicy).
const (
	Cluster Policy = iota // those of the whole cluster
	Local                 // those on the node
	policies
)

// String returns Cluster or Local.
func (p Policy) String() string {
	if p == Local {
		return "Local"
	}
	return "Cluster"
}

// ServicePort is one port of one Service in one address family, with its endpoints, as one node
// sees them. It is immutable once it is in a [Table].
type ServicePort struct {
	// What every decision reads comes first, so that it shares the processor's cache lines.

	// Endpoints are all endpoints, each address and port once, in kube-proxy's order: by their
	// text.
	Endpoints []Endpoint
	// Usable lists, for each policy, the positions in Endpoints of those that new flows may go to,
	// in order. A list is empty if no traffic uses the policy.
	Usable [policies][]uint32
	// Balance is the algorithm that selects endpoints, as [balance.Parse] spells it; empty: each is
	// drawn with the same probability, as kube-proxy does.
	//
	// [balance.Parse]: https://pkg.go.dev/github.com/nfqproxy/nfqproxy/datapath/balance#Parse
	Balance string
	// AffinitySeconds is how long a client stays with its endpoint after its last new flow
	// (sessionAffinity: ClientIP); 0: no affinity.
	AffinitySeconds uint32
	// HasEndpoints: the cluster has an endpoint that could take flows. Without one, flows are refused instead of
	// dropped.
	HasEndpoints   bool
	InternalPolicy Policy // of flows to ClusterIP
	ExternalPolicy Policy // of flows to all others
	Family         Family // of all addresses here

	Protocol  Protocol
	Port      uint16 // on ClusterIP, ExternalIPs and LoadBalancerIPs
	NodePort  uint16 // 0: none
	ClusterIP netip.Addr
	Name      ServicePortName

	ExternalIPs []netip.Addr
	// LoadBalancerIPs are the ingress addresses of mode VIP: their packets arrive with the address
	// as the destination.
	LoadBalancerIPs []netip.Addr
	// SourceRanges are the sources that may use LoadBalancerIPs; empty: all.
	SourceRanges []netip.Prefix

	// QueueOneIn is N if one in N new flows is queued for a decision; the kernel's copy of the table
	// decides the others. 0: all are queued. NotQueued: none.
	QueueOneIn uint32
	// HealthCheckNodePort is the port at which load balancers check whether this node has
	// endpoints; 0: none.
	HealthCheckNodePort uint16
}

// NotQueued is the value of QueueOneIn with which no flow is queued.
const NotQueued = math.MaxUint32

// MaxQueueOneIn is the largest other value of QueueOneIn.
const MaxQueueOneIn = 1_000_000

// positions are what [Positions] returns: longer lists are rare.
var positions = func() (list [1024]uint32) {
	for i := range list {
		list[i] = uint32(i)
	}
	return list
}()

// Positions returns the positions 0 to n-1, which [ServicePort.Usable] has if all endpoints get new flows. Lists share their
// memory, which stays in the processor's cache: they must not be changed.
func Positions(n int) []uint32 {
	if n <= len(positions) {
		return positions[:n:n]
	}
	list := make([]uint32, n)
	for i := range list {
		list[i] = uint32(i)
	}
	return list
}

// UsableEndpoints returns the endpoints that new flows under the policy may go to.
func (s *ServicePort) UsableEndpoints(p Policy) []Endpoint {
	usable := make([]Endpoint, len(s.Usable[p]))
	for k, i := range s.Usable[p] {
		usable[k] = s.Endpoints[i]
	}
	return usable
}

// UsesCluster reports whether the endpoints of policy Cluster are needed. External traffic needs
// them even under policy Local, to which pods and the node itself are not subject (kube-proxy:
// UsesClusterEndpoints).
func (s *ServicePort) UsesCluster() bool {
	return s.InternalPolicy == Cluster || s.External()
}

// UsesLocal reports whether the endpoints of policy Local are needed (kube-proxy:
// UsesLocalEndpoints).
func (s *ServicePort) UsesLocal() bool {
	return s.InternalPolicy == Local || s.ExternalPolicy == Local && s.External()
}

// External reports whether the service port can be reached other than by its ClusterIP
// (kube-proxy: ExternallyAccessible).
func (s *ServicePort) External() bool {
	return s.NodePort != 0 || len(s.ExternalIPs) > 0 || len(s.LoadBalancerIPs) > 0
}

// Restricted reports whether flows to LoadBalancerIPs pass a firewall chain.
func (s *ServicePort) Restricted() bool {
	return s.HasEndpoints && len(s.LoadBalancerIPs) > 0 && len(s.SourceRanges) > 0
}

// Endpoint is one address and port of a service port.
type Endpoint struct {
	AddrPort netip.AddrPort
	NodeName string // empty: unknown, which counts as remote
	Pod      string // "namespace/name" of the endpoint's target, where the slice names one
	Local    bool   // on the table's node
	// Ready and Serving are the conditions of these names. Their effect on new flows is in
	// Exclusions.
	Ready, Serving bool
	// Weight is the endpoint's share of new flows relative to others, for algorithms with
	// weights: at most 65535, as in IPVS; 0: no new flows.
	Weight uint16
	// Exclusions is, for each policy, the reason why the endpoint gets no new flows; 0: it gets them.
	Exclusions [policies]Exclusion
}

// Exclusion is the reason why an endpoint gets no new flows.
type Exclusion uint8

// The reasons for excluding an endpoint.
const (
	NotReady    Exclusion = iota + 1 // conditions.ready is false
	NotServing                       // terminating, not serving
	Terminating                      // terminating; used only if no endpoint is ready
	OtherZone                        // hints assign it to other zones
	OtherNode                        // hints assign it to other nodes
	NotLocal                         // policy Local, and it is on another node
	OtherFamily                      // of the other address family
	Unused                           // no traffic of this service port uses the policy
	NotBound                         // affinity binds the client to another endpoint
)

// String returns the reason as in flow records.
func (e Exclusion) String() string { return nameOf(exclusionNames[:], e, "unknown") }

var exclusionNames = [...]string{
	0:           "used",
	NotReady:    "not-ready",
	NotServing:  "not-serving",
	Terminating: "terminating",
	OtherZone:   "other-zone",
	OtherNode:   "other-node",
	NotLocal:    "not-local",
	OtherFamily: "other-family",
	Unused:      "unused",
	NotBound:    "affinity",
}

// ExternalRefusal is the reason why the filter table refuses external traffic to the service port,
// at node ports on every local address; 0: it does not.
func (s *ServicePort) ExternalRefusal() Reason {
	switch {
	case !s.HasEndpoints:
		return NoEndpoints
	case s.ExternalPolicy == Local && len(s.Usable[Local]) == 0:
		return NoLocalEndpoints
	}
	return 0
}

// chain is the name of a chain of the service port: kube-proxy's portProtoHash and its kin, the first 16 letters of
// the base32 SHA-256 over the concatenated parts. Chain names are limited to 28 characters in the kernel, hence the
// truncation.
func (s *ServicePort) chain(prefix, endpoint string) string {
	sum := sha256.Sum256([]byte(s.Name.String() + s.Protocol.Lower() + endpoint))
	return prefix + base32.StdEncoding.EncodeToString(sum[:])[:16]
}

// ServiceChain is the name of the chain that balances over all endpoints of the
// cluster: KUBE-SVC-XXXXXXXXXXXXXXXX.
func (s *ServicePort) ServiceChain() string { return s.chain("KUBE-SVC-", "") }

// PolicyChain is ServiceChain or, under policy Local, the chain that balances over the node's own endpoints:
// KUBE-SVL-XXXXXXXXXXXXXXXX.
func (s *ServicePort) PolicyChain(p Policy) string {
	if p == Local {
		return s.chain("KUBE-SVL-", "")
	}
	return s.ServiceChain()
}

// FirewallChain is the name of the chain that lets the allowed sources through to
// load balancer IPs: KUBE-FW-XXXXXXXXXXXXXXXX.
func (s *ServicePort) FirewallChain() string { return s.chain("KUBE-FW-", "") }

// ExternalChain is the name of the chain that traffic from outside the cluster
// (node ports, external and load balancer IPs) enters first:
// KUBE-EXT-XXXXXXXXXXXXXXXX.
func (s *ServicePort) ExternalChain() string { return s.chain("KUBE-EXT-", "") }

// EndpointChain is the name of the chain that holds the DNAT rule for one
// endpoint of the service port: KUBE-SEP-XXXXXXXXXXXXXXXX.
func (s *ServicePort) EndpointChain(ep netip.AddrPort) string {
	return s.chain("KUBE-SEP-", ep.String())
}

// NFTablesTable is the name of kube-proxy's tables in mode nftables, one of each family.
const NFTablesTable = "kube-proxy"

// NFTablesChain is the name of the chain of mode nftables that balances over the endpoints of a policy:
// service-ULMVA6XW-ns1/svc1/tcp/p80.
func (s *ServicePort) NFTablesChain(p Policy) string {
	if p == Local {
		return "local-" + s.nftablesBase()
	}
	return "service-" + s.nftablesBase()
}

// NFTablesExternalChain is the name of the chain of mode nftables for flows from outside:
// external-ULMVA6XW-ns1/svc1/tcp/p80.
func (s *ServicePort) NFTablesExternalChain() string { return "external-" + s.nftablesBase() }

// nftablesBase is the common part of the names of a service port's chains in mode nftables (servicePortChainNameBase).
func (s *ServicePort) nftablesBase() string {
	return NFTablesName(fmt.Sprintf("%s/%s/%s/%s", s.Name.Namespace, s.Name.Name, s.Protocol.Lower(), s.Name.Port))
}

// NFTablesEndpoint is the end of an endpoint's names in mode nftables: 10.180.0.1/80. Names cannot have colons.
func NFTablesEndpoint(ep netip.AddrPort) string {
	return fmt.Sprintf("%s/%d", strings.ReplaceAll(ep.Addr().String(), ":", "."), ep.Port())
}

// NFTablesName puts a hash in front of a name of mode nftables, and cuts it to the length of names (hashAndTruncate).
func NFTablesName(name string) string {
	const hashLength, longest, ellipsis = 8, 256 - 16, "..." // chainNameBaseLengthMax
	sum := sha256.Sum256([]byte(name))
	name = base32.StdEncoding.EncodeToString(sum[:])[:hashLength] + "-" + name
	if len(name) > longest {
		name = name[:longest-len(ellipsis)] + ellipsis
	}
	return name
}
