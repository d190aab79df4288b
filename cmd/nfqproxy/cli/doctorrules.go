package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/paper/savednode"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/findings"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// rulesMemory is the heap size above which the garbage collector works harder: 10,000 services with 10 endpoints each need
// half of it.
const rulesMemory = 800 << 20

// ofRules returns the findings about dumps or bundles and about the objects, if there are some, and the scope of the examination of
// each family of each node.
func (f *doctorFlags) ofRules(ctx context.Context, stdin io.Reader, stderr io.Writer) (found []diagnose.Finding, examined []*diagnose.Examined, err error) {
	path, flag := bundleIn(f.table.name), "--rules"
	if path != "" {
		flag = "--node " + path
	}
	if f.lab != "" || f.server != "" || f.daemons.flags.Changed("cluster") {
		return nil, nil, fmt.Errorf("%s cannot be used with --lab, --server and --cluster: give one of them", flag)
	}
	if f.node.ipvs == "" && len(f.rules) == 0 && path == "" {
		return nil, nil, errors.New("--host and --sets require --rules or --ipvs: give the output of iptables-save, or of ipvsadm -Sn, too")
	}
	var objects *manifest.Objects
	if f.namesObjects() {
		if objects, err = f.compared(ctx, stdin, stderr); err != nil {
			return nil, nil, err
		}
		f.noteObjects(objects, stderr)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(min(rulesMemory, debug.SetMemoryLimit(-1))))
	found, examined, err = f.ofNodes(path, objects, stdin, stderr)
	if err != nil || objects == nil {
		return found, examined, err
	}
	about, err := f.ofObjects(ctx, objects)
	return append(diagnose.Unexplained(found, about), about...), examined, err
}

// ofObjects returns the findings about objects that the rules were compared with.
func (f *doctorFlags) ofObjects(ctx context.Context, objects *manifest.Objects) ([]diagnose.Finding, error) {
	t := f.table
	if bundleIn(t.name) != "" {
		t.name = ""
	}
	config, err := t.configure(objects)
	if err == nil && len(t.objects) > 0 {
		err = objects.Complete(config.ClusterCIDRs)
	}
	if err != nil {
		return nil, err
	}
	d := findings.Doctor{Objects: func(context.Context) (*manifest.Objects, servicetable.NodeConfig, error) { return objects, config, nil }}
	list, err := d.Findings(ctx)
	if err != nil {
		return nil, err
	}
	notShown := func(d diagnose.Finding) bool { return d.Code == diagnose.NotShown } // the rules show it
	return slices.DeleteFunc(list.Findings, notShown), nil
}

// ofNodes returns the findings about dumps, or about the bundles at a path, compared with objects if there are some.
func (f *doctorFlags) ofNodes(path string, objects *manifest.Objects, stdin io.Reader, stderr io.Writer) (found []diagnose.Finding, examined []*diagnose.Examined, err error) {
	if path == "" && len(f.rules) == 0 {
		return f.examine(new(ruleInput), objects, stderr)
	}
	if path == "" || len(f.rules) > 0 {
		in, err := newRuleInput(stdin, f.rules, path)
		if err != nil {
			return nil, nil, err
		}
		return f.examine(in, objects, stderr)
	}
	nodes, err := savednode.OpenAll(append([]string{path}, f.bundles...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("--node: %w", err)
	}
	if len(nodes) == 1 {
		return f.examine(inputOf(nodes[0]), objects, stderr)
	}
	all := make([]diagnose.OfOneNode, len(nodes))
	hosts := make(map[string]*netfilter.Host)
	for i, n := range nodes {
		hosts[n.Name], _ = n.Host(iptables.IPv4)
		of, about, err := f.examine(inputOf(n), objects, stderr)
		if err != nil {
			return nil, nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		for j := range of {
			if !strings.HasPrefix(of[j].Object, "Service ") {
				of[j].Object = ""
			}
		}
		all[i] = diagnose.OfOneNode{Node: n.Name, Findings: of}
		examined = append(examined, about...)
	}
	return diagnose.MergeNodes(append(all, diagnose.WrongNeighbours(hosts)...)), examined, nil
}

// compared are the objects that rules are compared with.
func (f *doctorFlags) compared(ctx context.Context, stdin io.Reader, stderr io.Writer) (objects *manifest.Objects, err error) {
	if len(f.table.objects) > 0 && f.kubeconfig+f.daemons.context == "" {
		objects, err = f.table.read(stdin) // as they are: what manifests lack, the rules have
	} else {
		objects, err = f.read(ctx, stdin, stderr)
	}
	if err != nil {
		return nil, err
	}
	note(stderr, objects.Notes...)
	return objects, nil
}

// examine examines one node: its rules, virtual servers and connection entries; and compares them with objects, if there are some.
func (f *doctorFlags) examine(in *ruleInput, objects *manifest.Objects, stderr io.Writer) (found []diagnose.Finding, examined []*diagnose.Examined, err error) {
	v, err := in.view(stderr, &f.node, objects, f.table.name)
	if err != nil {
		return nil, nil, err
	}
	err = v.replaceDaemon(func(node string) (servicetable.NodeConfig, error) {
		t := f.table
		t.name = node
		return t.configure(objects)
	})
	if err != nil {
		return nil, nil, err
	}
	entries, notJudged, err := f.entriesOf(v)
	if err != nil {
		return nil, nil, err
	}
	if in.node != nil && len(v.dumps) == 0 && v.servers == nil {
		if _, err := in.dumps(stderr, iptables.FamilyUnknown); err != nil && entries == nil {
			return nil, nil, err
		}
	}
	for _, family := range v.families() {
		dumps, err := v.of(family)
		if err != nil {
			return nil, nil, err
		}
		known, notes, err := v.known(family, dumps)
		if err != nil {
			return nil, nil, err
		}
		var of []diagnose.Finding
		about := diagnose.NotExamined(family, "the firewall of the node, and whether connections are masqueraded: there are no rules")
		if len(dumps) > 0 {
			if of, about, err = diagnose.ExamineNode(dumps, known); err != nil {
				return nil, nil, fmt.Errorf("%s %s: %w", in.flag(), filesOf(dumps), err)
			}
		}
		var differ []audit.ServiceChange
		if objects != nil {
			var reason string
			if differ, reason, err = v.differences(family); err != nil {
				return nil, nil, err
			}
			differing, others := diagnose.CompareRules(differ, &objects.Objects)
			if of = append(of, differing...); reason != "" {
				notes = append(notes, "whether the rules match the objects: "+reason)
			}
			if len(others) > 0 {
				notes = append(notes, "whether these services exist, for the objects lack default/kubernetes, and so are not all: "+nearest.Few(others))
			}
		}
		about.Not = append(append(about.Not, notes...), v.missing()...)
		if about.Not = append(about.Not, notJudged...); in.node == nil && len(dumps) == 0 {
			about = nil // virtual servers alone were asked about
		}
		for i := range of {
			of[i].Object = cmp.Or(filesOf(dumps), v.object())
			if of[i].AboutHost() {
				of[i].Object = cmp.Or(v.object(), of[i].Object)
			}
			if of[i].Code == diagnose.RulesOutdated && slices.ContainsFunc(differ, func(c audit.ServiceChange) bool { return c.IPVS }) {
				of[i].Object = v.object()
			}
		}
		if found = append(found, of...); about != nil {
			examined = append(examined, about)
		}
	}
	if in.node != nil {
		if entries, limit, ok := in.node.Connections(); ok {
			if full := diagnose.FullTable(in.node.Name, entries, limit); full != nil {
				full.Object = v.object()
				found = append(found, *full)
			}
		}
		for _, l := range v.trackingLosses(found) {
			l.Object = v.object()
			found = append(found, l)
		}
	}
	servers, err := v.examineServers()
	if err != nil {
		return nil, nil, err
	}
	found = append(append(found, servers...), entries...)
	diagnose.Sort(found)
	return found, examined, nil
}

// noteObjects says that the objects, which are only compared with the node, have findings of their own.
func (f *doctorFlags) noteObjects(objects *manifest.Objects, stderr io.Writer) {
	config, err := f.table.configure(objects)
	if err != nil {
		return
	}
	var codes []string
	for _, of := range diagnose.New(objects, config).Examine() {
		if s := of.Code.Severity(); s != diagnose.Note && of.Ignored == "" {
			codes = append(codes, string(of.Code))
		}
	}
	if len(codes) > 0 {
		note(stderr, fmt.Sprintf("the objects are only compared with the node here, and have findings of their own (%s): nfqproxy doctor shows them without --rules, --ipvs and --node", nearest.Few(codes)))
	}
}

// trackingLosses are the findings about what connection tracking has dropped on the node of a bundle.
func (v *nodeView) trackingLosses(found []diagnose.Finding) []diagnose.Finding {
	stats, ok := v.in.node.TrackingStats()
	if !ok {
		return nil
	}
	full := slices.ContainsFunc(found, func(f diagnose.Finding) bool { return f.Code == diagnose.TableNearlyFull })
	return diagnose.TrackingLosses(v.name, stats.EarlyDrop, stats.Drop, stats.InsertFailed, full)
}

// examineServers returns the findings about virtual servers.
func (v *nodeView) examineServers() ([]diagnose.Finding, error) {
	if v.servers == nil {
		return nil, nil
	}
	known, _, err := v.known(iptables.FamilyUnknown, v.dumps)
	if err != nil {
		return nil, err
	}
	mode, _ := proxymode.ModeOf(v.dumps)
	found := diagnose.ExamineIPVS(v.servers, mode, known)
	for i := range found {
		found[i].Object = v.object()
	}
	return found, nil
}

// entriesOf returns the findings about the connection entries of a bundle; nil: it has none. not is what was not judged.
func (f *doctorFlags) entriesOf(v *nodeView) (found []diagnose.Finding, not []string, err error) {
	if v.in.node == nil {
		return nil, nil, nil
	}
	entries, collected, err := v.in.node.Entries()
	if err != nil {
		return nil, nil, fmt.Errorf("--node: %w", err)
	}
	if !collected {
		for _, m := range v.in.node.Missing() {
			if strings.HasPrefix(m, "conntrack -L") {
				return nil, []string{"connection entries: not collected: " + m}, nil
			}
		}
		return nil, nil, nil
	}
	nodes := v.services()
	host, _, err := v.host(iptables.IPv4)
	if err != nil {
		return nil, nil, err
	}
	config := audit.Config(v.name, nodes...)
	if v.objects == nil {
		if len(nodes) == 0 {
			return []diagnose.Finding{}, []string{quantity.Count(len(entries), "connection entry") + ": compare them with the Services by --objects"}, nil
		}
		objects := diagnose.ObjectsOf(v.name, nodes, host)
		t, _ := servicetable.Table(&objects.Objects, config)
		found = append([]diagnose.Finding{}, diagnose.EntriesBesideRules(t, entries)...)
		return found, []string{"whether connection entries lead to endpoints: the rules only have the endpoints for new connections; --objects compares all"}, nil
	}
	name := f.table.name
	f.table.name = v.name
	flags, err := f.table.configure(v.objects)
	f.table.name = name
	if err != nil {
		return nil, nil, err
	}
	if len(nodes) == 0 || len(config.ClusterCIDRs) == 0 {
		config.ClusterCIDRs = flags.ClusterCIDRs
	}
	return append([]diagnose.Finding{}, diagnose.New(v.objects, config).ConnectionEntries(entries)...), nil, nil
}
