package servicetable

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// DetectLocalMode is how sources are detected as pods (kube-proxy's --detect-local-mode).
type DetectLocalMode string

// The modes.
const (
	ClusterCIDR         DetectLocalMode = "ClusterCIDR"         // by the prefixes of all pods
	NodeCIDR            DetectLocalMode = "NodeCIDR"            // by the prefixes of the node's pods, from its Node object
	BridgeInterface     DetectLocalMode = "BridgeInterface"     // by the interface their packets come in by
	InterfaceNamePrefix DetectLocalMode = "InterfaceNamePrefix" // by what that interface's name begins with
)

// Known reports whether it is one of [DetectLocalModes].
func (m DetectLocalMode) Known() bool {
	return slices.Contains([]DetectLocalMode{ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix}, m)
}

// DetectLocalModes lists the modes for messages.
const DetectLocalModes = "ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix"

// NodeConfig is the configuration of the node that a table is built for.
// The zero value is valid: a node without a name, of a cluster whose pods cannot
// be detected. Unset fields are taken from the Node object of that
// name, where there is one.
type NodeConfig struct {
	// Name is the node's Kubernetes name; empty: not known, so that no endpoint
	// is local.
	Name string
	// Zone is the node's zone; empty: the zone in the Node object's label.
	Zone string
	// IPs are the node's own addresses, at most one of each family; of a family without
	// one it is the Node object's internal one, or else its external one.
	IPs []netip.Addr

	// Mode selects one of the next three; empty means ClusterCIDR.
	Mode            DetectLocalMode
	ClusterCIDRs    []netip.Prefix // at most one of each family; none: no detector for that family
	Bridge          string
	InterfacePrefix string

	// NodePortAddresses restrict node ports to the local addresses within these
	// prefixes. A family without one is not restricted.
	NodePortAddresses []netip.Prefix
	// PrimaryNodePorts adds IPs to NodePortAddresses ("--nodeport-addresses primary").
	// Since Kubernetes 1.37 the two may be combined.
	PrimaryNodePorts bool
	// LocalhostNodePorts also opens node ports on 127.0.0.1, unless NodePortAddresses or
	// PrimaryNodePorts leave it out.
	LocalhostNodePorts bool
	// IgnoreExternalIPs leaves out the spec.externalIPs of Services, as kube-proxy does without the feature gate
	// AllowServiceExternalIPs (since Kubernetes 1.36; see ExternalIPs in pkg/proxy/serviceport.go).
	IgnoreExternalIPs bool
	// MasqueradeAll masquerades every ClusterIP flow.
	MasqueradeAll bool
	// NoHairpinMasquerade breaks the flows of endpoints to themselves, for teaching: see
	// [decision.Node].
	NoHairpinMasquerade bool
	// MasqueradeMark is the packet mark's bit; 0: kube-proxy's default.
	MasqueradeMark uint32

	// KernelDecides is the default for Services without the annotation nfqproxy.io/decide: the kernel's
	// copy of the table decides their flows.
	KernelDecides bool
	// Balance is the algorithm, as [balance.Registry.Canonical] returns it, of Services without the
	// annotation nfqproxy.io/balance; empty: random.
	Balance string
	// Algorithms are the ones that Services may name; nil: the built-in ones.
	Algorithms *balance.Registry
}

// Validate returns all errors in the configuration, joined.
func (c *NodeConfig) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	check := func(field string, prefixes []netip.Prefix) {
		for i, p := range prefixes {
			switch {
			case !p.IsValid():
				fail("%s[%d]: not a prefix", field, i)
			case p.Addr().Is4In6():
				// It would count as IPv4 but contain no IPv4 address.
				fail("%s[%d]: %s: an IPv4-mapped prefix: write it in IPv4 form", field, i, p)
			}
		}
	}
	check("clusterCIDRs", c.ClusterCIDRs)
	check("nodePortAddresses", c.NodePortAddresses)
	for i, a := range c.IPs {
		switch {
		case !a.IsValid():
			fail("IPs[%d]: not an address", i)
		case a.Is4In6():
			fail("IPs[%d]: %s: an IPv4-mapped address: write it in IPv4 form", i, a)
		}
	}
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		cidrs, ips := 0, 0
		for _, p := range c.ClusterCIDRs {
			if p.IsValid() && decision.FamilyOf(p.Addr()) == f {
				cidrs++
			}
		}
		for _, a := range c.IPs {
			if a.IsValid() && decision.FamilyOf(a) == f {
				ips++
			}
		}
		if cidrs > 1 {
			fail("clusterCIDRs: %d prefixes of family %s: want at most one of each family", cidrs, f)
		}
		if ips > 1 {
			fail("IPs: %d addresses of family %s: want at most one of each family", ips, f)
		}
	}
	switch {
	case c.Mode == BridgeInterface && c.Bridge == "":
		fail("mode %s needs the name of the bridge", c.Mode)
	case c.Mode == InterfaceNamePrefix && c.InterfacePrefix == "":
		fail("mode %s needs the prefix", c.Mode)
	case c.Mode != "" && !c.Mode.Known():
		fail("mode %q: want %s", c.Mode, DetectLocalModes)
	}
	return errors.Join(errs...)
}

// node joins the configuration with the Node object, nil if there is none, and with
// the addresses the node has at present.
func (c *NodeConfig) node(object *corev1.Node, addresses []netip.Addr) decision.Node {
	n := decision.Node{
		Name:                c.Name,
		Zone:                c.zone(object),
		IPs:                 c.ips(object),
		Addresses:           localAddresses(addresses),
		NodePortAddresses:   c.NodePortAddresses,
		MasqueradeAll:       c.MasqueradeAll,
		NoHairpinMasquerade: c.NoHairpinMasquerade,
		MasqueradeMark:      c.MasqueradeMark,
	}
	if c.PrimaryNodePorts {
		n.NodePortAddresses = slices.Clone(c.NodePortAddresses)
		for _, ip := range n.IPs {
			if !ip.IsLoopback() { // which kube-proxy takes to mean: not known
				n.NodePortAddresses = append(n.NodePortAddresses, netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
	}
	n.LocalhostNodePorts = c.LocalhostNodePorts && containLoopback(n.NodePortAddresses)
	switch c.Mode {
	case "", ClusterCIDR:
		for _, p := range c.ClusterCIDRs {
			n.Detector.CIDRs = append(n.Detector.CIDRs, p.Masked())
		}
	case NodeCIDR:
		if object != nil {
			n.Detector.CIDRs = PodCIDRs(object)
		}
	case BridgeInterface:
		n.Detector.Bridge = c.Bridge
	case InterfaceNamePrefix:
		n.Detector.InterfacePrefix = c.InterfacePrefix
	}
	return n
}

// containLoopback reports whether node port addresses contain IPv4 loopback ones: a prefix of
// some of these, or one with 127.0.0.0 in it, or no IPv4 prefix at all (kube-proxy:
// NodePortAddresses.ContainsIPv4Loopback).
func containLoopback(prefixes []netip.Prefix) bool {
	within := func(p netip.Prefix) bool { return p.Addr().Is4() && p.Masked().Addr().IsLoopback() }
	return decision.ServesNodePorts(netip.AddrFrom4([4]byte{127, 0, 0, 0}), prefixes) || slices.ContainsFunc(prefixes, within)
}

// zone is the node's zone, as far as it is known.
func (c *NodeConfig) zone(object *corev1.Node) string {
	if c.Zone != "" || object == nil {
		return c.Zone
	}
	return object.Labels[corev1.LabelTopologyZone]
}

// ips are the node's own addresses (kube-proxy: GetNodeHostIPs, and bindAddress for
// the family that has it).
func (c *NodeConfig) ips(object *corev1.Node) []netip.Addr {
	if object == nil {
		return c.IPs
	}
	ips := slices.Clone(c.IPs)
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range object.Status.Addresses {
			ip, err := kubeaddr.Parse(a.Address)
			if err != nil || a.Type != kind {
				continue
			}
			if _, ok := decision.AddressOf(ips, decision.FamilyOf(ip)); !ok {
				ips = append(ips, ip)
			}
		}
	}
	return ips
}

// PodCIDRs are the prefixes of the pods of a Node.
func PodCIDRs(object *corev1.Node) []netip.Prefix {
	texts := object.Spec.PodCIDRs
	if len(texts) == 0 {
		texts = []string{object.Spec.PodCIDR}
	}
	var prefixes []netip.Prefix
	for _, s := range texts {
		if p, err := kubeaddr.ParsePrefix(s); err == nil {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes
}

// localAddresses returns the addresses in the form the table has them: plain,
// sorted, each once, and without loopback ones, on which there are no node ports.
func localAddresses(addresses []netip.Addr) []netip.Addr {
	local := make([]netip.Addr, 0, len(addresses))
	for _, a := range addresses {
		a = a.Unmap().WithZone("")
		if a.IsValid() && !a.IsLoopback() {
			local = append(local, a)
		}
	}
	slices.SortFunc(local, netip.Addr.Compare)
	return slices.Compact(local)
}
