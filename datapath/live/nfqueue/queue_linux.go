package nfqueue

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	library "github.com/florianl/go-nfqueue/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack/netlinkio"
)

// Config is the configuration of a queue.
type Config struct {
	// MaxLen is how many packets may wait in the queue. When it is full, packets
	// pass undecided (NFQA_CFG_F_FAIL_OPEN).
	MaxLen uint32
	// CopyRange is how many bytes of a packet are copied.
	CopyRange uint32
	// ReadBuffer is the size of the socket's receive buffer in bytes. The kernel
	// grants at most net.core.rmem_max.
	ReadBuffer int
	// BusyPoll is how long Receive polls before it sleeps: a wake-up takes longer than most other
	// steps. It polls only if the previous packet arrived within that time, so that an idle queue
	// costs nothing. 0: it sleeps at once.
	BusyPoll time.Duration
}

// Queue is a bound netfilter queue. One goroutine may call Receive; any may call the other
// methods.
type Queue struct {
	number  uint16
	socket  *netlinkio.Socket
	in      *netlinkio.Buffers // one for each packet of a batch
	outMu   sync.Mutex
	out     []byte
	proc    *os.File // the kernel's counters
	refused atomic.Uint64
	closed  atomic.Bool
	poll    busyPoll
}

// maxBatch is how many packets one Receive returns at most.
const maxBatch = 64

// Open binds the queue in the calling thread's network namespace. Only one process can be bound to
// a queue; if it is another one, the error names it.
func Open(number uint16, cfg Config) (*Queue, error) {
	lib, err := library.Open(&library.Config{
		NfQueue:      number,
		MaxQueueLen:  cfg.MaxLen,
		MaxPacketLen: cfg.CopyRange,
		Copymode:     library.NfQnlCopyPacket,
		// GSO: packets keep offloaded checksums and sizes. They are never changed here.
		Flags: library.NfQaCfgFlagFailOpen | library.NfQaCfgFlagGSO,
	})
	if err != nil {
		return nil, fmt.Errorf("queue %d: open netlink socket: %w", number, err)
	}
	proc, err := os.Open(countersFile)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("queue %d: %w (CONFIG_NETFILTER_NETLINK_QUEUE, and /proc has to be mounted)", number, err), lib.Close())
	}
	q := &Queue{
		number: number, proc: proc, poll: busyPoll{max: cfg.BusyPoll},
		// Netlink header and attributes take less than 256 bytes besides the payload.
		in: netlinkio.NewBuffers(maxBatch, int(cfg.CopyRange)+256),
	}
	if err := q.bind(lib, cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("queue %d: %w", number, err), proc.Close())
	}
	return q, nil
}

// bind lets the library bind the queue, and then takes the socket from it.
func (q *Queue) bind(lib *library.Nfqueue, cfg Config) error {
	err := q.register(lib, cfg)
	if err != nil {
		return errors.Join(err, lib.Close())
	}
	q.socket, err = netlinkio.Take(taken{lib})
	return err
}

func (q *Queue) register(lib *library.Nfqueue, cfg Config) error {
	// An overrun must not end the reader: the kernel counts lost packets as dropped, see
	// [ReadCounters].
	if err := lib.SetOption(netlink.NoENOBUFS, true); err != nil {
		return fmt.Errorf("set NETLINK_NO_ENOBUFS: %w", err)
	}
	if err := lib.Con.SetReadBuffer(cfg.ReadBuffer); err != nil {
		return fmt.Errorf("set receive buffer: %w", err)
	}
	// Refusals of verdicts need not quote the verdict. Older kernels than 4.2 quote anyway.
	_ = lib.SetOption(netlink.CapAcknowledge, true)
	stray := func(a library.Attribute) int {
		// A rule of another program sends packets here. Let them pass.
		if a.PacketID != nil {
			_ = lib.SetVerdict(*a.PacketID, library.NfAccept)
		}
		return 0
	}
	end := func(error) int { return 1 }
	if err := lib.RegisterWithErrorFunc(context.Background(), stray, end); err != nil {
		return q.explain(err)
	}
	return nil
}

// taken is the library's connection while the socket is taken from it. Closing the library ends
// its receiving goroutine, which then has no socket to unbind the queue with.
type taken struct{ *library.Nfqueue }

func (t taken) SyscallConn() (syscall.RawConn, error) { return t.Con.SyscallConn() }

// TakenError is the error of binding a queue that another socket is bound to.
type TakenError struct {
	Number uint16
	PortID uint32 // netlink port ID of that socket; usually the process ID
	Err    error  // the kernel's
}

// Error names the holder and the remedy.
func (e *TakenError) Error() string {
	return fmt.Sprintf("is taken by netlink port id %d (usually the process id): stop that process or choose another --queue-num: %v", e.PortID, e.Err)
}

// Unwrap returns the kernel's error.
func (e *TakenError) Unwrap() error { return e.Err }

// explain returns an error of binding with its cause.
func (q *Queue) explain(err error) error {
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EBUSY) {
		return err
	}
	if c, e := ReadCounters(q.number); e == nil {
		return &TakenError{q.number, c.PortID, err}
	}
	return fmt.Errorf("may not be bound: CAP_NET_ADMIN is needed: %w", err)
}

// Receive waits until there is a packet and returns all waiting packets, up to the length of
// packets. After [Queue.Close] the error is [os.ErrClosed].
//
// It waits within the system call, not in Go's poller: that saves a second system
// call and a change of goroutines for each batch.
func (q *Queue) Receive(packets []Packet) (n int, err error) {
	for n == 0 && err == nil && !q.closed.Load() {
		n, err = q.wait(packets)
	}
	if q.closed.Load() {
		return 0, os.ErrClosed // a batch that came with the end is lost with the queue
	}
	if err != nil {
		return 0, fmt.Errorf("queue %d: %w", q.number, err)
	}
	return n, nil
}

// wait waits for datagrams, and returns the packets in them.
func (q *Queue) wait(packets []Packet) (n int, err error) {
	if q.poll.max == 0 {
		n, err = q.socket.Wait(q.in, len(packets))
		return q.parse(n, packets, err)
	}
	q.poll.begin(time.Now())
	for q.poll.on(time.Now()) && !q.closed.Load() {
		if n, err = q.socket.Poll(q.in, len(packets)); n > 0 || err != nil {
			break
		}
	}
	if n == 0 && err == nil {
		n, err = q.socket.Wait(q.in, len(packets))
	}
	q.poll.end(time.Now())
	return q.parse(n, packets, err)
}

// parse returns the packets in the received datagrams.
func (q *Queue) parse(datagrams int, packets []Packet, err error) (n int, _ error) {
	for i := range datagrams {
		p, e := parse(q.in.Datagram(i))
		if e == nil {
			packets[n] = p
			n++
			continue
		}
		if _, ok := errors.AsType[answer](e); !ok {
			return n, e
		}
		if !q.closed.Load() {
			// ENOENT: the packet was flushed, because a base chain of the namespace was deleted.
			q.refused.Add(1)
		}
	}
	return n, err
}

// Send sends verdicts in order, all in one system call.
func (q *Queue) Send(verdicts []Verdict) error {
	q.outMu.Lock()
	defer q.outMu.Unlock()
	q.out = q.out[:0]
	for _, v := range verdicts {
		q.out = appendVerdict(q.out, q.number, v)
	}
	if err := q.socket.Write(q.out); err != nil {
		return fmt.Errorf("queue %d: send verdicts: %w", q.number, err)
	}
	return nil
}

// Counters reads the kernel's counters of the queue.
func (q *Queue) Counters() (Counters, error) {
	// The file shows the network namespace in which it was opened, and reading from offset 0 makes
	// the kernel generate it again.
	c, err := readCounters(io.NewSectionReader(q.proc, 0, 1<<20), q.number)
	c.Refused = q.refused.Load()
	return c, err
}

// File returns a duplicate of the queue's socket: the queue stays bound until both are closed.
func (q *Queue) File() (*os.File, error) { return q.socket.File() }

// Close unbinds the queue: packets that wait in it, or arrive later, are dropped or accepted
// according to the queue rule. Receive returns.
func (q *Queue) Close() error {
	q.closed.Store(true)
	// The reply wakes Receive.
	probe := appendProbe(nil, q.number)
	return errors.Join(q.socket.CloseWaiting(func() error { return q.socket.Write(probe) }), q.proc.Close())
}

// busyPoll decides how long to poll for packets before sleeping.
type busyPoll struct {
	max   time.Duration
	quick bool // the last wait was no longer than max
	since time.Time
}

// begin begins a wait.
func (b *busyPoll) begin(now time.Time) { b.since = now }

// on reports whether to poll again. If the previous packet took long to arrive, the next one is
// expected to take long, too: so after a burst at most max is wasted.
func (b *busyPoll) on(now time.Time) bool { return b.quick && now.Sub(b.since) < b.max }

// end ends a wait, with a packet.
func (b *busyPoll) end(now time.Time) { b.quick = now.Sub(b.since) <= b.max }

// Counters are the kernel's counters of a queue (/proc/net/netfilter/nfnetlink_queue).
type Counters struct {
	PortID      uint32 // the netlink port that is bound to it, usually a process id
	Waiting     uint64 // packets in the queue now
	Dropped     uint64 // packets that did not fit into the queue
	UserDropped uint64 // packets that did not fit into the socket's buffer
	Sequence    uint64 // packets that entered the queue since it was bound
	// Refused counts verdicts that the kernel refused because it had flushed the packet meanwhile.
	// Only [Queue.Counters] sets it, once a later packet was received.
	Refused uint64
}

const countersFile = "/proc/thread-self/net/netfilter/nfnetlink_queue"

// ReadCounters reads the counters of a queue in the calling thread's network namespace. If no
// program is bound to it, the error is [os.ErrNotExist].
func ReadCounters(queue uint16) (Counters, error) {
	f, err := os.Open(countersFile)
	if err != nil {
		return Counters{}, fmt.Errorf("queue counters: %w", err)
	}
	defer f.Close()
	return readCounters(f, queue)
}

func readCounters(r io.Reader, queue uint16) (Counters, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var number, copyMode, copyRange uint64
		var c Counters
		if _, err := fmt.Sscan(lines.Text(), &number, &c.PortID, &c.Waiting, &copyMode, &copyRange, &c.Dropped, &c.UserDropped, &c.Sequence); err != nil {
			return c, fmt.Errorf("queue counters: line %q: %w", lines.Text(), err)
		}
		if number == uint64(queue) {
			return c, nil
		}
	}
	if err := lines.Err(); err != nil {
		return Counters{}, fmt.Errorf("queue counters: %w", err)
	}
	return Counters{}, fmt.Errorf("queue %d: %w", queue, os.ErrNotExist)
}

// StampPackets makes the kernel stamp packets with their arrival time (see [Packet]) until it is
// closed. The kernel stamps all packets of the machine as long as any socket requests it: that
// costs one read of the clock per packet. It takes effect after a short delay
// (net_enable_timestamp in net/core/dev.c leaves it to a worker).
func StampPackets() (io.Closer, error) {
	// Any socket works, also one that receives nothing, but not one of the family unix
	// (sock_needs_netstamp in net/core/sock.c).
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a socket to have packets stamped: %w", os.NewSyscallError("socket", err))
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMP, 1); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("have packets stamped with the time of their arrival: %w", os.NewSyscallError("setsockopt SO_TIMESTAMP", err))
	}
	return os.NewFile(uintptr(fd), "socket with SO_TIMESTAMP"), nil
}
