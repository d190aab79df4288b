package diagnose

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
	"github.com/nfqproxy/nfqproxy/datapath/paper/kubesave"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// TableOf is the service table of a node for objects, with the configuration of kube-proxy that the node's rules show.
func TableOf(dumps []*iptables.Dump, objects *kube.Objects, node string) *decision.Table {
	var read []*audit.Node
	for _, d := range dumps {
		if n := audit.Read(d); len(n.Services) > 0 {
			read = append(read, n)
		}
	}
	t, _ := servicetable.Table(objects, audit.Config(node, read...))
	return t
}

// Differences returns how the Services of a node's rules or virtual servers, of one address family, differ from what objects
// ask for: the rules, or virtual servers, that kube-proxy would write for them on the node, with the configuration that the
// node's rules show. What the objects ask for is before. reason says why they were not compared; empty: they were.
func Differences(dumps []*iptables.Dump, servers *ipvs.State, family iptables.Family, objects *kube.Objects, node string) (changes []audit.ServiceChange, reason string, err error) {
	var is, empty *iptables.Dump
	var read *audit.Node
	other := ""
	for _, d := range dumps {
		n := audit.Read(d)
		other = cmp.Or(other, n.OtherMode())
		if empty == nil && len(n.Services) == 0 && len(n.Gaps) == 0 && (n.Mode == proxymode.ModeNFTables || hasServicesChain(d)) {
			empty = d
		}
		if len(n.Services) > 0 && !n.Mode.IPVS() {
			if is != nil {
				return nil, "both back ends have rules of kube-proxy", nil
			}
			is, read = d, n
		}
	}
	if is == nil && empty != nil && servers == nil && other == "" { // kube-proxy's rules are complete, and have no Service
		is, read = empty, audit.Read(empty)
	}
	switch {
	case is == nil && servers != nil:
		return audit.CompareIPVS(TableOf(dumps, objects, node), servers, family), "", nil
	case is == nil && other != "":
		return nil, other, nil
	case is == nil:
		return nil, "the rules show no Service", nil
	}
	want, err := rulesFor(TableOf(dumps, objects, node), audit.Kernel(read), is.Family)
	if err != nil {
		return nil, "", err
	}
	asked := audit.Read(want)
	asPrinted(asked.Services, read.Services, objects)
	return audit.CompareServices(asked, read), "", nil
}

// rulesFor are the rules of iptables that kube-proxy would write for a service table.
func rulesFor(t *decision.Table, kernel kubechains.Kernel, family iptables.Family) (*iptables.Dump, error) {
	var text bytes.Buffer
	if err := kubesave.Render(&text, kubechains.Rules(t, family, kernel)); err != nil {
		return nil, err
	}
	d, err := iptables.Parse(&text, iptables.Options{Family: family})
	if err != nil {
		return nil, fmt.Errorf("the rules for the objects: %w", err)
	}
	return d, nil
}

// CompareRules are the findings about the differences between a node's rules or virtual servers and objects. Objects without the
// Service of the API servers are not all of a cluster: the services that only the node has are others.
func CompareRules(changes []audit.ServiceChange, objects *kube.Objects) (found []Finding, others []string) {
	const few = 3
	var missing []string
	for i := range changes {
		if c := &changes[i]; c.Change() == audit.Removed {
			missing = append(missing, c.Service().Title())
		}
	}
	all, told := slices.ContainsFunc(objects.Services, isAPIServer), false
	for i := range changes {
		c := &changes[i]
		switch {
		case c.Change() == audit.Added && !all:
			others = append(others, c.Service().Title())
		case c.Change() != audit.Removed || len(missing) <= few:
			found = append(found, differing(c))
		case !told: // one finding about all
			f := differing(c)
			f.Text = strings.Replace(f.Text, missing[0]+" is", fmt.Sprintf("%d service ports, such as %s, are", len(missing), nearest.Few(missing[:few])), 1)
			found, told = append(found, f), true
		}
	}
	return found, others
}

// differing is the finding about a service port whose rules, or virtual servers, are others than the objects ask for.
func differing(c *audit.ServiceChange) Finding {
	s, what := c.Service(), "rules"
	if c.IPVS {
		what = "virtual servers"
	}
	f := Finding{Code: RulesOutdated, Do: fmt.Sprintf("check whether kube-proxy on the node still gets changes (its log, and its metric kubeproxy_sync_proxy_rules_last_timestamp_seconds); the objects and the %s must be from the same time", what)}
	switch c.Change() {
	case audit.Removed:
		f.Text = fmt.Sprintf("%s is in the objects, but not in the node's %s", s.Title(), what)
	case audit.Added:
		f.Text = fmt.Sprintf("the node's %s have %s, which is not in the objects", what, s.Title())
	case audit.Changed:
		var texts []string
		for _, d := range c.Details {
			switch d.Change {
			case audit.Added:
				texts = append(texts, fmt.Sprintf("the %s have %s", what, d.Text))
			case audit.Removed:
				texts = append(texts, fmt.Sprintf("the %s lack %s", what, d.Text))
			case audit.Changed:
				texts = append(texts, fmt.Sprintf("%s (objects -> %s)", d.Text, what))
			}
		}
		f.Text = fmt.Sprintf("the node's %s for %s differ from the objects: %s", what, s.Title(), strings.Join(texts, "; "))
	}
	return f
}
