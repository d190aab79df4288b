package control

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// NodeConfig is what the configuration says about the node a table is made for.
// The zero value is valid: a node without a name, of a cluster whose pods cannot
// be told from others.
type NodeConfig struct {
	// Name is the node's Kubernetes name; empty: not known, so that no endpoint
	// is local.
	Name string
	// ClusterCIDRs are the prefixes of all pods. A family without one has no
	// masquerading of ClusterIP flows from outside the cluster.
	ClusterCIDRs []netip.Prefix
	// NodePortAddresses restrict node ports to the local addresses within these
	// prefixes. A family without one is not restricted.
	NodePortAddresses []netip.Prefix
	// MasqueradeAll masquerades every ClusterIP flow.
	MasqueradeAll bool
}

// Validate says what is wrong with the configuration: all of it, joined.
func (c *NodeConfig) Validate() error {
	var errs []error
	check := func(field string, prefixes []netip.Prefix) {
		for i, p := range prefixes {
			switch {
			case !p.IsValid():
				errs = append(errs, fmt.Errorf("%s[%d]: not a prefix", field, i))
			case p.Addr().Is4In6():
				// It would count as IPv4 but contain no IPv4 address.
				errs = append(errs, fmt.Errorf("%s[%d]: %s: write an IPv4 prefix in the IPv4 form", field, i, p))
			}
		}
	}
	check("clusterCIDRs", c.ClusterCIDRs)
	check("nodePortAddresses", c.NodePortAddresses)
	return errors.Join(errs...)
}

// node joins the configuration with the addresses of the node at present.
func (c *NodeConfig) node(addresses []netip.Addr) decision.Node {
	return decision.Node{
		Name:              c.Name,
		Addresses:         localAddresses(addresses),
		NodePortAddresses: c.NodePortAddresses,
		ClusterCIDRs:      c.ClusterCIDRs,
		MasqueradeAll:     c.MasqueradeAll,
	}
}

// localAddresses gives the addresses in the form the table has them: plain,
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
