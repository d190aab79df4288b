package lab

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/control/view/noderules"
)

// Firewall reads the firewall rules of a node, and its routes to addresses, as a findings.Firewall.
func (l *Lab) Firewall(ctx context.Context, node string, to []netip.Addr) (rules *noderules.Rules, err error) {
	d, err := l.daemon(node)
	if err != nil {
		return nil, err
	}
	err = d.ns.Do(func() (err error) {
		rules, err = noderules.Read(ctx, to)
		return err
	})
	return rules, err
}

// loadFirewalls loads the rules that nodes have by the lab's file.
func (l *Lab) loadFirewalls() error {
	for _, n := range l.Spec().Nodes {
		if n.Firewall == "" {
			continue
		}
		if _, err := l.topology.find(n.Name).Run(n.Firewall, "nft", "-f", "-"); err != nil {
			return fmt.Errorf("firewall of node %s: %w", n.Name, err)
		}
	}
	return nil
}
