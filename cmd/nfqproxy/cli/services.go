package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// servicesFlags are the flags of nfqproxy services.
type servicesFlags struct {
	rules    []string
	objects  []string
	ipvs     string
	sets     string
	nodeName string
	output   string
	files    []string // that were read, by their names

	view     *nodeView
	compared []servicesOfObjects // by family; none: without --objects

	namespaces namespaceFlags
}

func newServicesCommand() *cobra.Command {
	var f servicesFlags
	cmd := &cobra.Command{
		Use:   "services {--rules FILE | --node BUNDLE | --ipvs FILE}",
		Short: "List the services in a node's kube-proxy rules, or in IPVS",
		Long: `List the services in the rules that kube-proxy wrote on a node, from iptables-save, or in
nftables mode from nft list ruleset or nft -j list ruleset: addresses and ports, policies,
endpoints with the probability of each, the configuration of kube-proxy, and
inconsistencies in the rules.

-o yaml prints Kubernetes objects for which kube-proxy would write the same rules, like
kubectl get on a cluster. The first lines are comments with the commands that render these
rules or run a lab of the node. A dump of iptables-save together with one of
ip6tables-save gives dual-stack Services. With --node, the rules come from a bundle of
nfqproxy collect.

With --ipvs, or with --node for a node in IPVS mode, it lists the virtual servers instead:
addresses, scheduler, affinity, and endpoints with their shares of new connections, as
documented for IPVS. IPVS does not know the names of Services; with --sets, kube-proxy's
ipsets tell cluster IPs, node ports and load balancer IPs apart.

With --objects, it also compares the services with Kubernetes objects: what the rules or
virtual servers of the node lack (-), what they have in addition (+), and what differs
(~). -o report includes this comparison.

The exit code is 0 even if the rules have problems.`,
		Example: `  iptables-save | nfqproxy services --rules -
  ipvsadm -Ln > ipvs.txt; ipset save > sets.txt; nfqproxy services --ipvs ipvs.txt --sets sets.txt
  nfqproxy services --rules node.rules --rules node.rules6 -o yaml > objects.yaml
  nft list ruleset | nfqproxy services --rules -
  nfqproxy services --node node-a.tar.gz --objects cluster.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case len(f.objects) > 0 && (f.output == "yaml" || f.output == "json"):
				return fmt.Errorf("--objects cannot be used with -o %s, which prints objects: -o report has the differences as JSON", f.output)
			case f.ipvs != "":
				return f.runIPVS(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			case len(f.rules) == 0 && bundleIn(f.nodeName) == "":
				return fmt.Errorf("%s needs --rules, --node BUNDLE or --ipvs (see %[1]s --help)", cmd.CommandPath())
			case f.sets != "":
				return errors.New("--sets requires --ipvs")
			}
			if ofIPVS, err := f.bundleOfIPVS(); err != nil || ofIPVS {
				if err == nil {
					err = f.runIPVS(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
				}
				return err
			}
			return f.run(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&f.rules, "rules", nil, "output of iptables-save, ip6tables-save or nft list ruleset, - for standard input; repeat for the other family and the other back end")
	flags.StringVar(&f.ipvs, "ipvs", "", "output of ipvsadm -Sn or ipvsadm -Ln: list the virtual servers of IPVS")
	flags.StringVar(&f.sets, "sets", "", "with --ipvs: output of ipset save or ipset list, to tell the kinds of addresses apart")
	flags.StringArrayVar(&f.objects, "objects", nil, "compare the services with these objects: a file or directory with Services, EndpointSlices and Nodes, or - for standard input; may be repeated")
	f.namespaces.add(cmd, "the services", "all")
	flags.Var(nodeValue{name: &f.nodeName}, "node", "with -o yaml, -o json or --objects: name of the node of the rules"+orBundle)
	oneOf(cmd, &f.output, "output", "o", ": wide has more columns; yaml and json are Kubernetes objects; report is all that the rules say, as JSON", "text", "wide", "yaml", "json", "report")
	return cmd
}

func (f *servicesFlags) run(stdin io.Reader, stdout, stderr io.Writer) error {
	write := map[string]func(io.Writer, []ruleSet) error{
		"text": f.writeTable, "wide": f.writeTable, "report": f.writeReport, "yaml": f.writeObjects, "json": f.writeObjects,
	}[f.output]
	sets, err := f.read(stdin, stderr)
	if err != nil {
		return err
	}
	if f.compared, err = f.compare(stdin, stderr); err != nil {
		return err
	}
	out := bufio.NewWriter(stdout)
	return errors.Join(write(out, sets), out.Flush())
}

// ruleSet is one dump of iptables, or one family of the output of nft, with what kube-proxy's rules in it say.
type ruleSet struct {
	file string
	dump *iptables.Dump // nil: nft
	node *audit.Node
}

// read reads all files: the rules of one host, of both families and both back ends.
func (f *servicesFlags) read(stdin io.Reader, stderr io.Writer) ([]ruleSet, error) {
	in, err := newRuleInput(stdin, f.rules, bundleIn(f.nodeName))
	if err != nil {
		return nil, err
	}
	if in.node != nil {
		f.nodeName = in.node.Name
	}
	all, err := in.dumps(stderr, iptables.FamilyUnknown)
	if err != nil {
		return nil, err
	}
	f.view = &nodeView{in: in, files: new(nodeFiles), dumps: all}
	for _, family := range familiesOf(all) {
		if _, err := in.of(all, family); err != nil {
			return nil, err
		}
	}
	for _, file := range in.files {
		f.files = append(f.files, file.name)
	}
	var sets []ruleSet
	for _, d := range all {
		s := ruleSet{d.File, d, audit.Read(d)}
		if s.isEmptyFamily(sets) {
			continue
		}
		sets = append(sets, s)
	}
	for i, s := range sets {
		if other := s.twice(sets[:i]); other != nil && s.dump.Ruleset != nil && other.dump.Ruleset != nil && s.node.Mode != proxymode.ModeUnknown {
			return nil, fmt.Errorf("--rules: %s and %s are both nftables rules for %s: give the rules of one host at one time", other.file, s.file, s.node.Family)
		}
		if n, namespace := s.node, f.namespaces.selected(); namespace != "" {
			n.Services = slices.DeleteFunc(n.Services, func(s *audit.Service) bool { return s.Name.Namespace != namespace })
		}
	}
	var with []ruleSet
	for _, s := range sets {
		if !s.inOtherBackend(sets) {
			with = append(with, s)
		}
	}
	return with, nil
}

// isEmptyFamily reports whether it is the second family of a ruleset of nftables, without rules of kube-proxy.
func (s ruleSet) isEmptyFamily(others []ruleSet) bool {
	return s.dump.Ruleset != nil && s.node.Mode == proxymode.ModeUnknown && slices.ContainsFunc(others, func(o ruleSet) bool { return o.dump.Ruleset == s.dump.Ruleset })
}

// inOtherBackend reports whether kube-proxy's rules are in the other back end only.
func (s ruleSet) inOtherBackend(all []ruleSet) bool {
	return s.node.Mode == proxymode.ModeUnknown && slices.ContainsFunc(all, func(o ruleSet) bool {
		return s.isBeside(o) && o.node.Mode != proxymode.ModeUnknown
	})
}

// isBeside reports whether another set is of the same family.
func (s ruleSet) isBeside(o ruleSet) bool { return o.node != s.node && o.node.Family == s.node.Family }

// name names a set in messages.
func (s ruleSet) name(all []ruleSet) string {
	switch {
	case s.dump.Ruleset == nil:
		return dumpName(s.dump, dumpsOf(all))
	case slices.ContainsFunc(all, func(o ruleSet) bool { return o.file == s.file && o.node != s.node }):
		return fmt.Sprintf("%s (%s)", s.file, s.node.Family) // which nft prints together
	}
	return s.file
}

func nodesOf(sets []ruleSet) []*audit.Node {
	var nodes []*audit.Node
	for _, s := range sets {
		nodes = append(nodes, s.node)
	}
	return nodes
}

// twice is the other back end that has rules of kube-proxy, too; nil: none has.
func (s ruleSet) twice(all []ruleSet) *ruleSet {
	for i, o := range all {
		if s.isBeside(o) {
			return &all[i]
		}
	}
	return nil
}

func (f *servicesFlags) writeTable(w io.Writer, sets []ruleSet) error {
	for _, s := range sets {
		if mode := s.node.OtherMode(); mode != "" {
			fmt.Fprintf(w, "%s\n\n", mode)
		}
	}
	if err := audit.WriteTable(w, f.output == "wide", nodesOf(sets)...); err != nil {
		return err
	}
	for i, s := range sets {
		n, title := s.node, ""
		if len(sets) > 1 || len(f.files) > 1 {
			title = s.name(sets) + ": "
		}
		about := n.Proxy.String()
		if about == "kube-proxy" && len(n.Services) == 0 && (n.Mode == proxymode.ModeUnknown || n.Mode == proxymode.ModeKubeRouter) {
			about = "no rules of kube-proxy for services"
		}
		fmt.Fprintf(w, "\n%s%s", title, about)
		if s.dump.Backend != iptables.BackendUnknown && len(f.files) > 1 {
			fmt.Fprintf(w, ", in %s", s.dump.Backend)
		}
		fmt.Fprintln(w)
		if other := s.twice(sets[:i]); other != nil {
			both := "Both back ends have kube-proxy's rules"
			if s.dump.Ruleset != nil || other.dump.Ruleset != nil {
				both = fmt.Sprintf("There are rules of %s and of %s", other.node.Mode, s.node.Mode)
			}
			fmt.Fprintf(w, "%s, and the kernel evaluates both: those in %s and those in %s\n", both, other.name(sets), s.name(sets))
		}
		writeIssues(w, "Unknown:", n.Gaps)
		writeIssues(w, "Without an endpoint:", n.WithoutEndpoints())
		writeIssues(w, "Used by several services:", n.Contested)
		if len(n.Problems) == 1 {
			writeIssues(w, "1 problem:", n.Problems)
		} else {
			writeIssues(w, fmt.Sprintf("%d problems:", len(n.Problems)), n.Problems)
		}
	}
	return f.writeCompared(w)
}

func writeIssues(w io.Writer, title string, issues []audit.Issue) {
	if len(issues) > 0 {
		fmt.Fprintln(w, title)
	}
	for _, p := range issues {
		fmt.Fprintf(w, "  %s\n", p)
	}
}

func (f *servicesFlags) writeReport(w io.Writer, sets []ruleSet) error {
	type dump struct {
		File string      `json:"file"`
		Node *audit.Node `json:"node"`
	}
	all := struct {
		Version int                 `json:"version"`
		Dumps   []dump              `json:"dumps"`
		Objects []servicesOfObjects `json:"objects,omitempty"`
	}{Version: 1, Objects: f.compared}
	for _, s := range sets {
		all.Dumps = append(all.Dumps, dump{s.file, s.node})
	}
	return writeValue(w, "json", all)
}

func (f *servicesFlags) writeObjects(w io.Writer, sets []ruleSet) error {
	for i, s := range sets {
		if other := s.twice(sets[:i]); other != nil {
			return fmt.Errorf("--rules: %s and %s both have kube-proxy's rules for %s: give one of them", other.name(sets), s.name(sets), s.node.Family)
		}
	}
	nodes := nodesOf(sets)
	objects := audit.NewObjects(f.nodeName, nodes...)
	if f.output == "json" {
		items, err := objects.Documents()
		if err != nil {
			return err
		}
		return writeValue(w, f.output, map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	}
	config := audit.Config(f.nodeName, nodes...)
	fmt.Fprintf(w, "# Read from %s by nfqproxy services. To render the rules:\n", strings.Join(f.files, " and "))
	for _, args := range renderArgs(&config, nodes) {
		fmt.Fprintf(w, "#   nfqproxy render --objects FILE%s\n", args)
	}
	fmt.Fprintf(w, "# To run a lab of the node:\n#   nfqproxy lab up --objects FILE%s\n", clusterArgs(&config))
	for _, s := range sets {
		for _, p := range slices.Concat(s.node.Gaps, s.node.Contested, s.node.Problems) {
			fmt.Fprintf(w, "# %s: %s.\n", s.file, p)
		}
	}
	for _, note := range objects.Notes {
		fmt.Fprintf(w, "# %s.\n", note)
	}
	return objects.WriteYAML(w)
}

// renderArgs are the flags that render the rules of the nodes, once for each output.
func renderArgs(config *servicetable.NodeConfig, nodes []*audit.Node) (all []string) {
	for _, n := range nodes {
		args := tableArgs(config) + kernelArgs(audit.Kernel(nodes...))
		switch {
		case n.Mode == proxymode.ModeNFTables:
			args += nftArgs(config) // of both families
		case n.Family == decision.IPv6:
			args += " --family ipv6"
		}
		if !slices.Contains(all, args) {
			all = append(all, args)
		}
	}
	return all
}

// clusterArgs are the flags that describe the cluster.
func clusterArgs(c *servicetable.NodeConfig) string {
	if len(c.ClusterCIDRs) == 0 {
		return ""
	}
	return " --cluster-cidr " + prefixList(c.ClusterCIDRs)
}

// tableArgs are the flags of nodeFlags that give the configuration. The Node object has
// the rest.
func tableArgs(c *servicetable.NodeConfig) string {
	args := clusterArgs(c)
	switch c.Mode {
	case servicetable.BridgeInterface:
		args += fmt.Sprintf(" --detect-local-mode %s --pod-bridge-interface %s", c.Mode, c.Bridge)
	case servicetable.InterfaceNamePrefix:
		args += fmt.Sprintf(" --detect-local-mode %s --pod-interface-name-prefix %s", c.Mode, c.InterfacePrefix)
	}
	if len(c.NodePortAddresses) > 0 {
		args += " --nodeport-addresses " + prefixList(c.NodePortAddresses)
	}
	if !c.LocalhostNodePorts {
		args += " --localhost-nodeports=false"
	}
	if c.MasqueradeAll {
		args += " --masquerade-all"
	}
	if m := c.MasqueradeMark; m != decision.DefaultMasqueradeMark && bits.OnesCount32(m) == 1 {
		args += fmt.Sprintf(" --masquerade-bit %d", bits.TrailingZeros32(m))
	}
	return args
}

// kernelArgs are the flags of render for the node's kernel.
func kernelArgs(k kubechains.Kernel) (args string) {
	if k.NFAcct {
		args += " --nfacct"
	}
	if k.TCPLiberal {
		args += " --conntrack-tcp-be-liberal"
	}
	return args
}

func prefixList(prefixes []netip.Prefix) string {
	var words []string
	for _, p := range prefixes {
		words = append(words, p.String())
	}
	return strings.Join(words, ",")
}

func dumpsOf(sets []ruleSet) (dumps []*iptables.Dump) {
	for _, s := range sets {
		dumps = append(dumps, s.dump)
	}
	return dumps
}
