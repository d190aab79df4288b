package diagnose

import (
	"slices"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// DaemonRules is the file name of the rules that stand for nfqproxy's decisions.
const DaemonRules = "nfqproxy's decisions"

// HasDaemon reports whether rules of a host have nfqproxy's tables.
func HasDaemon(d *iptables.Dump) bool {
	return d.Ruleset != nil && proxymode.DaemonTable(d.Ruleset) != nil
}

// ofDaemon reports whether rules stand for nfqproxy's decisions.
func ofDaemon(d *iptables.Dump) bool { return d.File == DaemonRules }

// ReplaceDaemon replaces nfqproxy's tables by the rules of table nat that kube-proxy would write for the objects: the daemon decides as they
// do, and the kernel translates at the same place. There is one dump more for each dump with such a table, before all others. The dumps are not
// modified.
func ReplaceDaemon(dumps []*iptables.Dump, objects *kube.Objects, config servicetable.NodeConfig) (replaced []*iptables.Dump, err error) {
	for _, d := range dumps {
		if !HasDaemon(d) {
			replaced = append(replaced, d)
			continue
		}
		rules, err := daemonRules(objects, config, d.Family)
		if err != nil {
			return nil, err
		}
		rest, ruleset := *d, *d.Ruleset
		ruleset.Tables = slices.DeleteFunc(slices.Clone(ruleset.Tables), func(t *nftables.Table) bool { return t.Name == proxymode.DaemonName })
		rest.Tables = slices.DeleteFunc(slices.Clone(d.Tables), func(t *iptables.Table) bool {
			return t.Name == "ip "+proxymode.DaemonName || t.Name == "ip6 "+proxymode.DaemonName
		})
		rest.Ruleset = &ruleset
		replaced = append(append([]*iptables.Dump{rules}, replaced...), &rest)
	}
	return replaced, nil
}

// daemonRules are the rules of table nat of one family.
func daemonRules(objects *kube.Objects, config servicetable.NodeConfig, family iptables.Family) (*iptables.Dump, error) {
	table, _ := servicetable.Table(objects, config)
	d, err := rulesFor(table, kubechains.Kernel{}, family)
	if err != nil {
		return nil, err
	}
	d.File = DaemonRules
	d.Tables = slices.DeleteFunc(d.Tables, func(t *iptables.Table) bool { return t.Name != "nat" })
	for _, t := range d.Tables {
		for _, r := range t.Rules {
			r.File = DaemonRules
		}
	}
	return d, nil
}
