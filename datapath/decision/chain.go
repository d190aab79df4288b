package decision

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
)

// The fixed chains of kube-proxy's nat table (pkg/proxy/iptables/proxier.go).
const (
	ChainServices    = "KUBE-SERVICES"
	ChainNodePorts   = "KUBE-NODEPORTS"
	ChainMarkMasq    = "KUBE-MARK-MASQ"
	ChainPostrouting = "KUBE-POSTROUTING"
)

// chainHash is kube-proxy's portProtoHash and its kin: the first 16 letters of
// the base32 SHA-256 over the concatenated parts. Chain names are limited to 28
// characters in the kernel, hence the truncation.
func chainHash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
	}
	return base32.StdEncoding.EncodeToString(h.Sum(nil))[:16]
}

// ServiceChain is the name of the chain that balances over all endpoints of the
// cluster: KUBE-SVC-XXXXXXXXXXXXXXXX.
func (s *ServicePort) ServiceChain() string {
	return "KUBE-SVC-" + chainHash(s.Name.String(), s.Protocol.Lower())
}

// ExternalChain is the name of the chain that traffic from outside the cluster
// (node ports, external and load balancer IPs) enters first:
// KUBE-EXT-XXXXXXXXXXXXXXXX.
func (s *ServicePort) ExternalChain() string {
	return "KUBE-EXT-" + chainHash(s.Name.String(), s.Protocol.Lower())
}

// EndpointChain is the name of the chain that holds the DNAT rule for one
// endpoint of the service port: KUBE-SEP-XXXXXXXXXXXXXXXX.
func (s *ServicePort) EndpointChain(ep netip.AddrPort) string {
	return "KUBE-SEP-" + chainHash(s.Name.String(), s.Protocol.Lower(), ep.String())
}
