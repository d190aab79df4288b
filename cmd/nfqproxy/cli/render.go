package cli

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/kubesave"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

func newRenderCommand() *cobra.Command {
	var table tableFlags
	var family, service, namespace, mode string
	var kernel kubechains.Kernel
	cmd := &cobra.Command{
		Use:   "render --objects PATH",
		Short: "Print the rules that kube-proxy would write",
		Long: `Print the iptables rules that kube-proxy would write for these objects on this node, in
the format of iptables-save. Load them with iptables-restore (ip6tables-restore for
--family ipv6). With --mode nftables, print the tables that kube-proxy 1.36 would write in
that mode, for both families, in the format of nft list ruleset. Load them with nft -f.
Node ports are then open on the node's primary addresses, unless --nodeport-addresses is
set.

In iptables mode, kube-proxy's rules also depend on the node's kernel, which nfqproxy does
not read here: set --nfacct and --conntrack-tcp-be-liberal to match it. To load rules with
--nfacct, create the counters first: nfacct add ct_state_invalid_dropped_pkts; nfacct add
localhost_nps_accepted_pkts.`,
		Example: `  nfqproxy render --objects cluster.yaml --cluster-cidr 10.244.0.0/16
  nfqproxy render --objects cluster.yaml --service kube-system/kube-dns
  nfqproxy render --objects cluster.yaml --mode nftables`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := map[string]decision.Family{"ipv4": decision.IPv4, "ipv6": decision.IPv6}[family]
			table.primaryNodePorts = mode == modeNFTables
			if mode == modeNFTables && kernel != (kubechains.Kernel{}) {
				return fmt.Errorf("--mode nftables and%s cannot be used together: in this mode kube-proxy's rules do not depend on the kernel", kernelArgs(kernel))
			}
			in, err := table.load(cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			t, objects := in.table, in.objects
			if t.Node().Name == "" && len(objects.Nodes) > 1 && slices.ContainsFunc(t.Services(), (*decision.ServicePort).UsesLocal) {
				fmt.Fprintln(cmd.ErrOrStderr(), "nfqproxy: warning: several Nodes but no --node: no endpoint counts as local for traffic policy Local")
			}
			service = inNamespace(namespace, service)
			if mode == modeNFTables {
				families := []decision.Family{decision.IPv4, decision.IPv6}
				if cmd.Flags().Changed("family") {
					families = []decision.Family{f}
				}
				return renderNFTables(cmd.OutOrStdout(), cmd.ErrOrStderr(), in, service, families)
			}
			if service == "" {
				return kubesave.Render(cmd.OutOrStdout(), kubechains.Rules(t, f, kernel))
			}
			var rules []kubechains.Rule
			for _, s := range t.Services() {
				if s.Family == f && s.Name.Namespace+"/"+s.Name.Name == service {
					rules = append(rules, kubechains.ServiceRules(t, s, kernel)...)
				}
			}
			if len(rules) == 0 {
				return noSuchService(t, objects, f, service)
			}
			// By table, each in its order.
			slices.SortStableFunc(rules, func(a, b kubechains.Rule) int { return strings.Compare(string(a.Table), string(b.Table)) })
			return kubesave.RenderRules(cmd.OutOrStdout(), rules)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	table.add(cmd, flags)
	oneOf(cmd, &mode, "mode", "", ": mode of kube-proxy", "iptables", modeNFTables)
	oneOf(cmd, &family, "family", "", "; in mode nftables both, if it is not set", "ipv4", "ipv6")
	flags.StringVar(&service, "service", "", "print only the rules of this service: NAMESPACE/NAME, or NAME with --namespace")
	namespaceFlag(cmd, &namespace, "--service", "none")
	flags.BoolVar(&kernel.NFAcct, "nfacct", false, "include the rules with nfacct counters, which kube-proxy writes if the node's kernel supports nfacct")
	flags.BoolVar(&kernel.TCPLiberal, "conntrack-tcp-be-liberal", false, "print the rules for net.netfilter.nf_conntrack_tcp_be_liberal=1: kube-proxy does not drop INVALID packets then")
	return cmd
}

// noSuchService is the error for a service without rules. It names the services that have some.
func noSuchService(t *decision.Table, objects *manifest.Objects, f decision.Family, service string) error {
	for _, s := range objects.Services {
		if why := servicetable.Unserved(s); why != "" && s.Namespace+"/"+s.Name == service {
			return fmt.Errorf("--service %s: %s", service, why)
		}
	}
	var names []string
	for _, s := range t.Services() {
		name := s.Name.Namespace + "/" + s.Name.Name
		switch {
		case name == service && s.Family != f:
			return fmt.Errorf("--service %s: it has no %s cluster IP; use --family %s", service, f, strings.ToLower(s.Family.String()))
		case !slices.Contains(names, name):
			names = append(names, name)
		}
	}
	return fmt.Errorf("--service %s: no such service (NAMESPACE/NAME) with a cluster IP%s; known: %s", service, nearest.Hint(service, names), nearest.Few(names))
}

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
