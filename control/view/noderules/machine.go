package noderules

import (
	"fmt"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// Machine is the machine of all rules of one family, a service proxy's among them; nil: the node has none.
func (r *Rules) Machine(family iptables.Family) (*netfilter.Machine, error) {
	dumps, err := r.Dumps(family)
	if err != nil || len(dumps) == 0 {
		return nil, err
	}
	return netfilter.New(dumps, nil, &r.Network, netfilter.Options{})
}

// Dumps are the rules of one family, each rule once: tables that iptables lists are not those of nftables.
func (r *Rules) Dumps(family iptables.Family) (dumps []*iptables.Dump, err error) {
	others := tablesOfIptables(r.Listings)
	for i := range r.Listings {
		l := &r.Listings[i]
		var d *iptables.Dump
		switch {
		case strings.TrimSpace(l.Text) == "":
			continue
		case l.Program == NFTables:
			d, err = compile(l.Text, family, func(t *nftables.Table) bool { return others[nameOf(t)] })
		case l.family() == family:
			d, err = l.dump()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.Program, err)
		}
		if d != nil && len(d.Tables) > 0 {
			dumps = append(dumps, d)
		}
	}
	return dumps, nil
}
