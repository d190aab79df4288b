package otherproxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// RuleChange is a change of the rules that kube-proxy has for an endpoint.
type RuleChange struct {
	// Chain is the name of the endpoint's chain.
	Chain string
	// Filled: a transaction added its first rules; if not, it removed them. Transactions that only replace its rules are
	// no changes.
	Filled bool
	At     time.Time // when the kernel's notification was received
}

// ruleBuffer is how many bytes of notifications may wait. Programs write all rules at once.
const ruleBuffer = 8 << 20

// Rules receives the changes of kube-proxy's rules.
type Rules struct{ conn *netlink.Conn }

// OpenRules begins to receive changes of kube-proxy's rules in the calling thread's network namespace. It needs
// CAP_NET_ADMIN, to join the multicast group, and writes nothing. Only nftables notifies: the legacy back end of iptables
// does not.
func OpenRules() (*Rules, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("receive changes of rules: %w", err)
	}
	if err := errors.Join(conn.SetReadBuffer(ruleBuffer), conn.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return nil, errors.Join(fmt.Errorf("receive changes of rules: %w", err), conn.Close())
	}
	return &Rules{conn}, nil
}

// Run reports the changes of each transaction until the context ends, and closes r. missed is called when the kernel
// dropped notifications.
func (r *Rules) Run(ctx context.Context, changed func([]RuleChange), missed func()) error {
	// The deadline wakes Receive.
	stop := context.AfterFunc(ctx, func() { _ = r.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var t transaction
	for {
		messages, err := r.conn.Receive()
		switch {
		case ctx.Err() != nil:
			return r.conn.Close()
		case errors.Is(err, unix.ENOBUFS):
			t = transaction{partial: true}
			missed()
		case err != nil:
			return errors.Join(fmt.Errorf("receive changes of rules: %w", err), r.conn.Close())
		}
		now := time.Now()
		for _, m := range messages {
			if list := t.take(m, now); len(list) > 0 {
				changed(list)
			}
		}
	}
}

// transaction are the notifications of a transaction until its last one, that of the ruleset's new generation.
type transaction struct {
	chains map[string]*change
	// partial: some were dropped, so nothing follows from the others.
	partial bool
}

// change is what happened to the rules of a chain.
type change struct{ added, removed bool }

// take takes a message, and returns the changes of the transaction that it ends.
func (t *transaction) take(m netlink.Message, now time.Time) (list []RuleChange) {
	const newGeneration, newRule, delRule = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN, unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE, unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELRULE
	switch m.Header.Type {
	case newGeneration:
		for name, c := range t.chains {
			if !t.partial && c.added != c.removed {
				list = append(list, RuleChange{name, c.added, now})
			}
		}
		*t = transaction{}
		return list
	case newRule, delRule:
	default:
		return nil
	}
	if len(m.Data) < nfgenmsgLength {
		return nil
	}
	a := nft.Parse(m.Data[nfgenmsgLength:])
	name, ok := endpointChain(a.Text(unix.NFTA_RULE_TABLE), a.Text(unix.NFTA_RULE_CHAIN))
	if !ok {
		return nil
	}
	c := t.chains[name]
	if c == nil {
		if t.chains == nil {
			t.chains = make(map[string]*change)
		}
		c = new(change)
		t.chains[name] = c
	}
	if m.Header.Type == newRule {
		c.added = true
	} else {
		c.removed = true
	}
	return nil
}

// nfgenmsgLength is the length of the header of netfilter's messages (struct nfgenmsg).
const nfgenmsgLength = 4

// endpointChain reports whether a chain is that of an endpoint in kube-proxy's mode iptables or nftables.
func endpointChain(table, chain string) (name string, ok bool) {
	switch table {
	case "nat":
		ok = strings.HasPrefix(chain, "KUBE-SEP-")
	case "kube-proxy":
		ok = strings.HasPrefix(chain, "endpoint-")
	}
	return chain, ok
}
