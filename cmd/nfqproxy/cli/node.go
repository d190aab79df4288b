package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/savednode"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// bundleUsage describes --node where it takes a bundle only, and orBundle where it names a node, too.
const (
	bundleUsage = "the node's bundle from nfqproxy collect, a directory or .tar.gz: its rules, sets, addresses, routes and sysctls, instead of --rules, --sets and --host"
	orBundle    = "; or the node's bundle from nfqproxy collect, instead of --rules: a .tar.gz, or a directory with a slash, such as ./node-a"
)

// ruleInput is where the rules of a question are: in files, or in the bundle of a node.
type ruleInput struct {
	files []ruleFile
	node  *savednode.Node // nil: files
}

// newRuleInput is the input that --rules or --node select. node is the path of a bundle, or empty.
func newRuleInput(stdin io.Reader, rules []string, node string) (*ruleInput, error) {
	switch {
	case node != "" && len(rules) > 0:
		return nil, fmt.Errorf("--rules and --node %s cannot be used together: give one of them", node)
	case node == "" && len(rules) == 0:
		return nil, errors.New("--rules or --node is required: give a file with the output of iptables-save, or a bundle of nfqproxy collect")
	case node == "":
		files, err := ruleFiles(stdin, rules)
		if err != nil {
			return nil, fmt.Errorf("--rules: %w", err)
		}
		return &ruleInput{files: files}, nil
	}
	n, err := savednode.Open(node)
	if err != nil {
		return nil, fmt.Errorf("--node: %w", err)
	}
	return inputOf(n), nil
}

// inputOf is the input of an opened bundle.
func inputOf(n *savednode.Node) *ruleInput {
	in := &ruleInput{node: n}
	for _, r := range n.IPTables(iptables.FamilyUnknown) {
		in.files = append(in.files, savedFile(r))
	}
	if r, ok := n.NFTables(); ok {
		in.files = append(in.files, savedFile(r))
	}
	return in
}

// savedFile is a file of a bundle.
func savedFile(r savednode.Rules) ruleFile {
	return ruleFile{
		name: r.File, family: r.Family, backend: r.Backend,
		open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(r.Text)), nil },
	}
}

// flag names the flag in messages.
func (in *ruleInput) flag() string {
	if in.node != nil {
		return "--node"
	}
	return "--rules"
}

// dumps reads all rules; the family is used where the text does not show it.
func (in *ruleInput) dumps(stderr io.Writer, family iptables.Family) ([]*iptables.Dump, error) {
	if in.node != nil && len(in.files) == 0 {
		return nil, fmt.Errorf("--node %s: the bundle has no rules%s", in.node.Path, in.why())
	}
	dumps, err := readRules(stderr, in.files, family)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", in.flag(), err)
	}
	return dumps, nil
}

// of returns the dumps of one family.
func (in *ruleInput) of(dumps []*iptables.Dump, family iptables.Family) ([]*iptables.Dump, error) {
	if in.node != nil && !slices.Contains(familiesOf(dumps), family) {
		return nil, fmt.Errorf("--node %s: the bundle has no rules of %s%s", in.node.Path, family, in.why())
	}
	of, err := hostRulesOf(dumps, family)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", in.flag(), err)
	}
	return of, nil
}

// why is the reason for a bundle without rules.
func (in *ruleInput) why() string {
	if missing := in.node.MissingRules(); len(missing) > 0 {
		return ": " + missing[0]
	}
	return ""
}

// sets are the ipsets: those of the file, or of the bundle.
func (in *ruleInput) sets(file string) (map[string]*iptables.Set, error) {
	if file != "" || in.node == nil {
		return readSets(file)
	}
	sets, err := in.node.Sets()
	if err != nil {
		return nil, fmt.Errorf("--node: %w", err)
	}
	return sets, nil
}

// servers are the virtual servers of IPVS: those of the file, or of the bundle; nil: there are none.
func (in *ruleInput) servers(stderr io.Writer, file string) (*ipvs.State, error) {
	if file != "" || in.node == nil {
		return readIPVS(stderr, file)
	}
	servers, err := in.node.IPVS()
	if err != nil {
		return nil, fmt.Errorf("--node: %w", err)
	}
	return servers, nil
}

// host is the host: what flags say, and else the bundle. What the bundle has and the simulation does not follow goes to stderr.
func (in *ruleInput) host(flags *hostFlags, family iptables.Family, stderr io.Writer) (*netfilter.Host, error) {
	if in.node == nil {
		return flags.load(new(netfilter.Host))
	}
	h, notes := in.node.Host(family)
	note(stderr, notes...)
	if len(flags.files) > 0 {
		h = &netfilter.Host{
			NoForwarding: h.NoForwarding, ForwardingDiffers: h.ForwardingDiffers, ReverseFilter: h.ReverseFilter, Bridges: h.Bridges,
			RouteLocalnet: h.RouteLocalnet, LocalnetKnown: h.LocalnetKnown,
		}
	}
	return flags.load(h)
}

// nodeNamed is the name of a bundle's node among objects: its own, or else that of the Node object with one of its
// addresses.
func nodeNamed(objects *manifest.Objects, n *savednode.Node) string {
	if slices.ContainsFunc(objects.Nodes, func(o *corev1.Node) bool { return o.Name == n.Name }) {
		return n.Name
	}
	h, _ := n.Host(iptables.IPv4)
	for _, o := range objects.Nodes {
		if slices.ContainsFunc(servicetable.NodeAddresses(o), h.Has) {
			return o.Name
		}
	}
	return n.Name
}

// bundleIn is the path of a bundle that a flag --node has, which otherwise is the name of a node; empty: it is a name.
func bundleIn(node string) string {
	if savednode.IsPath(node) {
		return node
	}
	return ""
}

// nodeValue is the value of --node: the name of a node, or the path of a bundle.
type nodeValue struct {
	name *string
	more *[]string // further bundles; nil: only one may be given
}

func (v nodeValue) String() string { return *v.name }
func (v nodeValue) Type() string   { return "string" }

func (v nodeValue) Set(text string) error {
	switch {
	case *v.name == "":
		*v.name = text
	case v.more != nil && bundleIn(*v.name) != "" && bundleIn(text) != "":
		*v.more = append(*v.more, text)
	default:
		return fmt.Errorf("one node or bundle: --node %s is given, too", *v.name) // after "want"
	}
	return nil
}
