package ruleset

import (
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// Ruleset is the installed ruleset of one network namespace. It is not safe for
// concurrent use.
type Ruleset struct {
	spec Spec
	*kernel
	tables      tables
	watch       *nft.Watch
	adopted     bool                // the tables are of an earlier run
	followed    *decision.Table     // the table in the sets; nil: they are empty
	hairpins    hairpins            // of that table
	stale       bool                // clients may be bound to endpoints that it does not have
	reversePath hostnet.ReversePath // their expected elements
	loaded      [2]*state           // the tables as the kernel returns them
	audited     uint32              // the generation of the last audit that found no difference; 0: none
}

// queueingChain is the chain that has the counters of [Ruleset.Queued].
const queueingChain = "new_flows"

// missing is the error if the kernel lacks a feature that the ruleset needs, which its configuration options provide.
func missing(feature, options string, err error) error {
	return fmt.Errorf("the kernel has no %s (%w): it needs %s", feature, err, options)
}

// Probe checks the kernel's features with rules that are never installed, and reports whether it
// has nft's own queue expression. The error names a missing feature, or is the kernel's error if the
// caller may not change its rules. It works on the calling thread's network namespace.
func Probe() (native bool, err error) {
	for _, f := range []struct {
		feature, option string
		chain           chain
		clause          clause
	}{
		{"nftables with tables of families ip and ip6", "CONFIG_NF_TABLES, CONFIG_NF_TABLES_IPV4, CONFIG_NF_TABLES_IPV6", chain{}, clause{}},
		{"match on connection tracking", "CONFIG_NF_CONNTRACK, CONFIG_NFT_CT", chain{}, ctState("new", expr.CtStateBitNEW, true)},
		{"connection marks", "CONFIG_NF_CONNTRACK_MARK", chain{}, connMark(1, true)},
		{"reject in nftables", "CONFIG_NFT_REJECT, CONFIG_NFT_REJECT_IPV4, CONFIG_NFT_REJECT_IPV6", chain{}, ipv4.rejectPortUnreachable()},
		{"address translation", "CONFIG_NF_NAT, CONFIG_NFT_NAT", translation()[0], clause{}},
	} {
		switch err := try(0, f.chain, f.clause.exprs); {
		case errors.Is(err, unix.EPERM):
			return false, fmt.Errorf("nftables: %w", err)
		case err != nil:
			return false, missing(f.feature, f.option, err)
		}
	}
	if try(0, chain{}, queue(0, 1, true).exprs) == nil {
		return true, nil
	}
	if err := try(0, chain{}, queue(0, 1, false).exprs); err != nil {
		return false, missing("way to queue packets to user space", "CONFIG_NETFILTER_NETLINK_QUEUE and either CONFIG_NFT_QUEUE, or CONFIG_NFT_COMPAT with CONFIG_NETFILTER_XT_TARGET_NFQUEUE", err)
	}
	return false, nil
}

// try loads a temporary table with flags and a chain with a rule, and removes everything, in one
// transaction. The table is dormant: the removal of a hook would lose all packets that wait in queues,
// also those of a datapath that is to be replaced.
func try(flags uint32, c chain, exprs []expr.Any) error {
	conn, err := OpenConnection(false)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // run has reported every error
	k := &kernel{conn: conn, table: TableName + "-probe"}
	t := &table{family: ipv4}
	c.name, c.rules = "probe", nil
	if len(exprs) > 0 {
		c.rules = []rule{{clause{exprs: exprs}}}
	}
	k.addTable(t, unix.NFT_TABLE_F_DORMANT|flags)
	k.addChain(t, c)
	k.addRules(t, c)
	k.delTable(t)
	return k.run()
}

// Install puts the ruleset for a service table into force in the calling thread's network namespace, through this
// connection, which may own the tables. Queueing starts last, when the sets have their elements.
//
// The tables of an earlier run are adopted: their base chains and elements stay, so that no waiting packet is lost, and
// the kernel's copy of the service table keeps working. Those without an owner stay without one. keepQueueing leaves
// their rules that queue packets until the last step, for a daemon that still serves the queues; otherwise the copy
// decides meanwhile. Tables that cannot be changed in place are replaced; then packets that wait in any queue of the
// namespace are lost, as with every removal of a base chain, and their senders retransmit them.
func (c *Connection) Install(spec Spec, t *decision.Table, keepQueueing bool) (*Ruleset, error) {
	spec.Copy, spec.Idle = CopyNodeOf(t), spec.OnlyServices && isIdle(nil, t)
	r := &Ruleset{spec: spec, kernel: &kernel{conn: c, table: TableName}, tables: newTables(&spec), hairpins: newHairpins()}
	before, err := nft.Generation()
	if err == nil {
		err = r.install(t, keepQueueing)
	}
	if err == nil {
		err = r.startWatch(before)
	}
	if err != nil {
		return nil, errors.Join(err, r.Abandon())
	}
	return r, nil
}

// startWatch watches the installed tables. It does not earlier, because the kernel makes an event of
// each element if a program listens, which takes as long as adding it. Fresh tables need no audit if
// nobody else has changed rules since the generation before: each transaction makes one more
// (nf_tables_api.c, nf_tables_commit).
func (r *Ruleset) startWatch(generation uint32) error {
	before, err := nft.Generation()
	if err != nil {
		return fmt.Errorf("read the generation of nftables: %w", err)
	}
	if r.watch, err = watchTables(r.tables, r.conn); err != nil {
		return err
	}
	if after, err := nft.Generation(); err != nil || after != before {
		r.watch.Notify() // a change may have been missed
	} else if !r.adopted && after == generation+r.commits {
		r.audited = after
	}
	return nil
}

// Abandon closes the ruleset, and removes the tables unless they were adopted: then the kernel's copy
// serves as before.
func (r *Ruleset) Abandon() error {
	if r.adopted {
		return errors.Join(r.StopQueueing(), r.Close())
	}
	return r.Remove()
}

// Release lets another process adopt the tables, until Resume.
func (r *Ruleset) Release() { r.conn.release() }

// Resume ends a release: [Ruleset.Audit] must follow. It works on the calling thread's network namespace.
func (r *Ruleset) Resume() error { return r.conn.resume() }

// Counters count packets since the ruleset was last installed.
type Counters struct {
	// Queued were sent to the queues, including those that did not fit and passed undecided: the
	// kernel does not count these anywhere else (nfnetlink_queue.c, __nfqnl_enqueue_packet).
	Queued uint64
	// InvalidDropped were forwarded packets that are invalid for conntrack.
	InvalidDropped uint64
	// Copied are the packets that the kernel's copy of the service table decided: the first of each flow
	// that it translated, and all that it refused.
	Copied uint64
}

// Counters reads the counters of the rules, in the calling thread's network namespace.
func (r *Ruleset) Counters() (c Counters, err error) {
	for _, t := range r.tables {
		err = errors.Join(err, t.dump(unix.NFT_MSG_GETRULE, func(a nft.Attributes) {
			switch chain := a.Text(unix.NFTA_RULE_CHAIN); {
			case queues(chain):
				c.Queued += packets(a)
			case decidesByCopy(chain):
				c.Copied += packets(a)
			case chain == forwardChain && !r.spec.TCPLiberal:
				c.InvalidDropped += packets(a)
			}
		}))
	}
	if err != nil {
		return Counters{}, fmt.Errorf("read the counters of nftables tables %s: %w", r.tables, err)
	}
	return c, nil
}

// packets sums up the counters of a rule. It makes no garbage: counters are read each second.
func packets(rule nft.Attributes) (n uint64) {
	for _, e := range rule.Nested(unix.NFTA_RULE_EXPRESSIONS).All() {
		if e := nft.Parse(e); e.IsText(unix.NFTA_EXPR_NAME, "counter") {
			n += e.Nested(unix.NFTA_EXPR_DATA).Uint64(unix.NFTA_COUNTER_PACKETS)
		}
	}
	return n
}

// Changed has a value when another program has changed our tables, or may have: call
// [Ruleset.Audit].
func (r *Ruleset) Changed() <-chan struct{} { return r.watch.Changed() }

// maxInstalls is how often the tables are loaded again if another program changes them at once.
const maxInstalls = 5

// install adopts or loads the tables, and reads them back from the kernel.
func (r *Ruleset) install(t *decision.Table, keepQueueing bool) error {
	for range maxInstalls {
		var err error
		if r.adopted, err = r.adopt(t, keepQueueing); err == nil && !r.adopted {
			// All services are served from the same moment on.
			r.replaceTables(false)
			err = r.fillEmpty(t)
			r.addOwnRules()
		}
		if err == nil && r.adopted {
			err = r.dropStale(t, nil)
		}
		if err == nil {
			err = r.startQueueing()
		}
		if err != nil {
			return fmt.Errorf("install nftables tables %s: %w", r.tables, err)
		}
		// If another program replaced rules one for one within this millisecond, they would count
		// as ours.
		if ok, err := r.readLoaded(); ok || err != nil {
			return err
		}
	}
	return r.contested()
}

func (r *Ruleset) contested() error {
	return fmt.Errorf("nftables tables %s are changed by another program as soon as they are loaded", r.tables)
}

// read reads both tables as the kernel has them.
func (r *Ruleset) read() (states [2]*state, err error) {
	for i, t := range r.tables {
		if states[i], err = t.readState(); err != nil {
			return states, fmt.Errorf("read nftables tables %s: %w", r.tables, err)
		}
	}
	return states, nil
}

// replaceTables adds the tables to the open transaction, with the rules of their own chains or without.
func (r *Ruleset) replaceTables(rules bool) {
	r.followed, r.hairpins, r.audited = nil, newHairpins(), 0
	for _, t := range r.tables {
		r.replaceTable(t)
		for _, s := range t.sets {
			r.newSet(s)
		}
		chains := r.spec.chains(t)
		for i := range chains {
			if _, demanded := t.balances[chains[i].name]; !demanded && !rules {
				chains[i].rules = nil
			}
		}
		r.addChains(t, chains)
	}
}

// addOwnRules adds the rules that replaceTables leaves out, but for those that queue packets.
func (r *Ruleset) addOwnRules() {
	for _, t := range r.tables {
		for _, c := range r.spec.chains(t) {
			if _, demanded := t.balances[c.name]; !demanded && c.name != queueingChain {
				r.addRules(t, c)
			}
		}
	}
}

// newSet adds a set to the open transaction, without elements but that of the switch.
func (r *Ruleset) newSet(s *set) {
	r.addSet(s)
	if s == s.table.alive {
		r.addElement(s, s.table.aliveKey(), "")
	}
}

// replaceTable adds an empty table in the place of an existing one to the open transaction.
func (r *Ruleset) replaceTable(t *table) {
	r.addTable(t, 0) // so that there is a table to delete
	r.delTable(t)
	r.addTable(t, r.conn.flags)
}

// addChains adds chains with their rules to the open transaction.
func (r *Ruleset) addChains(t *table, chains []chain) {
	for _, c := range chains {
		r.addChain(t, c)
		r.addRules(t, c)
	}
}

// StopQueueing lets new flows pass undecided from now on: the first step of an orderly shutdown,
// after which the queues drain. Base chains stay, so no waiting packet is lost.
func (r *Ruleset) StopQueueing() error {
	for _, t := range r.tables {
		r.flushChain(t, queueingChain)
	}
	if err := r.run(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stop queueing in nftables tables %s: %w", r.tables, err)
	}
	return nil
}

// LeaveEstablished is [Ruleset.Remove] for a namespace with translated flows that must continue: it leaves tables of
// the same name, with only the rules that these flows need. New flows match none of our rules. [Cleanup] removes the
// tables, the next [Connection.Install] replaces them.
func (r *Ruleset) LeaveEstablished() error {
	for _, t := range r.tables {
		r.replaceTable(t)
		r.addChains(t, r.spec.established())
	}
	if err := r.run(); err != nil {
		err = fmt.Errorf("reduce nftables tables %s to what established flows need: %w", r.tables, err)
		return errors.Join(err, r.Remove())
	}
	return r.Close()
}

// Remove removes the tables.
func (r *Ruleset) Remove() error {
	_, err := r.cleanup()
	return errors.Join(err, r.Close())
}

// Cleanup removes the tables of an earlier run from the calling thread's network namespace, and
// returns their names as in nft's language; none: there were none.
func Cleanup() (removed []string, err error) {
	conn, err := OpenConnection(false)
	if err != nil {
		return nil, err
	}
	removed, err = (&kernel{conn: conn, table: TableName}).cleanup()
	return removed, errors.Join(err, conn.Close())
}

func (k *kernel) cleanup() (removed []string, err error) {
	for _, f := range []family{ipv4, ipv6} {
		existing, err := nft.Get(f.nfproto, unix.NFT_MSG_GETTABLE, nft.NamedTable(TableName))
		if err != nil {
			return removed, fmt.Errorf("look for nftables table %s %s: %w", f.name, TableName, err)
		}
		if existing == nil {
			continue
		}
		t := &table{family: f}
		k.delTable(t)
		switch err := k.run(); {
		case errors.Is(err, unix.ENOENT): // another program was faster
		case err != nil:
			return removed, fmt.Errorf("remove nftables table %s: %w", t, err)
		default:
			removed = append(removed, t.String())
		}
	}
	return removed, nil
}

// Close leaves the tables in the kernel, and the connection open.
func (r *Ruleset) Close() error {
	if r.watch == nil {
		return nil
	}
	return r.watch.Close()
}
