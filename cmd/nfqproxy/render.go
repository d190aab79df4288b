package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/control/source/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/sim/kubechains"
)

func newRenderCommand() *cobra.Command {
	var table tableFlags
	var family, service string
	var kernel kubechains.Kernel
	cmd := &cobra.Command{
		Use:   "render --objects PATH",
		Short: "Print the iptables rules kube-proxy would have written",
		Long: `Print the iptables rules that kube-proxy would have written for these objects on this
node, as iptables-save does. iptables-restore loads them (ip6tables-restore those of
--family ipv6).

What kube-proxy finds in the node's kernel is not read from this machine: --nfacct and
--conntrack-tcp-be-liberal give it. To load rules with --nfacct, make the counters first:
nfacct add ct_state_invalid_dropped_pkts; nfacct add localhost_nps_accepted_pkts.`,
		Example: `  nfqproxy render --objects cluster.yaml --cluster-cidr 10.244.0.0/16
  nfqproxy render --objects cluster.yaml --service kube-system/kube-dns`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, ok := map[string]decision.Family{"ipv4": decision.IPv4, "ipv6": decision.IPv6}[family]
			if !ok {
				return fmt.Errorf("--family %q: want ipv4 or ipv6", family)
			}
			t, objects, err := table.load(cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if t.Node().Name == "" && len(objects.Nodes) > 1 && slices.ContainsFunc(t.Services(), (*decision.ServicePort).UsesLocal) {
				fmt.Fprintln(cmd.ErrOrStderr(), "nfqproxy: warning: there are several Nodes and no --node-name, so no endpoint counts as local to traffic policy Local")
			}
			if service == "" {
				return kubechains.Render(cmd.OutOrStdout(), kubechains.Rules(t, f, kernel))
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
			return kubechains.RenderRules(cmd.OutOrStdout(), rules)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	table.add(cmd, flags)
	flags.StringVar(&family, "family", "ipv4", "ipv4 or ipv6")
	flags.StringVar(&service, "service", "", "only the rules of this service: NAMESPACE/NAME")
	flags.BoolVar(&kernel.NFAcct, "nfacct", false, "with the rules that count in nfacct, which kube-proxy writes where the node's kernel has it")
	flags.BoolVar(&kernel.TCPLiberal, "conntrack-tcp-be-liberal", false, "as on a node with net.netfilter.nf_conntrack_tcp_be_liberal=1: kube-proxy does not drop INVALID packets there")
	return cmd
}

// noSuchService says what there is instead.
func noSuchService(t *decision.Table, objects *manifest.Objects, f decision.Family, service string) error {
	for _, s := range objects.Services {
		if why := control.Unserved(s); why != "" && s.Namespace+"/"+s.Name == service {
			return fmt.Errorf("--service %s: %s", service, why)
		}
	}
	var names []string
	for _, s := range t.Services() {
		name := s.Name.Namespace + "/" + s.Name.Name
		switch {
		case name == service && s.Family != f:
			return fmt.Errorf("--service %s: it has no cluster IP of family %s; say --family %s", service, f, strings.ToLower(s.Family.String()))
		case !slices.Contains(names, name):
			names = append(names, name)
		}
	}
	return fmt.Errorf("--service %s: there is no such service (NAMESPACE/NAME) with a cluster IP%s; there are %s", service, nearest.Hint(service, names), nearest.Few(names))
}
