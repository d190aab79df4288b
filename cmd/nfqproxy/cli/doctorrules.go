package cli

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/paper/savednode"
	"github.com/nfqproxy/nfqproxy/control/paper/survey"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// rulesMemory is the heap size above which the garbage collector works harder: 10,000 services with 10 endpoints each need
// half of it.
const rulesMemory = 800 << 20

// ofRules returns the findings about dumps or bundles, and the scope of the examination of each family of each node.
func (f *doctorFlags) ofRules(stdin io.Reader, stderr io.Writer) (found []diagnose.Finding, examined []*diagnose.Examined, err error) {
	path, flag := bundleIn(f.table.name), "--rules"
	if path != "" {
		flag = "--node " + path
	}
	if f.kubeconfig != "" || f.lab != "" || f.server != "" || f.daemons.flags.Changed("cluster") {
		return nil, nil, fmt.Errorf("%s cannot be used with --kubeconfig, --lab, --server and --cluster: give one of them", flag)
	}
	if path == "" && len(f.rules) == 0 && len(f.table.objects) > 0 {
		return nil, nil, errors.New("--ipvs cannot be used with --objects: IPVS has no names of Services")
	}
	var objects *manifest.Objects
	if len(f.table.objects) > 0 {
		name := f.table.name
		if path != "" {
			f.table.name = "" // each bundle has its node's
		}
		if objects, err = f.table.read(stdin); err != nil {
			return nil, nil, err
		}
		f.table.name = name
		note(stderr, objects.Notes...)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(min(rulesMemory, debug.SetMemoryLimit(-1))))
	if path == "" && len(f.rules) == 0 {
		found, err = f.ofIPVS(nil, nil)
		return found, nil, err
	}
	if path == "" || len(f.rules) > 0 {
		in, err := newRuleInput(stdin, f.rules, path)
		if err != nil {
			return nil, nil, err
		}
		return f.examine(in, objects, stderr)
	}
	nodes, err := savednode.OpenAll(path)
	if err != nil {
		return nil, nil, fmt.Errorf("--node: %w", err)
	}
	if len(nodes) == 1 {
		return f.examine(inputOf(nodes[0]), objects, stderr)
	}
	all := make([]diagnose.OfOneNode, len(nodes))
	for i, n := range nodes {
		of, about, err := f.examine(inputOf(n), objects, stderr)
		if err != nil {
			return nil, nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		for j := range of {
			of[j].Object = ""
		}
		all[i] = diagnose.OfOneNode{Node: n.Name, Findings: of}
		examined = append(examined, about...)
	}
	return diagnose.MergeNodes(all), examined, nil
}

// examine examines the rules of one node, and compares them with objects, if there are some.
func (f *doctorFlags) examine(in *ruleInput, objects *manifest.Objects, stderr io.Writer) (found []diagnose.Finding, examined []*diagnose.Examined, err error) {
	all, err := in.dumps(stderr, iptables.FamilyUnknown)
	if err != nil {
		return nil, nil, err
	}
	for _, family := range familiesOf(all) {
		dumps, err := in.of(all, family)
		if err != nil {
			return nil, nil, err
		}
		var known survey.Known
		var notes []string
		if in.node != nil {
			if known.Host, notes, err = in.node.Host(family); err != nil {
				return nil, nil, fmt.Errorf("--node: %w", err)
			}
			if known.Sets, err = in.sets(""); err != nil {
				return nil, nil, err
			}
		}
		of, about, err := diagnose.ExamineNode(dumps, known)
		if err != nil {
			return nil, nil, fmt.Errorf("%s %s: %w", in.flag(), filesOf(dumps), err)
		}
		if objects != nil {
			name := f.table.name
			if in.node != nil {
				name = nodeNamed(objects, in.node)
			}
			differ, reason, err := diagnose.CompareRules(dumps, &objects.Objects, name)
			if err != nil {
				return nil, nil, fmt.Errorf("%s %s: %w", in.flag(), filesOf(dumps), err)
			}
			if of = append(of, differ...); reason != "" {
				notes = append(notes, "whether the rules are what the objects ask for: "+reason)
			}
		}
		if in.node != nil {
			for _, m := range in.node.MissingRules() {
				notes = append(notes, "not collected: "+m)
			}
		}
		about.Not = append(about.Not, notes...)
		for i := range of {
			of[i].Object = filesOf(dumps)
		}
		found, examined = append(found, of...), append(examined, about)
	}
	servers, err := f.ofIPVS(in, all)
	if err != nil {
		return nil, nil, err
	}
	found = append(found, servers...)
	diagnose.Sort(found)
	return found, examined, nil
}
