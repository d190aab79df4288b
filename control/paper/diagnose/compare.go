package diagnose

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// CompareRules compares the Services of a node's rules, of one address family, with what objects ask for: the rules that
// kube-proxy would write for them on the node, with the configuration that the node's rules show. reason says why they were
// not compared; empty: they were.
func CompareRules(dumps []*iptables.Dump, objects *kube.Objects, node string) (found []Finding, reason string, err error) {
	var is *iptables.Dump
	var read *audit.Node
	for _, d := range dumps {
		if n := audit.Read(d); len(n.Services) > 0 {
			if is != nil {
				return nil, "both back ends of iptables have rules of kube-proxy", nil
			}
			is, read = d, n
		}
	}
	switch {
	case is == nil:
		return nil, "the rules show no Service", nil
	case read.OtherMode() != "":
		return nil, read.OtherMode(), nil
	}
	config := audit.Config(node, read)
	table, _ := servicetable.Table(objects, config)
	family := decision.IPv4
	if is.Family == iptables.IPv6 {
		family = decision.IPv6
	}
	var text bytes.Buffer
	if err := kubechains.Render(&text, kubechains.Rules(table, family, audit.Kernel(read))); err != nil {
		return nil, "", err
	}
	want, err := iptables.Parse(&text, iptables.Options{Family: is.Family})
	if err != nil {
		return nil, "", fmt.Errorf("the rules for the objects: %w", err)
	}
	for _, c := range audit.Compare(want, is, false).Services {
		found = append(found, differing(&c))
	}
	return found, "", nil
}

// differing is the finding about a service port whose rules are others than the objects ask for.
func differing(c *audit.ServiceChange) Finding {
	s := c.Service()
	f := Finding{Code: RulesOutdated, Do: "see whether kube-proxy on the node still gets changes (its log, and its metric kubeproxy_sync_proxy_rules_last_timestamp_seconds); the objects and the rules have to be of the same time"}
	switch c.Change() {
	case audit.Removed:
		f.Text = fmt.Sprintf("%s is among the objects, and the node's rules do not have it", s.Title())
	case audit.Added:
		f.Text = fmt.Sprintf("the node's rules have %s, which is not among the objects", s.Title())
	case audit.Changed:
		var texts []string
		for _, d := range c.Details {
			switch d.Change {
			case audit.Added:
				texts = append(texts, "the rules have "+d.Text)
			case audit.Removed:
				texts = append(texts, "the rules lack "+d.Text)
			case audit.Changed:
				texts = append(texts, d.Text+" (objects -> rules)")
			}
		}
		f.Text = fmt.Sprintf("the node's rules for %s are not what the objects ask for: %s", s.Title(), strings.Join(texts, "; "))
	}
	return f
}
