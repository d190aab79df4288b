package proxyconfig

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// NodeFlags are the flags that describe a node, with kube-proxy's names and defaults where it
// has them: of the daemon, and of commands that decide as a node would.
type NodeFlags struct {
	set               *pflag.FlagSet
	ips               []string
	zone              string
	clusterCIDRs      []string
	mode              string
	bridge            string
	interfacePrefix   string
	nodePortAddresses []string
	localhost         bool
	featureGates      []string
	masqueradeAll     bool
	masqueradeHairpin bool
	masqueradeBit     uint
}

// Add adds the flags to a set.
func (f *NodeFlags) Add(flags *pflag.FlagSet) {
	f.set = flags
	flags.StringSliceVar(&f.ips, "node-ip", nil, "addresses of the node, one per family (default: from its Node object)")
	flags.StringVar(&f.zone, "zone", "", "zone of the node (default: from its Node object)")
	flags.StringSliceVar(&f.clusterCIDRs, "cluster-cidr", nil, "pod CIDRs of the cluster, one per family: ClusterIP traffic from other sources is masqueraded")
	flags.StringVar(&f.mode, "detect-local-mode", string(servicetable.ClusterCIDR), "how traffic from pods is detected: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	flags.StringVar(&f.bridge, "pod-bridge-interface", "", "with BridgeInterface: bridge that pods' packets arrive on")
	flags.StringVar(&f.interfacePrefix, "pod-interface-name-prefix", "", "with InterfaceNamePrefix: name prefix of the pods' interfaces")
	flags.StringSliceVar(&f.nodePortAddresses, "nodeport-addresses", nil, "node addresses that serve node ports: prefixes, \"primary\" (the addresses of --node-ip), \"localhost\" or \"all\", in any combination (default: all)")
	flags.BoolVar(&f.localhost, "localhost-nodeports", true, "serve node ports on 127.0.0.1, too")
	flags.StringSliceVar(&f.featureGates, "feature-gates", nil, GateExternalIPs+"=false ignores the externalIPs of Services; kube-proxy's other feature gates do not exist")
	flags.BoolVar(&f.masqueradeAll, "masquerade-all", false, "masquerade all ClusterIP traffic")
	flags.BoolVar(&f.masqueradeHairpin, "masquerade-hairpin", true, "masquerade traffic from an endpoint to itself; false is for teaching: it shows the failure")
	flags.UintVar(&f.masqueradeBit, "masquerade-bit", 14, "bit of the packet mark that requests masquerading")
}

// Given reports whether a flag was given.
func (f *NodeFlags) Given(name string) bool { return f.set.Changed(name) }

// Apply writes the flags that were given into a configuration. Errors name flags; nothing is
// left for servicetable.NodeConfig.Validate to find.
func (f *NodeFlags) Apply(c *servicetable.NodeConfig) error {
	given := f.set.Changed
	if given("masquerade-bit") && f.masqueradeBit > 31 {
		return fmt.Errorf("--masquerade-bit %d: packet marks have bits 0 to 31", f.masqueradeBit)
	}
	for name, set := range map[string]func(){
		"masquerade-bit":            func() { c.MasqueradeMark = 1 << f.masqueradeBit },
		"zone":                      func() { c.Zone = f.zone },
		"localhost-nodeports":       func() { c.LocalhostNodePorts = f.localhost },
		"masquerade-all":            func() { c.MasqueradeAll = f.masqueradeAll },
		"masquerade-hairpin":        func() { c.NoHairpinMasquerade = !f.masqueradeHairpin },
		"detect-local-mode":         func() { c.Mode = servicetable.DetectLocalMode(f.mode) },
		"pod-bridge-interface":      func() { c.Bridge = f.bridge },
		"pod-interface-name-prefix": func() { c.InterfacePrefix = f.interfacePrefix },
	} {
		if given(name) {
			set()
		}
	}
	if given("node-ip") {
		c.IPs = nil
		for _, s := range f.ips {
			a, err := kubeaddr.Parse(s)
			if err != nil {
				return fmt.Errorf("--node-ip: %w", err)
			}
			family := decision.FamilyOf(a)
			if _, twice := decision.AddressOf(c.IPs, family); twice {
				return fmt.Errorf("--node-ip: two %s addresses: give one per family", family)
			}
			c.IPs = append(c.IPs, a)
		}
	}
	if given("cluster-cidr") {
		var err error
		if c.ClusterCIDRs, err = ParsePrefixes("--cluster-cidr", f.clusterCIDRs); err != nil {
			return err
		}
	}
	return errors.Join(f.applyGates(c), checkMode(c), f.applyNodePorts(c))
}

func (f *NodeFlags) applyGates(c *servicetable.NodeConfig) error {
	for _, s := range f.featureGates {
		name, value, _ := strings.Cut(s, "=")
		on, err := strconv.ParseBool(value)
		if name != GateExternalIPs || err != nil {
			return fmt.Errorf("--feature-gates %q: want %s=false or %[2]s=true", s, GateExternalIPs)
		}
		c.IgnoreExternalIPs = !on
	}
	return nil
}

func checkMode(c *servicetable.NodeConfig) error {
	switch {
	case c.Mode == servicetable.BridgeInterface && c.Bridge == "":
		return fmt.Errorf("--detect-local-mode %s needs --pod-bridge-interface", c.Mode)
	case c.Mode == servicetable.InterfaceNamePrefix && c.InterfacePrefix == "":
		return fmt.Errorf("--detect-local-mode %s needs --pod-interface-name-prefix", c.Mode)
	case c.Mode != "" && !c.Mode.Known():
		return fmt.Errorf("--detect-local-mode %q: want %s", c.Mode, servicetable.DetectLocalModes)
	}
	return nil
}

func (f *NodeFlags) applyNodePorts(c *servicetable.NodeConfig) error {
	if !f.set.Changed("nodeport-addresses") {
		return nil
	}
	c.PrimaryNodePorts, c.NodePortAddresses = false, nil
	for _, s := range f.nodePortAddresses {
		primary, prefixes, ok := NodePortAddresses(s)
		if !ok {
			return fmt.Errorf("--nodeport-addresses: %q is neither a prefix such as 172.20.0.0/16 nor primary, localhost or all", s)
		}
		c.PrimaryNodePorts = c.PrimaryNodePorts || primary
		c.NodePortAddresses = append(c.NodePortAddresses, prefixes...)
	}
	return nil
}

// ParsePrefixes reads the prefixes of a flag: at most one for each family.
func ParsePrefixes(flag string, values []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, v := range values {
		p, err := kubeaddr.ParsePrefix(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not a prefix such as 10.244.0.0/16", flag, v)
		}
		family := decision.FamilyOf(p.Addr())
		if _, twice := decision.PrefixOf(prefixes, family); twice {
			return nil, fmt.Errorf("%s: two %s prefixes: give one per family", flag, family)
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, nil
}
