package decision

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strings"
)

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
