package ruleset

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Ruleset is the installed ruleset of one network namespace. It is not safe for
// concurrent use.
type Ruleset struct {
	spec        Spec
	conn        *nftables.Conn
	table       *nftables.Table
	sets        *sets
	watch       *watch
	followed    *decision.Table // what the sets show; nil: they are empty
	reversePath ReversePath     // likewise
}

// FeatureError says that the kernel lacks something the ruleset needs.
type FeatureError struct {
	Feature string // what is missing
	Option  string // the kernel's configuration options that provide it
	Err     error
}

// Error names the feature and the option.
func (e *FeatureError) Error() string {
	return fmt.Sprintf("the kernel has no %s (%v): it needs %s", e.Feature, e.Err, e.Option)
}

// Unwrap gives the kernel's error.
func (e *FeatureError) Unwrap() error { return e.Err }

// Probe finds out what the kernel can do, by means of rules that are never
// installed, and says whether it has nft's own queue expression. The error is a
// [FeatureError] if something is missing, or that of the kernel if the caller may
// not change its rules. It works on the calling thread's network namespace.
func Probe() (native bool, err error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	defer conn.CloseLasting()

	try := func(exprs ...expr.Any) error { return tryChain(conn, &nftables.Chain{}, exprs) }
	if err := try(); err != nil {
		if errors.Is(err, unix.EPERM) {
			return false, fmt.Errorf("nftables: %w", err)
		}
		return false, &FeatureError{"nftables with tables of family inet", "CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET", err}
	}
	for _, f := range []struct {
		feature, option string
		clause          clause
	}{
		{"match on connection tracking", "CONFIG_NF_CONNTRACK, CONFIG_NFT_CT", ctStateNew()},
		{"connection marks", "CONFIG_NF_CONNTRACK_MARK", connMark(1, true)},
		{"reject in inet tables", "CONFIG_NFT_REJECT, CONFIG_NFT_REJECT_INET", rejectPortUnreachable()},
	} {
		if err := try(f.clause.exprs...); err != nil {
			return false, &FeatureError{f.feature, f.option, err}
		}
	}
	natChain := &nftables.Chain{Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(priorityDNAT)}
	if err := tryChain(conn, natChain, nil); err != nil {
		return false, &FeatureError{"address translation", "CONFIG_NF_NAT, CONFIG_NFT_NAT", err}
	}
	if try(queue(0, 1, true).exprs...) == nil {
		return true, nil
	}
	if err := try(queue(0, 1, false).exprs...); err != nil {
		return false, &FeatureError{"way to queue packets to user space", "CONFIG_NETFILTER_NETLINK_QUEUE and either CONFIG_NFT_QUEUE, or CONFIG_NFT_COMPAT with CONFIG_NETFILTER_XT_TARGET_NFQUEUE", err}
	}
	return false, nil
}

// tryChain loads a chain with a rule into a table of its own and takes all away, in
// one transaction.
func tryChain(conn *nftables.Conn, chain *nftables.Chain, exprs []expr.Any) error {
	table := conn.AddTable(&nftables.Table{Name: TableName + "-probe", Family: nftables.TableFamilyINet})
	chain.Name, chain.Table = "probe", table
	conn.AddChain(chain)
	if len(exprs) > 0 {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
	}
	conn.DelTable(table)
	return conn.Flush()
}

// Install loads the ruleset into the calling thread's network namespace, in one
// transaction that also takes away what an earlier run may have left. Packets that
// wait in any queue of the namespace are lost if there was such a rest, as always
// when a base chain goes; they are sent again by their senders.
func Install(spec Spec) (*Ruleset, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	r := &Ruleset{spec: spec, conn: conn, table: &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}}
	if err := r.install(); err != nil {
		return nil, errors.Join(err, conn.CloseLasting())
	}
	if _, err := r.Restore(); err != nil {
		return nil, errors.Join(err, r.Remove())
	}
	return r, nil
}

// Restore is for when [Ruleset.Lost] has spoken. If the table is gone, it loads the ruleset
// again, with empty sets, and says so; if it is there after all, it stays untouched: to
// load it would cost packets that wait in the queues.
func (r *Ruleset) Restore() (reinstalled bool, err error) {
	for {
		if r.watch != nil {
			if err := r.watch.Close(); err != nil {
				return reinstalled, err
			}
			r.watch = nil
		}
		// Watched first and looked at then, so that no removal falls between; and watched
		// anew, so that our own removals of what was there before are past.
		if r.watch, err = watchTable(TableName); err != nil {
			return reinstalled, err
		}
		if there, err := r.there(); there || err != nil {
			return reinstalled, err
		}
		if err := r.install(); err != nil {
			return reinstalled, err
		}
		reinstalled = true
	}
}

// there says whether the table is in the kernel.
func (r *Ruleset) there() (bool, error) {
	tables, err := r.conn.ListTablesOfFamily(r.table.Family)
	if err != nil {
		return false, fmt.Errorf("look for nftables table inet %s: %w", TableName, err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName }), nil
}

// Queued counts the packets that were sent to the queues since the ruleset was
// installed last, those included that found no room and passed undecided: the kernel does
// not count these anywhere else (nfnetlink_queue.c, __nfqnl_enqueue_packet).
func (r *Ruleset) Queued() (uint64, error) {
	rules, err := r.conn.GetRules(r.table, &nftables.Chain{Name: "new_flows"})
	if err != nil {
		return 0, fmt.Errorf("read the counters of nftables table inet %s: %w", TableName, err)
	}
	var n uint64
	for _, rl := range rules {
		for _, e := range rl.Exprs {
			if c, ok := e.(*expr.Counter); ok {
				n += c.Packets
			}
		}
	}
	return n, nil
}

// Lost gives a channel that is closed when somebody else removed the table, or may
// have.
func (r *Ruleset) Lost() <-chan struct{} { return r.watch.lost }

func (r *Ruleset) install() error {
	conn, table, spec := r.conn, r.table, &r.spec
	r.sets, r.followed, r.reversePath = newSets(table, spec), nil, ReversePath{}
	conn.AddTable(table) // so that there is one to delete
	conn.DelTable(table)
	conn.AddTable(table)
	for _, s := range r.sets.all() {
		if err := conn.AddSet(s.nft, nil); err != nil {
			return fmt.Errorf("set %s: %w", s.name, err)
		}
	}
	for _, c := range spec.chains(r.sets) {
		nc := &nftables.Chain{Name: c.name, Table: table, Type: c.kind, Hooknum: c.hook}
		if c.hook != nil {
			nc.Priority = nftables.ChainPriorityRef(c.priority)
		}
		conn.AddChain(nc)
		for _, rl := range c.rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: nc, Exprs: rl.exprs()})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("install nftables table inet %s: %w", TableName, err)
	}
	return nil
}

// StopQueueing lets new flows pass undecided from now on: the first step of an
// orderly end, after which the queues run dry. Base chains stay, so no waiting packet is
// lost.
func (r *Ruleset) StopQueueing() error {
	r.conn.FlushChain(&nftables.Chain{Name: "new_flows", Table: r.table})
	if err := r.conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stop queueing in nftables table inet %s: %w", TableName, err)
	}
	return nil
}

// Remove takes the table away.
func (r *Ruleset) Remove() error {
	r.conn.DelTable(r.table)
	err := r.conn.Flush()
	switch {
	case errors.Is(err, unix.ENOENT):
		err = nil // somebody did already
	case err != nil:
		err = fmt.Errorf("remove nftables table inet %s: %w", TableName, err)
	}
	return errors.Join(err, r.Close())
}

// Cleanup removes the table that an earlier run left in the calling thread's network
// namespace, and says whether there was one.
func Cleanup() (removed bool, err error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	defer conn.CloseLasting() //nolint:errcheck // everything is said by Flush
	conn.DelTable(&nftables.Table{Name: TableName, Family: nftables.TableFamilyINet})
	switch err := conn.Flush(); {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("remove nftables table inet %s: %w", TableName, err)
	}
	return true, nil
}

// Close leaves the table in the kernel.
func (r *Ruleset) Close() error {
	var err error
	if r.watch != nil {
		err = r.watch.Close()
	}
	return errors.Join(err, r.conn.CloseLasting())
}
