package audit

import (
	"encoding/json"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// The form of a comparison as JSON. Line numbers are those of the file that the rule is
// in; 0 is left out.
type (
	comparisonJSON struct {
		Version   int           `json:"version"`
		Same      bool          `json:"same"`
		Services  []serviceJSON `json:"services"`
		Proxy     []Detail      `json:"proxy"`
		Tables    []tableJSON   `json:"tables"`
		Reordered int           `json:"reordered"`
	}
	serviceJSON struct {
		Name    string   `json:"name"` // or without one its address
		Change  Change   `json:"change"`
		Details []Detail `json:"details,omitempty"`
		Before  *Service `json:"before,omitempty"`
		After   *Service `json:"after,omitempty"`
	}
	tableJSON struct {
		Name   string      `json:"name"`
		Change Change      `json:"change"`
		Chains []chainJSON `json:"chains"`
	}
	chainJSON struct {
		Name         string     `json:"name"`
		Change       Change     `json:"change"`
		PolicyBefore string     `json:"policyBefore,omitempty"`
		PolicyAfter  string     `json:"policyAfter,omitempty"`
		Rules        []ruleJSON `json:"rules,omitempty"`
	}
	ruleJSON struct {
		Change     Change `json:"change"` // "moved" if it is in another place
		LineBefore int    `json:"lineBefore,omitempty"`
		LineAfter  int    `json:"lineAfter,omitempty"`
		Rule       string `json:"rule"`
	}
)

// moved is the change of a rule that is in another place.
const moved Change = "moved"

// MarshalJSON writes rules as iptables-save prints them, with the numbers of their lines.
func (c *Comparison) MarshalJSON() ([]byte, error) {
	j := comparisonJSON{Version: 1, Same: c.Same(), Services: []serviceJSON{}, Proxy: append([]Detail{}, c.Proxy...), Tables: []tableJSON{}, Reordered: c.Reordered}
	for i := range c.Services {
		s := &c.Services[i]
		j.Services = append(j.Services, serviceJSON{s.Service().Title(), s.Change(), s.Details, s.Before, s.After})
	}
	for i := range c.Tables {
		j.Tables = append(j.Tables, newTableJSON(&c.Tables[i]))
	}
	return json.Marshal(j)
}

func changeOf(added, removed bool) Change {
	switch {
	case added:
		return Added
	case removed:
		return Removed
	}
	return Changed
}

func newTableJSON(t *iptables.TableDiff) tableJSON {
	j := tableJSON{Name: t.Name, Change: changeOf(t.Added, t.Removed), Chains: []chainJSON{}}
	for i := range t.Chains {
		c := &t.Chains[i]
		builtin := iptables.Builtin(t.Name, c.Name)
		chain := chainJSON{Name: c.Name, Change: changeOf(c.Before == nil && !builtin, c.After == nil && !builtin)}
		if c.PolicyChanged() {
			chain.PolicyBefore, chain.PolicyAfter = c.Before.Policy.String(), c.After.Policy.String()
		}
		for _, r := range c.Rules {
			rule := ruleJSON{Change: changeOf(r.Before == nil, r.After == nil)}
			if r.Moved() {
				rule.Change = moved
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
