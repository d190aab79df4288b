package engine

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostmasq"
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
	// Rules changes the kernel rules, and stays open.
	Rules *ruleset.Connection
	// KeepRules leaves the kernel rules in place at the end, as after a crash: established flows
	// are still translated, and the kernel's copy of the service table decides new ones.
	KeepRules bool
	// QueueTimeout is how long packets are queued while a worker makes no progress; then the kernel's
	// copy decides. 0: DefaultQueueTimeout.
	QueueTimeout time.Duration
	// HostRules are the host's own nat rules, which the engine applies to translated flows because
	// these bypass the kernel's. nil: they are ignored. The engine does not run it.
	HostRules *hostmasq.Follower
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

// rejectMark is the packet mark, compared as a whole, of packets that a rule refuses: no combination of other software's
// flags equals it. The masquerade bit belongs to the node: see decision.Node.
const rejectMark = 0x6e667172

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
// earlier run are adopted; see [ruleset.Connection.Install]. The context ends a wait for another datapath.
func Open(ctx context.Context, cfg Config, host *hostnet.Host, table *decision.Table) (_ *Engine, err error) {
	native, err := Preflight()
	if err != nil {
		return nil, err
	}
	cfg.QueueTimeout = cmp.Or(cfg.QueueTimeout, DefaultQueueTimeout)
	e := &Engine{cfg: cfg, log: cfg.Log, apply: make(chan application), checks: make(chan chan<- RuleCheck), ended: make(chan struct{}), bound: affinity.New(), unanswered: conntrack.NewUnanswered()}
	served, err := e.lockFor(ctx)
	if err != nil {
		return nil, err
	}
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
	if e.flows, err = conntrack.Open(&e.locks); err != nil {
		return nil, err
	}
	if cfg.SecondChance {
		e.retries = newRetries()
	}
	if cfg.Gate != nil {
		c, err := e.openConnections()
		if err != nil {
			return nil, err
		}
		e.heldFlows = newHeldFlows(cfg.Gate, &worker{connections: c, router: host.NewCache(), hostRules: cfg.HostRules.Translator(), sink: cfg.Sink})
	}
	if err := e.openWorkers(host, cfg.OtherQueues || served); err != nil {
		return nil, err
	}
	if err := e.rememberConnections(); err != nil {
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
	if err := e.installRules(table, native, served); err != nil {
		return nil, err
	}
	var listener *net.UnixListener
	if served {
		// Bindings of flows that the predecessor decided meanwhile.
		if err := errors.Join(before.finish(), e.restoreAffinity(table)); err != nil {
			e.log.Warn("the nfqproxy that was replaced may still run", "error", err)
		}
		e.lock, listener = before.lock, before.listener
	}
	e.successors = awaitSuccessors(listener, e.lock.(*os.File), e.log)
	e.table.Store(table)
	e.applied = table
	return e, nil
}

// installRules installs the kernel rules, and begins the heartbeats that keep packets queued.
func (e *Engine) installRules(table *decision.Table, native, served bool) error {
	noReversePath := ruleset.ProbeReversePath()
	e.lease.timeout, e.lease.catchUp = e.cfg.QueueTimeout, e.readBindings
	heartbeat := newHeartbeat(&e.lease, e.workers, e.log)
	installed, err := e.cfg.Rules.Install(ruleset.Spec{
		FirstQueue: e.FirstQueue(), Queues: e.cfg.Queues, OnlyServices: e.cfg.OnlyServices, Refusals: e.cfg.SecondChance,
		// kube-proxy has no rule about invalid packets if conntrack regards out-of-window ones as valid
		// (pkg/proxy/iptables/proxier.go, conntrackTCPLiberal).
		TCPLiberal: conntrackSysctl("nf_conntrack_tcp_be_liberal") != 0, RejectMark: rejectMark, MasqueradeMark: table.Node().Mark(), ConnMark: conntrack.DefaultMark, CopyMark: conntrack.CopyMark,
		Alive:              heartbeat.alive,
		LocalhostNodePorts: table.Node().LocalhostNodePorts,
		SeenTimeout:        seenTimeout(), SeenSize: seenSize, Native: native,
		ReversePath: noReversePath == nil,
	}, table, served)
	if err != nil {
		return errors.Join(err, heartbeat.Close())
	}
	heartbeat.start()
	e.heartbeat, e.rules = heartbeat, installed
	if noReversePath != nil {
		e.log.Warn("packets that rp_filter drops leave connection entries for a short time", "error", noReversePath)
		return nil
	}
	if e.reversePath, err = hostnet.WatchReversePath(); err == nil {
		if err = e.followReversePath(<-e.reversePath.Changes); err != nil {
			err = errors.Join(err, e.reversePath.Close())
		}
	}
	if err != nil {
		return errors.Join(err, heartbeat.Close(), installed.Abandon())
	}
	return nil
}

// lockFor takes the lock of the namespace. It reports true, without the lock, if another process has it
// that is to be replaced.
func (e *Engine) lockFor(ctx context.Context) (served bool, err error) {
	var lock *os.File
	if e.cfg.WhenServed == WaitWhenServed {
		lock, err = awaitLock(ctx, e.log)
	} else {
		lock, err = lockNamespace()
	}
	other, taken := errors.AsType[servedError](err)
	switch {
	case err == nil:
		e.lock = lock
	case taken && e.cfg.WhenServed == ReplaceWhenServed:
		return true, nil
	case taken:
		err = other.withHint()
	}
	return false, err
}

// openWorkers binds the queues: with others, higher ones if another program is bound to one of them.
func (e *Engine) openWorkers(host *hostnet.Host, others bool) error {
	// Without OnlyServices there are as many queues for packets to no service; see ruleset.Spec.
	all := e.cfg.Queues
	if !e.cfg.OnlyServices {
		all *= 2
	}
	for first := e.cfg.FirstQueue; ; {
		err := e.openWorkersFrom(first, all, host)
		var taken *nfqueue.TakenError
		switch {
		case err == nil:
			if first != e.cfg.FirstQueue && e.cfg.WhenServed != ReplaceWhenServed {
				e.log.Warn("another program is bound to one of our queues; using other queues", "queue", e.cfg.FirstQueue, "instead", first, "queues", all)
			}
			e.workers[0].delay = e.cfg.BatchDelay
			return nil
		case !others || !errors.As(err, &taken) || int(taken.Number)+int(all) >= lockQueue:
			return err
		}
		first = taken.Number + 1
	}
}

func (e *Engine) openWorkersFrom(first, all uint16, host *hostnet.Host) error {
	var shared decision.Rand // with a seed, only the order of the flows decides, not their queue
	if e.cfg.Seed != nil {
		shared = &lockedRand{rand: rand.New(rand.NewPCG(*e.cfg.Seed, 0))}
	}
	for i := range all {
		q, err := nfqueue.Open(first+i, nfqueue.Config{MaxLen: queueMaxLen, CopyRange: copyRange, ReadBuffer: readBuffer, BusyPoll: e.cfg.BusyPoll})
		var c *conntrack.Table
		if err == nil {
			if c, err = e.openConnections(); err != nil {
				err = errors.Join(err, q.Close())
			}
		}
		if err != nil {
			for _, w := range e.workers {
				err = errors.Join(err, w.queue.Close(), w.connections.Close())
			}
			e.workers = nil
			return err
		}
		w := &worker{
			number: first + i, index: int(i), noService: i >= e.cfg.Queues, queue: q, connections: c, counters: new(counters),
			router: host.NewCache(), table: &e.table, affinity: e.bound, lease: &e.lease, sink: e.cfg.Sink,
			heldFlows: e.heldFlows, hostRules: e.cfg.HostRules.Translator(), balancer: e.cfg.Balancer, retries: e.retries, rand: shared,
		}
		if shared == nil {
			w.rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
		}
		// A polling worker would block the senders there.
		if e.cfg.BusyPoll == 0 {
			w.onStart = func() { stayWithQueue(int(i%e.cfg.Queues), int(e.cfg.Queues)) }
		}
		e.workers = append(e.workers, w)
	}
	return nil
}

// openConnections opens the connection table, with eviction if it is full.
func (e *Engine) openConnections() (*conntrack.Table, error) {
	c, err := conntrack.Open(&e.locks)
	if err == nil {
		c.MakeRoom(e.unanswered)
	}
	return c, err
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

// conntrackSysctl reads a number of net.netfilter; 0 if there is none.
func conntrackSysctl(name string) int {
	b, _ := os.ReadFile("/proc/sys/net/netfilter/" + name)
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}

// seenTimeout is two thirds of conntrack's timeouts for UDP flows, with or without replies, and at
// most 20 s: the flow is queued again before its entry expires.
func seenTimeout() time.Duration {
	shortest := 20 * time.Second
	for _, name := range []string{"nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"} {
		if seconds := conntrackSysctl(name); seconds > 0 {
			shortest = min(shortest, time.Duration(seconds)*time.Second*2/3)
		}
	}
	return shortest
}

// workerSlice is the time slice that a worker requests: the shortest that the kernel grants, in
// nanoseconds. A woken thread with a shorter slice than the running one preempts it
// (kernel/sched/features.h, PREEMPT_SHORT).
const workerSlice = 100_000

// stayWithQueue locks the calling goroutine to its thread, and the thread to the CPUs whose
// packets go to the index-th of the queues (xt_NFQUEUE.c, nfqueue_tg_v3: CPU modulo queues).
// Otherwise the scheduler prefers an idle CPU to the one where the packet's sender is about to
// sleep; waking an idle CPU takes longer than deciding the flow.
//
// On a busy CPU the thread has to preempt others. If the kernel does not support that (before
// 6.12), or none of the CPUs is allowed for this process, it runs on any CPU.
func stayWithQueue(index, queues int) {
	runtime.LockOSThread()
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return
	}
	attr.Runtime = workerSlice
	if unix.SchedSetAttr(0, attr, 0) != nil {
		return
	}
	if attr, err = unix.SchedGetAttr(0, 0); err != nil || attr.Runtime != workerSlice {
		return
	}
	var cpus unix.CPUSet
	for cpu := index; cpu < 64*len(cpus); cpu += queues {
		cpus.Set(cpu)
	}
	_ = unix.SchedSetaffinity(0, &cpus)
}
