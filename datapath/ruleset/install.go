package ruleset

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/hostnet"
)

// Ruleset is the installed ruleset of one network namespace. It is not safe for
// concurrent use.
type Ruleset struct {
	spec        Spec
	conn        *nftables.Conn
	table       *nftables.Table
	sets        *sets
	watch       *watch
	followed    *decision.Table     // the table in the sets; nil: they are empty
	reversePath hostnet.ReversePath // their expected elements
	loaded      *state              // the ruleset as the kernel returns it
	audited     uint32              // the generation of the last audit that found no difference; 0: none
}

// queueingChain is the chain that has the counters of [Ruleset.Queued].
const queueingChain = "new_flows"

// FeatureError reports that the kernel lacks a feature that the ruleset needs.
type FeatureError struct {
	Feature string // what is missing
	Option  string // the kernel's configuration options that provide it
	Err     error
}

// Error names the feature and the option.
func (e *FeatureError) Error() string {
	return fmt.Sprintf("the kernel has no %s (%v): it needs %s", e.Feature, e.Err, e.Option)
}

// Unwrap returns the kernel's error.
func (e *FeatureError) Unwrap() error { return e.Err }

// Probe checks the kernel's features with rules that are never installed, and reports whether it
// has nft's own queue expression. The error is a [FeatureError] if a feature is missing, or the
// kernel's error if the caller may not change its rules. It works on the calling thread's network
// namespace.
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
		{"match on connection tracking", "CONFIG_NF_CONNTRACK, CONFIG_NFT_CT", ctState("new", expr.CtStateBitNEW, true)},
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

// tryChain loads a chain with a rule into a temporary table and removes everything, in one
// transaction.
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

// Install loads the ruleset into the calling thread's network namespace, in one transaction that
// also removes the table of an earlier run. If there was one, packets that wait in any queue of
// the namespace are lost, as with every removal of a base chain; their senders retransmit them.
func Install(spec Spec) (*Ruleset, error) {
	r := &Ruleset{spec: spec, table: &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}}
	r.sets = newSets(r.table, &spec)
	var err error
	// Watched first, so that no change is missed.
	if r.watch, err = watchTable(r.sets); err != nil {
		return nil, err
	}
	if err = r.connect(); err == nil {
		err = r.install()
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// connect opens the connection for changes of the rules, again after an error.
func (r *Ruleset) connect() error {
	if r.conn != nil {
		_ = r.conn.CloseLasting() // its requests are done, or have failed
	}
	var err error
	if r.conn, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(r.watch.ignore)); err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	return nil
}

// ignore makes the watch ignore the connection's own changes.
func (w *watch) ignore(conn *netlink.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var address unix.Sockaddr
	if e := raw.Control(func(fd uintptr) { address, err = unix.Getsockname(int(fd)) }); e != nil || err != nil {
		return errors.Join(e, err)
	}
	if a, ok := address.(*unix.SockaddrNetlink); ok {
		w.self.Store(a.Pid)
	}
	return nil
}

// Counters count packets since the ruleset was installed last.
type Counters struct {
	// Queued were sent to the queues, including those that did not fit and passed undecided: the
	// kernel does not count these anywhere else (nfnetlink_queue.c, __nfqnl_enqueue_packet).
	Queued uint64
	// InvalidDropped were forwarded packets that conntrack calls invalid.
	InvalidDropped uint64
}

// Counters reads the counters of the rules.
func (r *Ruleset) Counters() (c Counters, err error) {
	if c.Queued, err = r.count(queueingChain); err == nil && !r.spec.TCPLiberal {
		c.InvalidDropped, err = r.count(forwardChain)
	}
	if err != nil {
		return Counters{}, fmt.Errorf("read the counters of nftables table inet %s: %w", TableName, err)
	}
	return c, nil
}

// count sums up the counters of a chain's rules.
func (r *Ruleset) count(chain string) (uint64, error) {
	rules, err := r.conn.GetRules(r.table, &nftables.Chain{Name: chain})
	if err != nil {
		return 0, err
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

// Changed has a value when another program has changed our table, or may have: call
// [Ruleset.Audit].
func (r *Ruleset) Changed() <-chan struct{} { return r.watch.Changed() }

// maxInstalls is how often the table is loaded again if another program changes it at once.
const maxInstalls = 5

// install loads the table and, the first time, reads it back from the kernel.
func (r *Ruleset) install() error {
	for range maxInstalls {
		if err := r.load(); err != nil || r.loaded != nil {
			return err
		}
		is, err := readState()
		if err != nil {
			return fmt.Errorf("read nftables table inet %s: %w", TableName, err)
		}
		// If another program replaced rules one for one within this millisecond, they would count
		// as ours.
		if is.matches(r.spec.chains(r.sets), r.sets.all()) {
			r.loaded = is
			return nil
		}
	}
	return fmt.Errorf("nftables table inet %s is changed by another program as soon as it is loaded", TableName)
}

func (r *Ruleset) load() error {
	conn, table, spec := r.conn, r.table, &r.spec
	r.followed, r.audited = nil, 0
	conn.AddTable(table) // so that there is a table to delete
	conn.DelTable(table)
	conn.AddTable(table)
	for _, s := range r.sets.all() {
		if err := conn.AddSet(s.nft, nil); err != nil {
			return fmt.Errorf("set %s: %w", s.name, err)
		}
	}
	r.addChains(spec.chains(r.sets))
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("install nftables table inet %s: %w", TableName, err)
	}
	return nil
}

// addChains adds chains with their rules to the open transaction.
func (r *Ruleset) addChains(chains []chain) {
	for _, c := range chains {
		r.addChain(c)
		r.addRules(c)
	}
}

func (r *Ruleset) addChain(c chain) {
	nc := &nftables.Chain{Name: c.name, Table: r.table, Type: c.kind, Hooknum: c.hook}
	if c.hook != nil {
		nc.Priority = nftables.ChainPriorityRef(c.priority)
	}
	r.conn.AddChain(nc)
}

func (r *Ruleset) addRules(c chain) {
	for _, rl := range c.rules {
		r.conn.AddRule(&nftables.Rule{Table: r.table, Chain: &nftables.Chain{Name: c.name, Table: r.table}, Exprs: rl.exprs()})
	}
}

// StopQueueing lets new flows pass undecided from now on: the first step of an orderly shutdown,
// after which the queues drain. Base chains stay, so no waiting packet is lost.
func (r *Ruleset) StopQueueing() error {
	r.conn.FlushChain(&nftables.Chain{Name: queueingChain, Table: r.table})
	if err := r.conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stop queueing in nftables table inet %s: %w", TableName, err)
	}
	return nil
}

// Remove removes the table.
func (r *Ruleset) Remove() error {
	r.conn.DelTable(r.table)
	err := r.conn.Flush()
	switch {
	case errors.Is(err, unix.ENOENT):
		err = nil // it was removed already
	case err != nil:
		err = fmt.Errorf("remove nftables table inet %s: %w", TableName, err)
	}
	return errors.Join(err, r.Close())
}

// Cleanup removes the table of an earlier run from the calling thread's network namespace, and
// reports whether there was one.
func Cleanup() (removed bool, err error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	defer conn.CloseLasting() // Flush has reported every error
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
	err := r.watch.Close()
	if r.conn != nil {
		err = errors.Join(err, r.conn.CloseLasting())
	}
	return err
}
