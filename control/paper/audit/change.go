package audit

import "github.com/nfqproxy/nfqproxy/datapath/paper/iptables"

// TableChange is what changed in a table. If it is added or removed, Chains has all of it.
type TableChange struct {
	Name   string        `json:"name"` // "nat"; of nftables "ip kube-proxy"
	Change Change        `json:"change"`
	Chains []ChainChange `json:"chains"`
}

// ChainChange is what changed in a chain; of nftables also in a set or map, whose elements are the rules then.
type ChainChange struct {
	Name         string       `json:"name"` // "set cluster-ips"
	Change       Change       `json:"change"`
	PolicyBefore string       `json:"policyBefore,omitempty"` // if it changed
	PolicyAfter  string       `json:"policyAfter,omitempty"`
	Rules        []RuleChange `json:"rules,omitempty"`
}

// RuleChange is a rule that changed, or an element.
type RuleChange struct {
	Change     Change `json:"change"`
	LineBefore int    `json:"lineBefore,omitempty"`
	LineAfter  int    `json:"lineAfter,omitempty"`
	Rule       string `json:"rule"`
}

// Moved is the change of a rule that is in another place.
const Moved Change = "moved"

func changeOf(added, removed bool) Change {
	switch {
	case added:
		return Added
	case removed:
		return Removed
	}
	return Changed
}

func newTableChange(t *iptables.TableDiff) TableChange {
	j := TableChange{Name: t.Name, Change: changeOf(t.Added, t.Removed), Chains: []ChainChange{}}
	for i := range t.Chains {
		c := &t.Chains[i]
		builtin := iptables.Builtin(t.Name, c.Name)
		chain := ChainChange{Name: c.Name, Change: changeOf(c.Before == nil && !builtin, c.After == nil && !builtin)}
		if c.PolicyChanged() {
			before, after := c.Policies()
			chain.PolicyBefore, chain.PolicyAfter = before.String(), after.String()
		}
		for _, r := range c.Rules {
			rule := RuleChange{Change: changeOf(r.Before == nil, r.After == nil)}
			if r.Moved() {
				rule.Change = Moved
			}
			if r.Before != nil {
				rule.LineBefore, rule.Rule = r.Before.Line, r.Before.String()
			}
			if r.After != nil {
				rule.LineAfter, rule.Rule = r.After.Line, r.After.String()
			}
			chain.Rules = append(chain.Rules, rule)
		}
		j.Chains = append(j.Chains, chain)
	}
	return j
}
