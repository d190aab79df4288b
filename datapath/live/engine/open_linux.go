package engine

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// Config is the configuration of the datapath.
type Config struct {
	FirstQueue uint16 // number of the first netfilter queue
	Queues     uint16 // number of queues for packets to services, with as many for others; at least 1
	// OtherQueues allows higher queue numbers if another program is bound to one of these.
	OtherQueues bool
	// BusyPoll is how long a worker polls for packets before it sleeps; see [nfqueue.Config].
	BusyPoll time.Duration
	// BatchDelay slows the first worker down, to measure an overload: it sleeps before each batch of packets.
	BatchDelay time.Duration
	// OnlyServices makes the kernel pass flows that are not to a service: they cost less and have
	// no records. Otherwise all new flows are queued.
	OnlyServices bool
	// Seed makes the random numbers reproducible: flows that arrive in the same order get the same
	// endpoints. nil: a random seed.
	Seed *uint64
	// Sink takes every decided flow. It may be nil.
	Sink FlowSink
	// Balancer selects endpoints for service ports with their own algorithm; nil: they are drawn at random.
	Balancer Balancer
	// SecondChance sends a TCP flow that its endpoint refuses or does not answer to another one.
	SecondChance bool
	// Gate selects flows to hold. It may be nil.
	Gate Gate
	// WhenServed is what to do if another process is the datapath of the namespace.
	WhenServed WhenServed
	// Predecessor is the result of CheckLock; nil: Open connects to another process itself.
	Predecessor *Predecessor
	// Rules changes the kernel rules, and stays open; nil: the engine opens its own connection, which does not own the
	// tables.
	Rules *ruleset.Connection
	// KeepRules leaves the kernel rules in place at the end, as after a crash: established flows
	// are still translated, and the kernel's copy of the service table decides new ones.
	KeepRules bool
	// QueueTimeout is how long packets are queued while a worker makes no progress; then the kernel's
	// copy decides. 0: DefaultQueueTimeout.
	QueueTimeout time.Duration
	// HostRules are the host's own nat rules, which the engine applies to translated flows because
	// these bypass the kernel's. nil: they are ignored. The engine does not run it.
	HostRules hostnet.SourceRules
	// Prepare is called when everything else is ready: there is no other datapath, the queues are bound, and no rule is
	// installed. Only then may it change the node. Open returns its error. It may be nil.
	Prepare func() error
	// Alert takes the alerts for the operator, which are also logged. It may be nil.
	Alert func(Alert)
	Log   *slog.Logger
}

// WhenServed is what to do if another process is the datapath of the network namespace.
type WhenServed string

// The values of WhenServed.
const (
	FailWhenServed    WhenServed = "fail"    // Open fails; the default
	WaitWhenServed    WhenServed = "wait"    // until the other process ends
	ReplaceWhenServed WhenServed = "replace" // take over, without a gap; the other process ends
)

// defaultMarks are a packet mark that no combination of other software's flags equals, and our bit
// of the connection mark. The masquerade bit belongs to the node: see decision.Node.
var defaultMarks = Marks{Reject: 0x6e667172, Connection: conntrack.DefaultMark}

// Sizes of the queues. A waiting packet costs the kernel about a kilobyte.
const (
	queueMaxLen = 1024
	// copyRange covers the longest IPv4 header, or an IPv6 header with some
	// extensions, and the ports.
	copyRange  = 192
	readBuffer = 8 << 20
	seenSize   = 1 << 18
)

// Open sets up the datapath in the calling thread's network namespace and starts to queue new flows. [Engine.Run] must
// follow without delay: until then the flows wait. If Open fails, it removes everything it set up. The rules of an
// earlier run are adopted; see [ruleset.Install]. The context ends a wait for another datapath.
func Open(ctx context.Context, cfg Config, host *hostnet.Host, table *decision.Table) (_ *Engine, err error) {
	native, err := Preflight()
	if err != nil {
		return nil, err
	}
	e := &Engine{balancer: cfg.Balancer, apply: make(chan application), checks: make(chan chan<- RuleCheck), ended: make(chan struct{}), sink: cfg.Sink, bound: affinity.New(), log: cfg.Log, keepRules: cfg.KeepRules, alert: cfg.Alert, queueTimeout: cmp.Or(cfg.QueueTimeout, DefaultQueueTimeout)}
	served, err := e.lockFor(ctx, cfg.WhenServed)
	if err != nil {
		return nil, err
	}
	cfg.OtherQueues = cfg.OtherQueues || served
	var locks conntrack.Locks
	defer func() {
		if err != nil {
			if e.lock != nil {
				err = errors.Join(err, e.lock.Close())
			}
			for _, w := range e.workers {
				err = errors.Join(err, w.queue.Close())
			}
			close(e.ended)
			err = errors.Join(err, e.closeConnections())
		}
	}()
	if e.flows, err = conntrack.Open(&locks); err != nil {
		return nil, err
	}
	e.unanswered = conntrack.NewUnanswered()
	if cfg.SecondChance {
		e.retries = newRetries()
	}
	if cfg.Gate != nil {
		c, err := openConnections(&locks, e.unanswered)
		if err != nil {
			return nil, err
		}
		e.heldFlows = newHeldFlows(cfg.Gate, &worker{connections: c, router: host.NewCache(), hostRules: cfg.translator()}, cfg.Sink)
	}
	if e.workers, err = openWorkers(cfg, &locks, e.unanswered); err != nil {
		return nil, err
	}
	for i, w := range e.workers {
		w.router, w.table, w.affinity, w.lease = host.NewCache(), &e.table, e.bound, &e.lease
		w.marks, w.sink, w.heldFlows, w.hostRules = defaultMarks, cfg.Sink, e.heldFlows, cfg.translator()
		w.index, w.balancer, w.retries = i, cfg.Balancer, e.retries
		// A polling worker would block the senders there.
		if cfg.BusyPoll == 0 {
			w.onStart = func() { stayWithQueue(i%int(cfg.Queues), int(cfg.Queues)) }
		}
	}
	e.workers[0].delay = cfg.BatchDelay
	setRand(e.workers, cfg.Seed)
	if err := e.rememberConnections(&locks); err != nil {
		return nil, err
	}
	if cfg.Prepare != nil {
		if err := cfg.Prepare(); err != nil {
			return nil, err
		}
	}
	if err := e.restoreAffinity(table); err != nil {
		return nil, err
	}
	before := cfg.Predecessor
	if before != nil && !served { // it has ended
		_ = before.Close()
	}
	if served {
		if before == nil {
			if before, err = connectToPredecessor(); err != nil {
				return nil, err
			}
		}
		if err := before.takeOver(); err != nil {
			return nil, err
		}
		e.lock = before
	}
	// The rules come last: every queue has a listener by then.
	noReversePath := ruleset.ProbeReversePath()
	e.lease.timeout, e.lease.catchUp = e.queueTimeout, e.readBindings
	heartbeat := newHeartbeat(&e.lease, e.workers, e.log)
	e.heartbeat = heartbeat
	install := ruleset.Install
	if cfg.Rules != nil {
		install = cfg.Rules.Install
	}
	installed, err := install(ruleset.Spec{
		FirstQueue: e.FirstQueue(), Queues: cfg.Queues, OnlyServices: cfg.OnlyServices, Refusals: cfg.SecondChance,
		TCPLiberal: tcpLiberal(), RejectMark: defaultMarks.Reject, MasqueradeMark: table.Node().Mark(), ConnMark: defaultMarks.Connection, CopyMark: conntrack.CopyMark,
		Alive:              heartbeat.alive,
		LocalhostNodePorts: table.Node().LocalhostNodePorts,
		SeenTimeout:        seenTimeout(), SeenSize: seenSize, Native: native,
		ReversePath: noReversePath == nil,
	}, table, served)
	if err != nil {
		return nil, errors.Join(err, heartbeat.Close())
	}
	heartbeat.start()
	e.rules = installed
	if noReversePath != nil {
		e.log.Warn("packets that rp_filter drops leave connection entries for a short time", "error", noReversePath)
	} else if e.reversePath, err = watchReversePath(installed, e.log); err != nil {
		return nil, errors.Join(err, heartbeat.Close(), installed.Abandon())
	}
	var listener *net.UnixListener
	if served {
		// Bindings of flows that the predecessor decided meanwhile.
		if err := errors.Join(before.finish(), e.restoreAffinity(table)); err != nil {
			e.log.Warn("the nfqproxy that was replaced may still run", "error", err)
		}
		e.lock, listener = before.lock, before.listener
	} else {
		listener = listenForSuccessors(e.log)
	}
	e.successors = awaitSuccessors(listener, e.lock.(*os.File), e.log)
	e.table.Store(table)
	e.applied = table
	return e, nil
}

// lockFor takes the lock of the namespace. It reports true, without the lock, if another process has it
// that is to be replaced.
func (e *Engine) lockFor(ctx context.Context, when WhenServed) (served bool, err error) {
	var lock *os.File
	if when == WaitWhenServed {
		lock, err = awaitLock(ctx, e.log)
	} else {
		lock, err = lockNamespace()
	}
	var other servedError
	if errors.As(err, &other) && when == ReplaceWhenServed {
		return true, nil
	}
	if err == nil {
		e.lock = lock
	} else if errors.As(err, &other) {
		err = other.withHint()
	}
	return false, err
}

// translator makes a translator for a worker; nil if the host's rules are ignored.
func (c *Config) translator() hostnet.SourceTranslator {
	if c.HostRules == nil {
		return nil
	}
	return c.HostRules.Translator()
}

// allQueues is the number of all queues; see [ruleset.Spec].
func (c *Config) allQueues() uint16 {
	if c.OnlyServices {
		return c.Queues
	}
	return 2 * c.Queues
}

// openWorkers binds the queues.
func openWorkers(cfg Config, locks *conntrack.Locks, unanswered *conntrack.Unanswered) (workers []*worker, err error) {
	for first := cfg.FirstQueue; ; {
		if workers, err = openWorkersFrom(first, cfg, locks, unanswered); err == nil {
			if first != cfg.FirstQueue && cfg.WhenServed != ReplaceWhenServed {
				cfg.Log.Warn("another program is bound to one of our queues; using other queues", "queue", cfg.FirstQueue, "instead", first, "queues", cfg.allQueues())
			}
			return workers, nil
		}
		var taken *nfqueue.TakenError
		if !cfg.OtherQueues || !errors.As(err, &taken) || int(taken.Number)+int(cfg.allQueues()) >= lockQueue {
			return nil, err
		}
		first = taken.Number + 1
	}
}

func openWorkersFrom(first uint16, cfg Config, locks *conntrack.Locks, unanswered *conntrack.Unanswered) (workers []*worker, err error) {
	for i := range cfg.allQueues() {
		w, err := openWorker(first+i, cfg.BusyPoll, locks, unanswered)
		if err != nil {
			for _, w := range workers {
				err = errors.Join(err, w.queue.Close(), w.connections.Close())
			}
			return nil, err
		}
		w.noService = i >= cfg.Queues
		workers = append(workers, w)
	}
	return workers, nil
}

func openWorker(number uint16, busyPoll time.Duration, locks *conntrack.Locks, unanswered *conntrack.Unanswered) (*worker, error) {
	q, err := nfqueue.Open(number, nfqueue.Config{MaxLen: queueMaxLen, CopyRange: copyRange, ReadBuffer: readBuffer, BusyPoll: busyPoll})
	if err != nil {
		return nil, err
	}
	c, err := openConnections(locks, unanswered)
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return &worker{number: number, queue: q, connections: c, counters: new(counters)}, nil
}

// watchReversePath updates the rules to the interfaces' rp_filter, once before it returns and
// after each change.
func watchReversePath(rules *ruleset.Ruleset, log *slog.Logger) (*reversePath, error) {
	r := newReversePath(rules.FollowReversePath, log)
	watch, err := hostnet.WatchReversePath(r.changed, r.fail)
	if err != nil {
		return nil, err
	}
	r.watch = watch
	if err := r.apply(<-r.changes); err != nil {
		return nil, errors.Join(err, watch.Close())
	}
	return r, nil
}

// openConnections opens the connection table, with eviction if it is full.
func openConnections(locks *conntrack.Locks, unanswered *conntrack.Unanswered) (*conntrack.Table, error) {
	c, err := conntrack.Open(locks)
	if err != nil {
		return nil, err
	}
	c.MakeRoom(unanswered)
	return c, nil
}

// rememberInterval is the least time between two passes over the connection table, which
// take about a second for 262,144 entries.
const rememberInterval = 5 * time.Second

// rememberConnections makes entries that the workers have not written evictable: unreplied entries
// of an earlier run at once, others later whenever a full table has too few candidates.
func (e *Engine) rememberConnections(locks *conntrack.Locks) error {
	c, err := openConnections(locks, e.unanswered)
	if err != nil {
		return err
	}
	e.remembered.Add(1)
	e.remembering.Go(func() {
		defer c.Close() // it was read only
		e.rememberTable(c)
		e.remembered.Done()
		for e.awaitStarved() {
			e.rememberTable(c)
		}
	})
	return nil
}

func (e *Engine) rememberTable(c *conntrack.Table) {
	if err := c.RememberTable(); err != nil {
		e.log.Warn("cannot read which connections are unreplied; a full table does not evict them", "error", err)
	}
}

// awaitStarved waits until a full table has too few entries to evict, at least rememberInterval.
// It returns false if the engine ends.
func (e *Engine) awaitStarved() bool {
	select {
	case <-e.ended:
		return false
	case <-time.After(rememberInterval):
	}
	select {
	case <-e.ended:
		return false
	case <-e.unanswered.Starved():
		return true
	}
}

// setRand returns each worker its own random numbers or, with a seed, all of them one sequence:
// then only the order of the flows decides, not their queue.
func setRand(workers []*worker, seed *uint64) {
	if seed != nil {
		shared := &lockedRand{rand: rand.New(rand.NewPCG(*seed, 0))}
		for _, w := range workers {
			w.rand = shared
		}
		return
	}
	for _, w := range workers {
		w.rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
}

type lockedRand struct {
	mu   sync.Mutex
	rand *rand.Rand
}

func (r *lockedRand) Float64() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rand.Float64()
}

// tcpLiberal reports whether conntrack treats out-of-window packets as valid: kube-proxy has no
// rule about invalid ones then (pkg/proxy/iptables/proxier.go, conntrackTCPLiberal).
func tcpLiberal() bool {
	n, ok := conntrackSysctl("nf_conntrack_tcp_be_liberal")
	return ok && n != 0
}

// conntrackSysctl reads a number of net.netfilter.
func conntrackSysctl(name string) (n int, ok bool) {
	b, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
	if err != nil {
		return 0, false
	}
	n, err = strconv.Atoi(strings.TrimSpace(string(b)))
	return n, err == nil
}

// seenTimeout is two thirds of conntrack's timeouts for UDP flows, with or without replies, and at
// most 20 s: the flow is queued again before its entry expires.
func seenTimeout() time.Duration {
	shortest := 20 * time.Second
	for _, name := range []string{"nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"} {
		if seconds, ok := conntrackSysctl(name); ok && seconds > 0 {
			shortest = min(shortest, time.Duration(seconds)*time.Second*2/3)
		}
	}
	return shortest
}
