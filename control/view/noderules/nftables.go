package noderules

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// NFTables and NFTablesText are the programs whose listings are those of nftables: all rules as JSON, and as text with handles.
const (
	NFTables     = "nft -j list ruleset"
	NFTablesText = "nft -a list ruleset"
)

// nftables are the filter chains of the kernel's own rules, without those that iptables-nft writes, and without a service proxy's.
type nftables struct {
	base  []*nftChain // in the order in which packets pass them
	all   map[nftName]*nftChain
	sets  map[nftName]*nftSet
	texts map[nftRuleName]string
}

// nftName is the name of a chain or a set; without one, that of its table.
type nftName struct{ family, table, name string }

// nftRuleName is a rule's chain and handle.
type nftRuleName struct {
	chain  nftName
	handle string
}

type nftChain struct {
	Family, Table, Name string
	Type, Hook, Policy  string
	Prio                int
	rules               []nftRule
}

func (c *nftChain) place() string             { return c.Family + " " + c.Table }
func (c *nftChain) named(name string) nftName { return nftName{c.Family, c.Table, name} }

type nftRule struct {
	Handle int
	Expr   []nftStatement
}

// nftStatement is a statement by its kind.
type nftStatement map[string]json.RawMessage

// UnmarshalJSON also reads a statement that nft prints as a string because it has no JSON form: "xt", of a match or target of
// iptables.
func (s *nftStatement) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		*s = nftStatement{"xt": nil}
		return nil
	}
	return json.Unmarshal(b, (*map[string]json.RawMessage)(s))
}

type nftSet struct {
	Name string
	Size int
	Elem []json.RawMessage
}

// truth is what is known of a match.
type truth int

const (
	no truth = iota
	yes
	sometimes // now and then
	unknown
)

// newNFTables reads the listings; other programs' tables, which are listed as iptables' rules, are left out.
func newNFTables(text, readable string, others map[nftName]bool) (*nftables, error) {
	var list struct {
		NFTables []struct {
			Chain *nftChain
			Set   *struct {
				nftSet
				Family, Table string
			}
			Rule *struct {
				nftRule
				Family, Table, Chain string
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("%s: %w", NFTables, err)
	}
	n := &nftables{all: make(map[nftName]*nftChain), sets: make(map[nftName]*nftSet), texts: ruleTexts(readable)}
	for _, o := range list.NFTables {
		switch {
		case o.Chain != nil && !others[o.Chain.named("")] && !proxyTable(o.Chain.Table):
			n.all[o.Chain.named(o.Chain.Name)] = o.Chain
			if o.Chain.Type == "filter" && hooks[o.Chain.Hook] {
				n.base = append(n.base, o.Chain)
			}
		case o.Set != nil:
			n.sets[nftName{o.Set.Family, o.Set.Table, o.Set.Name}] = &o.Set.nftSet
		case o.Rule != nil:
			if c := n.all[nftName{o.Rule.Family, o.Rule.Table, o.Rule.Chain}]; c != nil {
				c.rules = append(c.rules, o.Rule.nftRule)
			}
		}
	}
	slices.SortStableFunc(n.base, func(a, b *nftChain) int { return cmp.Compare(a.Prio, b.Prio) })
	return n, nil
}

var hooks = map[string]bool{"prerouting": true, "input": true, "forward": true, "output": true, "postrouting": true}

// proxyTable reports whether a table is a service proxy's, which has decided the flow already.
func proxyTable(name string) bool { return name == "nfqproxy" || name == "kube-proxy" }

// counts are those in the text of a rule, which the finding has.
var counts = regexp.MustCompile(`counter packets [0-9]+ bytes [0-9]+`)

// ruleTexts are the rules of a listing as text, without their handles.
func ruleTexts(listing string) map[nftRuleName]string {
	texts := make(map[nftRuleName]string)
	var chain nftName
	for line := range strings.Lines(listing) {
		line = strings.TrimSpace(line)
		text, handle, ok := strings.Cut(line, " # handle ")
		switch fields := strings.Fields(line); {
		case !ok:
		case fields[0] == "table" && len(fields) > 2:
			chain.family, chain.table = fields[1], fields[2]
		case fields[0] == "chain" && strings.HasSuffix(text, "{"):
			chain.name = fields[1]
		default:
			texts[nftRuleName{chain, handle}] = counts.ReplaceAllString(text, "counter")
		}
	}
	return texts
}
