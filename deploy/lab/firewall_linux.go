package lab

import (
	"context"
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
