package cli

import (
	"io"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// modeNFTables is the name of kube-proxy's mode in flags.
const modeNFTables = "nftables"

// renderNFTables prints kube-proxy's tables of mode nftables; with a service (NAMESPACE/NAME) only its parts.
func renderNFTables(stdout, stderr io.Writer, in input, service string, families []decision.Family) error {
	if service == "" {
		cidrs := serviceCIDRs(in.objects)
		if len(cidrs) == 0 {
			note(stderr, "the objects contain no ServiceCIDR: the rule that drops packets to cluster IPs without a service is left out")
		}
		_, err := nftproxy.Tables(in.table, nftproxy.Options{ServiceCIDRs: cidrs}, families...).WriteTo(stdout)
		return err
	}
	all := &nftables.Ruleset{}
	for _, f := range families {
		var ports []*decision.ServicePort
		for _, s := range in.table.Services() {
			if s.Family == f && s.Name.Namespace+"/"+s.Name.Name == service {
				ports = append(ports, s)
			}
		}
		if len(ports) > 0 {
			all.Tables = append(all.Tables, nftproxy.ServiceTable(in.table, f, ports...).Tables...)
		}
	}
	if len(all.Tables) == 0 {
		return noSuchService(in.table, in.objects, families[0], service)
	}
	_, err := all.WriteTo(stdout)
	return err
}

// serviceCIDRs are the ranges of cluster IPs that the objects, or their lab, name.
func serviceCIDRs(objects *manifest.Objects) (all []netip.Prefix) {
	for _, o := range objects.Context.ServiceCIDRs {
		for _, text := range o.Spec.CIDRs {
			if p, err := kubeaddr.ParsePrefix(text); err == nil {
				all = append(all, p)
			}
		}
	}
	if file := labfile.Of(objects); file != nil && len(all) == 0 {
		all = file.ServicePrefixes()
	}
	return all
}

// nftArgs are the flags of render for mode nftables, with node ports on all addresses if they are not restricted.
func nftArgs(c *servicetable.NodeConfig) string {
	if len(c.NodePortAddresses) > 0 {
		return " --mode nftables"
	}
	return " --mode nftables --nodeport-addresses 0.0.0.0/0,::/0"
}
