package traffic

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Load describes the connections of a load. Each worker makes one after the other.
type Load struct {
	UDP     bool
	Workers int
	// From is the first source address; worker i uses the one i further on.
	From netip.Addr
	// FirstPort and Ports: a worker takes its source ports in turn out of this range.
	// A port may be used again when the connection before is a second over, so the
	// range has to last for longer (net.ipv4.tcp_tw_reuse has to be 1).
	FirstPort uint16
	Ports     int
	// To are the destinations, in an order without pattern. Each source port of a worker
	// has one: when ports come round again, so do tuples.
	To Targets
	// Rate is the number of connections that are begun in a second, of all workers together; 0: as many as possible.
	Rate int
	// WarmUp connections of each worker are not counted.
	WarmUp int
	// Time to measure for, or until a worker has made Limit connections.
	Time  time.Duration
	Limit int
	// Timeout of a connect and of a receive; 0: 5 seconds. A SYN that was lost once is sent
	// again after one second, so longer is a failure that no retry mends.
	Timeout time.Duration
}

// Targets are Count addresses, each Step further on, at one port.
type Targets struct {
	First netip.AddrPort
	Count uint32
	Step  uint32
}

// At gives target i, taken modulo Count.
func (t Targets) At(i uint32) netip.AddrPort {
	return netip.AddrPortFrom(Advance(t.First.Addr(), i%t.Count*t.Step), t.First.Port())
}

// Advance gives the IPv4 address n further on.
func Advance(a netip.Addr, n uint32) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
	return netip.AddrFrom4(b)
}

// Result is the result of a load.
type Result struct {
	Connections int     // that were answered, in Seconds
	Seconds     float64 // measured
	// Failures counts connections of which a step failed, warm-up included, by step and
	// error ("read: connection reset by peer").
	Failures map[string]int
	// Latency of the connect for TCP, of request and reply for UDP, in nanoseconds.
	P50, P99, P999, Max uint32
	// Retransmitted counts connects that took 0.9 s and more: the first packet was lost.
	Retransmitted int
}

// worker is one thread of a load.
type worker struct {
	load     *Load
	from     unix.RawSockaddrInet4
	port     int
	samples  []uint32
	failures failures
	byte1    [1]byte
}

// failures are counts by what went wrong.
type failures map[string]int

func (f failures) total() (n int) {
	for _, count := range f {
		n += count
	}
	return n
}

// Run makes the connections from the network namespace of the calling thread, in which
// the threads made by Go have to be, too: it is for a process of its own. began is
// called when measuring begins, ended when it ends.
func (l *Load) Run(began, ended func()) (Result, error) {
	workers := make([]*worker, l.Workers)
	for i := range workers {
		workers[i] = &worker{
			load: l, from: sockaddr4(netip.AddrPortFrom(Advance(l.From, uint32(i)), 0)),
			samples: make([]uint32, 0, l.Limit), failures: failures{},
		}
	}
	l.each(workers, func(w *worker) { w.run(l.WarmUp, time.Now().Add(time.Hour)) })
	for _, w := range workers {
		w.samples = w.samples[:0]
	}
	began()
	start := time.Now()
	end := start.Add(l.Time)
	l.each(workers, func(w *worker) { w.run(l.Limit, end) })
	took := time.Since(start)
	ended()

	r := Result{Seconds: took.Seconds(), Failures: map[string]int{}}
	var all []uint32
	for _, w := range workers {
		all = append(all, w.samples...)
		for what, n := range w.failures {
			r.Failures[what] += n
		}
	}
	if len(all) == 0 {
		return r, fmt.Errorf("no connection got a reply: %v", r.Failures)
	}
	slices.Sort(all)
	r.Connections = len(all)
	r.P50, r.P99, r.P999, r.Max = quantile(all, 0.5), quantile(all, 0.99), quantile(all, 0.999), all[len(all)-1]
	i, _ := slices.BinarySearch(all, 900_000_000)
	r.Retransmitted = len(all) - i
	return r, nil
}

func (l *Load) each(workers []*worker, f func(*worker)) {
	var all sync.WaitGroup
	for _, w := range workers {
		all.Go(func() {
			runtime.LockOSThread() // for good: the thread is thrown away
			f(w)
		})
	}
	all.Wait()
}

func quantile(sorted []uint32, q float64) uint32 {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// run makes connections until the number or the time is reached.
func (w *worker) run(limit int, end time.Time) {
	w.samples = w.samples[:0]
	begun := time.Now()
	for n := 0; n < limit && time.Now().Before(end); n++ {
		if rate := w.load.Rate; rate > 0 {
			time.Sleep(time.Until(begun.Add(time.Duration(n*w.load.Workers) * time.Second / time.Duration(rate))))
		}
		to := sockaddr4(w.load.To.At(w.mix()))
		setPort(&w.from, w.load.FirstPort+uint16(w.port))
		w.port = (w.port + 1) % w.load.Ports
		took, err := w.once(&to)
		if err != nil {
			w.failures[err.Error()]++
			if w.failures.total() > 100 {
				return // it will not become better
			}
			continue
		}
		if len(w.samples) < cap(w.samples) {
			w.samples = append(w.samples, uint32(min(took.Nanoseconds(), 1<<32-1)))
		}
	}
}

// mix makes a number without pattern from the worker's address and port (the finalizer
// of MurmurHash3).
func (w *worker) mix() uint32 {
	h := uint32(w.from.Addr[3])<<16 | uint32(w.port)
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return h ^ h>>16
}

func (w *worker) once(to *unix.RawSockaddrInet4) (took time.Duration, err error) {
	kind := unix.SOCK_STREAM
	if w.load.UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, errno := socket(kind)
	if errno != 0 {
		return 0, fmt.Errorf("socket: %w", errno)
	}
	defer closeFD(fd)
	if errno = setTimeout(fd, cmp.Or(w.load.Timeout, 5*time.Second)); errno == 0 {
		errno = setInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if errno == 0 {
		errno = bind(fd, &w.from)
	}
	if errno != 0 {
		return 0, fmt.Errorf("bind: %w", errno)
	}
	start := time.Now()
	if errno := connect(fd, to); errno != 0 {
		return 0, explain("connect", errno)
	}
	if !w.load.UDP {
		took = time.Since(start)
	}
	w.byte1[0] = askIdentity
	if _, errno := write(fd, w.byte1[:]); errno != 0 {
		return 0, explain("write", errno)
	}
	if n, errno := read(fd, w.byte1[:]); errno != 0 || n != 1 {
		return 0, explain("read", errno)
	}
	if w.load.UDP {
		took = time.Since(start)
	}
	return took, nil
}

func explain(what string, errno syscall.Errno) error {
	switch errno {
	case 0:
		return fmt.Errorf("%s: closed by the other side", what)
	case unix.EAGAIN, unix.EINPROGRESS, unix.EALREADY:
		return fmt.Errorf("%s: timeout", what)
	}
	return fmt.Errorf("%s: %w", what, errno)
}
