package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/lab/desired"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// faults are those of a lab. They are safe for concurrent use.
type faults struct {
	mu   sync.Mutex
	last int
	list []injected
}

// injected is a fault that was put in force.
type injected struct {
	Fault
	effect
}

// effect is what a fault changed.
type effect struct {
	undo func(context.Context) error
	// stands reports whether the change still exists: somebody in the lab may have undone it, and entries expire.
	stands func() (bool, error)
}

// over reports whether the change is known to be gone.
func (e *effect) over() bool {
	stands, err := e.stands()
	return err == nil && !stands
}

// injectionError is the error for a valid fault that the host does not take.
type injectionError struct {
	answer *observe.Error
	cause  error
}

// Error returns the text of the flow API's error.
func (e *injectionError) Error() string { return e.answer.Error() }

// Unwrap returns the flow API's error, and its cause.
func (e *injectionError) Unwrap() []error { return []error{e.answer, e.cause} }

// AddFault puts a fault in force, and returns it as it is listed.
func (l *Lab) AddFault(_ context.Context, f Fault) (Fault, error) {
	if err := validateFault(l.Spec(), &f); err != nil {
		return f, err
	}
	host := l.topology.find(f.Host)
	if host == nil {
		return f, desired.Invalid("host", &labfile.UnknownHostError{Name: f.Host, Names: l.Spec().Hosts()}) // it has just ended
	}
	l.faults.mu.Lock()
	defer l.faults.mu.Unlock()
	f.ID = l.faults.last + 1
	made, err := l.inject(host.Namespace, &f)
	if err != nil {
		return f, &injectionError{&observe.Error{Status: http.StatusConflict, Message: fmt.Sprintf("fault %s on %s: %v", f.Kind, f.Host, err)}, err}
	}
	l.faults.last = f.ID
	l.faults.list = append(l.faults.list, injected{f, made})
	l.hub.publish(Event{Changes: []string{fmt.Sprintf("fault %d: %s", f.ID, f.Text)}})
	return f, nil
}

// Faults are those in force, in the order in which they came. It forgets those that somebody undid by hand, and
// entries that have expired.
func (l *Lab) Faults() (all []Fault) {
	l.faults.mu.Lock()
	defer l.faults.mu.Unlock()
	l.faults.list = slices.DeleteFunc(l.faults.list, func(f injected) bool {
		if f.over() {
			l.hub.publish(Event{Changes: []string{fmt.Sprintf("fault %d is over (undone by hand, or expired): %s", f.ID, f.Text)}})
			return true
		}
		all = append(all, f.Fault)
		return false
	})
	return all
}

// RemoveFault ends a fault; 0: all of them. It returns those that it ended.
func (l *Lab) RemoveFault(ctx context.Context, id int) (ended []Fault, err error) {
	l.faults.mu.Lock()
	defer l.faults.mu.Unlock()
	if id != 0 && !slices.ContainsFunc(l.faults.list, func(f injected) bool { return f.ID == id }) {
		return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("no fault %d: \"nfqproxy lab fault list\" lists those of the lab", id)}
	}
	l.faults.list = slices.DeleteFunc(l.faults.list, func(f injected) bool {
		if id != 0 && f.ID != id {
			return false
		}
		// A host may have ended, and its fault with it; or somebody has undone the fault.
		if e := f.undo(ctx); e != nil && l.topology.find(f.Host) != nil && !f.over() {
			err = errors.Join(err, fmt.Errorf("fault %d, %s: %w", f.ID, f.Text, e))
			return false
		}
		ended = append(ended, f.Fault)
		l.hub.publish(Event{Changes: []string{fmt.Sprintf("fault %d is over: %s", f.ID, f.Text)}})
		return true
	})
	return ended, err
}

// inject makes a fault.
func (l *Lab) inject(ns *netns.Namespace, f *Fault) (effect, error) {
	switch f.Kind {
	case "delay":
		return l.injectDelay(ns, f)
	case "firewall":
		return injectRule(ns, f, forwardRule(f))
	case "loss":
		return injectRule(ns, f, lossRule(f))
	case "full-table":
		return injectTable(ns, f, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle, func(c *nftables.Conn, t *nftables.Table, chain *nftables.Chain) error {
			return fullRules(c, t, chain, f)
		})
	case "freeze":
		d := l.daemons[f.Host]
		return effect{
			undo:   func(context.Context) error { return d.signal(unix.SIGCONT) },
			stands: func() (bool, error) { return d.status().State == string(Frozen), nil },
		}, d.freeze()
	case "kill":
		d := l.daemons[f.Host]
		state, _, _ := d.state()
		if state != Ready {
			return effect{}, fmt.Errorf("%s is %s", cmp.Or(d.what, "the daemon"), state)
		}
		return effect{
			undo: func(ctx context.Context) error { return l.StartDaemon(ctx, f.Host) },
			stands: func() (bool, error) {
				state, _, _ := d.state()
				return state != Ready, nil
			},
		}, l.KillDaemon(f.Host)
	case "route":
		return injectRoute(ns, f)
	case "rp-filter":
		return injectFilter(ns)
	case "stale-entry":
		return injectEntry(ns, f)
	}
	return effect{}, errors.New("unknown kind")
}

// signal sends a signal to the daemon, which must run.
func (d *daemon) signal(s unix.Signal) error {
	p := d.current()
	if p == nil || p.ended() {
		return d.fail(errors.New("not running"), nil)
	}
	return p.cmd.Process.Signal(s)
}

// freeze stops the daemon, and returns when none of its threads runs any more: the kernel stops them one by one.
func (d *daemon) freeze() error {
	if err := d.signal(unix.SIGSTOP); err != nil {
		return err
	}
	_, pid, _ := d.state()
	for pid != 0 {
		// Its exit ends the wait, too. WNOWAIT leaves the state to os.Process.
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("waitid", err)
		}
	}
	return nil
}

func (l *Lab) injectDelay(ns *netns.Namespace, f *Fault) (effect, error) {
	for _, other := range l.faults.list {
		if other.Kind == f.Kind && other.Host == f.Host && !other.over() {
			return effect{}, fmt.Errorf("fault %d is of the same kind: remove it first", other.ID)
		}
	}
	err := ns.SetDelay(hostDevice, time.Duration(f.Delay), time.Duration(f.Jitter))
	return effect{
		undo:   func(context.Context) error { return ns.ClearDelay(hostDevice) },
		stands: func() (bool, error) { return ns.HasDelay(hostDevice) },
	}, err
}

// rule is what a fault adds to a table of its own.
type rule struct {
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	matches  []expr.Any
}

// injectRule makes a table with one rule.
func injectRule(ns *netns.Namespace, f *Fault, r rule) (effect, error) {
	return injectTable(ns, f, r.hook, r.priority, func(c *nftables.Conn, table *nftables.Table, chain *nftables.Chain) error {
		verdict := expr.Any(&expr.Verdict{Kind: expr.VerdictDrop})
		if f.Reject {
			verdict = &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(r.matches, &expr.Counter{}, verdict)})
		return nil
	})
}

// injectTable makes a table with one chain. Its name is that of the fault, so that those who list the rules learn nothing else
// from it.
func injectTable(ns *netns.Namespace, f *Fault, hook *nftables.ChainHook, priority *nftables.ChainPriority, fill func(*nftables.Conn, *nftables.Table, *nftables.Chain) error) (effect, error) {
	table := &nftables.Table{Name: fmt.Sprintf("filter-%d", f.ID), Family: nftables.TableFamilyINet}
	chain := &nftables.Chain{Name: "filter", Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: priority}
	err := withTables(ns, func(c *nftables.Conn) error {
		c.AddTable(table)
		return fill(c, table, c.AddChain(chain))
	})
	return effect{
		undo: func(context.Context) error {
			return withTables(ns, func(c *nftables.Conn) error { c.DelTable(table); return nil })
		},
		stands: func() (drops bool, err error) {
			err = withTables(ns, func(c *nftables.Conn) error {
				rules, err := c.GetRules(table, chain)
				drops = slices.ContainsFunc(rules, isDrop)
				return err
			})
			if errors.Is(err, unix.ENOENT) { // the table or the chain was deleted
				return false, nil
			}
			return drops, err
		},
	}, err
}

// isDrop reports whether a rule of a fault drops or rejects packets.
func isDrop(r *nftables.Rule) bool {
	return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		switch e := e.(type) {
		case *expr.Verdict:
			return e.Kind == expr.VerdictDrop
		case *expr.Reject:
			return true
		}
		return false
	})
}

// withTables changes the nftables of a namespace in one transaction.
func withTables(ns *netns.Namespace, change func(*nftables.Conn) error) error {
	c, err := nftables.New(nftables.WithNetNSFd(ns.FD()))
	if err != nil {
		return err
	}
	if err := change(c); err != nil {
		return err
	}
	return c.Flush()
}

func forwardRule(f *Fault) rule {
	offset, length, nfproto := uint32(16), uint32(4), byte(unix.NFPROTO_IPV4) // of the destination (RFC 791)
	if f.To.Addr().Is6() {
		offset, length, nfproto = 24, 16, unix.NFPROTO_IPV6 // RFC 8200
	}
	mask := make([]byte, length)
	for i := range f.To.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	// FORWARD comes after the translation of the destination: no packet to a Service has its address there.
	matches := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{nfproto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: mask, Xor: make([]byte, length)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: f.To.Masked().Addr().AsSlice()},
	}
	if f.Protocol != 0 {
		matches = append(matches, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(f.Protocol)}})
	}
	if f.Port != 0 {
		matches = append(matches, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(f.Port)})
	}
	return rule{nftables.ChainHookForward, nftables.ChainPriorityFilter, matches}
}

// lossRule drops at random, before conntrack sees the packet.
func lossRule(f *Fault) rule {
	const modulus = 100_000
	return rule{nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, []expr.Any{
		&expr.Numgen{Register: 1, Modulus: modulus, Type: unix.NFT_NG_RANDOM},
		// The number is in the machine's byte order, and compared in the network's.
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: binaryutil.BigEndian.PutUint32(uint32(math.Round(f.Percent * modulus / 100)))},
	}}
}

// entryLife is how long a connection counts after its last packet: as long as the kernel keeps a closed one (TIME_WAIT).
const entryLife = 2 * time.Minute

// fullRules drop new connections above a number of those of the last minutes, ended ones too, as a full table has them. The
// kernel's own limit is that of the machine, not of a namespace.
func fullRules(c *nftables.Conn, t *nftables.Table, chain *nftables.Chain, f *Fault) error {
	state := func(bits uint32) []expr.Any {
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		}
	}
	if f.Connections > 0 {
		set := &nftables.Set{Table: t, Name: "connections", KeyType: nftables.TypeMark, Dynamic: true, HasTimeout: true, Timeout: entryLife, Size: f.Connections}
		if err := c.AddSet(set, nil); err != nil {
			return err
		}
		// Without room for a connection the rule ends, and the next one drops it.
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: append(state(expr.CtStateBitNEW|expr.CtStateBitESTABLISHED),
			&expr.Ct{Key: ctKeyID, Register: 1},
			&expr.Dynset{SrcRegKey: 1, SetName: set.Name, SetID: set.ID, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: entryLife},
			&expr.Verdict{Kind: expr.VerdictReturn})})
	}
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: append(state(expr.CtStateBitNEW), &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})})
	return nil
}

// ctKeyID is NFT_CT_ID (linux/netfilter/nf_tables.h).
const ctKeyID = expr.CtKey(23)

func injectRoute(ns *netns.Namespace, f *Fault) (effect, error) {
	route := netns.Route{Destination: f.To.Masked(), Via: f.Via, Link: hostDevice, OnLink: true}
	before, err := ns.ReplaceRoute(route)
	return effect{
		undo:   func(context.Context) error { return ns.RestoreRoute(route.Destination, before) },
		stands: func() (bool, error) { return ns.HasRoute(route) },
	}, err
}

// injectFilter sets the source validation of all devices.
func injectFilter(ns *netns.Namespace) (effect, error) {
	names := []string{"net.ipv4.conf.all.rp_filter", "net.ipv4.conf." + hostDevice + ".rp_filter"}
	before := make([]string, len(names))
	var err error
	for i, name := range names {
		var e error
		if before[i], e = ns.Sysctl(name); e == nil {
			e = ns.SetSysctl(name, "1")
		}
		err = errors.Join(err, e)
	}
	return effect{
		undo: func(context.Context) (err error) {
			for i, name := range names {
				err = errors.Join(err, ns.SetSysctl(name, strings.TrimSpace(before[i])))
			}
			return err
		},
		stands: func() (set bool, err error) {
			// The kernel uses the larger of the two (Documentation/networking/ip-sysctl.rst).
			for _, name := range names {
				value, e := ns.Sysctl(name)
				set, err = set || strings.TrimSpace(value) == "1", errors.Join(err, e)
			}
			return set, err
		},
	}, err
}

// injectEntry makes a connection entry of UDP. It replaces one that the client's own packets have made.
func injectEntry(ns *netns.Namespace, f *Fault) (effect, error) {
	tuple := conntrack.Tuple{Protocol: uint8(decision.UDP), Source: f.From, Destination: netip.AddrPortFrom(f.To.Addr(), f.Port)}
	err := withEntries(ns, func(t *conntrack.Table) error {
		if err := deleteEntry(t, tuple); err != nil {
			return err
		}
		results := make([]conntrack.Result, 1)
		t.Establish([]conntrack.Entry{{Tuple: tuple, Destination: f.Endpoint}}, results)
		if r := results[0]; r.Outcome != conntrack.Created {
			return errors.Join(fmt.Errorf("the entry is %v", r.Outcome), r.Err)
		}
		return nil
	})
	return effect{
		undo: func(context.Context) error {
			return withEntries(ns, func(t *conntrack.Table) error { return deleteEntry(t, tuple) })
		},
		stands: func() (stale bool, err error) {
			err = withEntries(ns, func(t *conntrack.Table) error {
				own, err := entriesOf(t, tuple)
				stale = slices.ContainsFunc(own, func(s conntrack.State) bool { return s.Endpoint() == f.Endpoint })
				return err
			})
			return stale, err
		},
	}, err
}

// entriesOf returns the entry of a tuple, if there is one.
func entriesOf(t *conntrack.Table, tuple conntrack.Tuple) (own []conntrack.State, err error) {
	err = t.Dump(conntrack.Filter{Protocol: tuple.Protocol}, func(s *conntrack.State) {
		if s.Original == tuple {
			own = append(own, *s)
		}
	})
	return own, err
}

// deleteEntry deletes the entry of a tuple, if there is one.
func deleteEntry(t *conntrack.Table, tuple conntrack.Tuple) error {
	own, err := entriesOf(t, tuple)
	errs := make([]error, len(own))
	t.Delete(own, errs)
	for _, e := range errs {
		if !conntrack.IsNotFound(e) { // it has expired
			err = errors.Join(err, e)
		}
	}
	return err
}

// withEntries calls f with the connection table of a namespace.
func withEntries(ns *netns.Namespace, f func(*conntrack.Table) error) error {
	return ns.Do(func() error {
		t, err := conntrack.Open(new(conntrack.Locks))
		if err != nil {
			return err
		}
		return errors.Join(f(t), t.Close())
	})
}
