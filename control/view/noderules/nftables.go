package noderules

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftrules"
)

// NFTables is the program that lists the rules of nftables.
const NFTables = "nft -j list ruleset"

// native are the rules of nftables for one family, without those that iptables-nft writes, and without a service proxy's.
type native struct {
	rules
	doubting *netfilter.Machine // it follows what decides at random, and what is not known
}

// newNative reads the listing for a family. Tables of iptables' names are left out, which are listed by iptables.
func newNative(text string, family iptables.Family, others map[string]bool, network *netfilter.Host) (*native, error) {
	d, err := compile(text, family, func(t *nftables.Table) bool { return others[nameOf(t)] || proxyTable(t.Name) })
	if d == nil {
		return nil, err
	}
	m, err := netfilter.New([]*iptables.Dump{d}, nil, network, netfilter.Options{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", NFTables, err)
	}
	return &native{rules{NFTables, d, m}, m.With(netfilter.Options{Doubts: true})}, nil
}

// compile reads the listing for a family without some of its tables; nil: there are no others.
func compile(text string, family iptables.Family, without func(*nftables.Table) bool) (*iptables.Dump, error) {
	rs, err := nftables.Read(NFTables, strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	rs.Tables = slices.DeleteFunc(rs.Tables, without)
	d, _ := nftrules.Compile(rs, family)
	return d, nil
}

// nameOf is a table's family and name.
func nameOf(t *nftables.Table) string { return string(t.Family) + " " + t.Name }

// proxyTable reports whether a table is a service proxy's, which has decided the flow already.
func proxyTable(name string) bool { return name == "nfqproxy" || name == "kube-proxy" }

// find finds what drops a flow or its replies; nil: nothing does, as far as can be known.
func (n *native) find(f *Flow) *Dropped {
	p, begin := n.first(f)
	ways := allWays(n.doubting, p, begin)
	if d := n.dropped(ways); d != nil {
		d.Full = n.fullSet(p, begin)
		return d
	}
	for i := range ways {
		if answer, ok := ways[i].Answer(); ok {
			d := n.dropped(allWays(n.doubting, answer, func() *netfilter.State { return n.after(p, begin) }))
			if d != nil {
				d.Reply = true
			}
			return d
		}
	}
	return nil
}

// dropped is the drop at the end of all ways, or of some where chance or the number of packets decides; nil: there is none, or
// it depends on what is not known.
func (n *native) dropped(ways []netfilter.Way) *Dropped {
	var found *Drop
	all := true
	for i := range ways {
		w := &ways[i]
		drop := ended(w.Result)
		switch {
		case w.Verdict == netfilter.Stopped, slices.ContainsFunc(w.Doubts, func(d netfilter.Doubt) bool { return !d.Passing() }):
			return nil
		case drop == nil:
			all = false
		default:
			found = drop
		}
	}
	if found == nil {
		return nil
	}
	d := &Dropped{Drop: found, Program: "nft", Sometimes: !all, Packets: n.packets(found), Uncounted: true}
	if found.Rule == nil {
		d.Text = "the policy drop of chain " + found.Chain
		return d
	}
	d.Uncounted = found.Rule.Counters == nil
	d.Text = "rule " + counts.ReplaceAllString(found.Rule.String(), "counter")
	d.Remove = fmt.Sprintf("nft delete rule %s %s handle %d", found.Table, found.Chain, found.Rule.Handle)
	return d
}

// counts are those in the text of a rule, which the finding has.
var counts = regexp.MustCompile(`counter packets [0-9]+ bytes [0-9]+`)

// fullSet is the set without room that a packet met; empty: none.
func (n *native) fullSet(p iptables.Packet, begin func() *netfilter.State) string {
	for _, w := range allWays(n.machine, p, begin) {
		for i := range w.Steps {
			if strings.HasPrefix(w.Steps[i].Text, nftrules.FullSet) {
				return w.Steps[i].Text
			}
		}
	}
	return ""
}
