package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/paper/survey"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// nodeView is all that files, or the bundle of a node, show of the node.
type nodeView struct {
	in      *ruleInput
	files   *nodeFiles
	dumps   []*iptables.Dump // none: the rules are not known
	servers *ipvs.State      // nil: there are none, or they are not known
	sets    map[string]*iptables.Set
	objects *manifest.Objects // nil: not known
	name    string            // of the node
	daemon  bool              // nfqproxy serves it, and rules stand for its decisions
}

// view reads what there is of a node. objects are those of its cluster, nil if they are not known, and name is the node's among
// them.
func (in *ruleInput) view(stderr io.Writer, files *nodeFiles, objects *manifest.Objects, name string) (v *nodeView, err error) {
	v = &nodeView{in: in, files: files, objects: objects, name: name}
	if in.node != nil && objects != nil {
		v.name = nodeNamed(objects, in.node)
	} else if in.node != nil {
		v.name = in.node.Name
	}
	if v.servers, err = in.servers(stderr, files.ipvs); err != nil {
		return nil, err
	}
	if v.sets, err = in.sets(files.sets); err != nil {
		return nil, err
	}
	if len(in.files) > 0 {
		v.dumps, err = in.dumps(stderr, iptables.FamilyUnknown)
	}
	return v, err
}

// replaceDaemon has the rules that kube-proxy would write for the objects stand for nfqproxy's decisions, if it serves the node. config is that of the
// node with a name.
func (v *nodeView) replaceDaemon(config func(node string) (servicetable.NodeConfig, error)) error {
	if v.objects == nil || !slices.ContainsFunc(v.dumps, diagnose.HasDaemon) {
		return nil
	}
	c, err := config(v.name)
	if err != nil {
		return err
	}
	v.daemon = true
	v.dumps, err = diagnose.ReplaceDaemon(v.dumps, &v.objects.Objects, c)
	return err
}

// families are those with rules; without rules both, as far as there are virtual servers.
func (v *nodeView) families() (families []iptables.Family) {
	if len(v.dumps) > 0 {
		return familiesOf(v.dumps)
	}
	for _, f := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		if v.servers != nil && len(v.servers.Addresses(f == iptables.IPv6)) > 0 {
			families = append(families, f)
		}
	}
	return families
}

// of are the dumps of a family; none: the node's rules are not known.
func (v *nodeView) of(family iptables.Family) ([]*iptables.Dump, error) {
	if len(v.dumps) == 0 {
		return nil, nil
	}
	return v.in.of(v.dumps, family)
}

// host is the node for packets of a family, and what of it is not followed; nil: it is not known.
func (v *nodeView) host(family iptables.Family) (h *netfilter.Host, notes []string, err error) {
	if v.in.node != nil {
		h, notes = v.in.node.Host(family)
		return h, notes, nil
	}
	if len(v.files.host) > 0 {
		h, err = (&hostFlags{files: v.files.host}).load(new(netfilter.Host))
	}
	return h, nil, err
}

// known is what is known of the node besides the rules of a family.
func (v *nodeView) known(family iptables.Family, dumps []*iptables.Dump) (k survey.Known, notes []string, err error) {
	k = survey.Known{Sets: v.sets, IPVS: v.servers, TraceFlags: v.traceFlags()}
	if v.objects != nil {
		k.Services = diagnose.TableOf(dumps, &v.objects.Objects, v.name)
	}
	k.Host, notes, err = v.host(family)
	return k, notes, err
}

// traceFlags are the flags with which nfqproxy trace reads the same files.
func (v *nodeView) traceFlags() string {
	var flags []string
	add := func(flag string, files ...string) {
		for _, f := range files {
			if f != "" {
				flags = append(flags, flag, shellWord(f))
			}
		}
	}
	if v.in.node != nil {
		add("--node", v.in.node.Path)
	} else {
		for _, f := range v.in.files {
			add("--rules", f.path)
		}
	}
	add("--sets", v.files.sets)
	add("--ipvs", v.files.ipvs)
	add("--host", v.files.host...)
	return strings.Join(flags, " ")
}

// shellWord is a text as one word of a command.
func shellWord(text string) string {
	if strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._/+:@,%=~") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// services are those that the rules and the virtual servers show, of both families.
func (v *nodeView) services() []*audit.Node {
	var nodes []*audit.Node
	for _, d := range v.dumps {
		if n := audit.Read(d); len(n.Services) > 0 && !n.Mode.IPVS() {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) > 0 || v.servers == nil {
		return nodes
	}
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		n := &audit.Node{Family: f}
		if n.Services, n.Proxy.NodePortAddresses = audit.ServicesOfIPVS(v.servers, v.sets, f, nil); len(n.Services) > 0 {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// differences are those between the rules, or the virtual servers, of a family and the objects. reason is why they were not
// compared; empty: they were.
func (v *nodeView) differences(family iptables.Family) (changes []audit.ServiceChange, reason string, err error) {
	dumps, err := v.of(family)
	if err != nil || v.daemon {
		return nil, "", err
	}
	changes, reason, err = diagnose.Differences(dumps, v.servers, family, &v.objects.Objects, v.name)
	if err != nil {
		err = fmt.Errorf("%s %s: %w", v.in.flag(), filesOf(dumps), err)
	}
	return changes, reason, err
}

// object names where virtual servers are from.
func (v *nodeView) object() string {
	if v.in.node != nil && v.files.ipvs == "" {
		return v.in.node.Path
	}
	return cmp.Or(v.files.ipvs, v.files.conntrack)
}

// missing are the notes of a bundle about rules that could not be collected.
func (v *nodeView) missing() (notes []string) {
	if v.in.node == nil {
		return nil
	}
	for _, m := range v.in.node.MissingRules() {
		notes = append(notes, "not collected: "+m)
	}
	return slices.Clip(notes)
}
