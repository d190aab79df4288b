package conntrack_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestKernelEvents: the events of connections whose entries this package created.
func TestKernelEvents(t *testing.T) {
	w := watch(t, 1<<20)
	for name, seconds := range map[string]string{
		// Two, so that there is a whole one left of a connection that is refused at once.
		"tcp_timeout_syn_sent":  "2",
		"tcp_timeout_time_wait": "1", "tcp_timeout_close": "1", "udp_timeout": "1", "udp_timeout_stream": "1", "sctp_timeout_closed": "1",
	} {
		w.set("netfilter.nf_conntrack_"+name, seconds)
	}
	begin := time.Now()
	var entries []conntrack.Entry
	for _, at := range [][3]string{{clientV4, serviceV4, serverV4}, {clientV6, serviceV6, serverV6}} {
		for i, c := range conversations {
			e := entry(c.proto, net.JoinHostPort(at[0], fmt.Sprint(40000+i)), net.JoinHostPort(at[1], "80"), net.JoinHostPort(at[2], fmt.Sprint(8080+i)), "")
			if c.noServer {
				e.Destination = netip.AddrPortFrom(e.Destination.Addr().Next(), 80)
			}
			w.establish(e)
			c.talk(w, e)
			entries = append(entries, e)
		}
	}
	for i, e := range entries {
		c := conversations[i%len(conversations)]
		t.Run(fmt.Sprint(c.name, " from ", e.Tuple.Source.Addr()), func(t *testing.T) {
			w.t = t
			// What has timed out goes when the kernel comes across it.
			for deadline := time.Now().Add(testTimeout); ; time.Sleep(50 * time.Millisecond) {
				if _, err := w.table.Lookup(e.Tuple, 0); conntrack.IsNotFound(err) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("the entry does not go: %+v", w.lookup(e.Tuple))
				}
			}
			// On a busy machine the last FIN is sent twice. The second acknowledgment comes when that
			// end has forgotten the connection, and is answered with a reset.
			const closed, reset = "DESTROY TIME_WAIT replied assured", "DESTROY CLOSE replied assured"
			last := c.want[strings.LastIndex(c.want, "DESTROY"):]
			late := last
			if last == closed {
				late = reset
			}
			events := w.until(e.Tuple, last, late)
			if got := describeAll(events); got != c.want && got != strings.Replace(c.want, closed, "CLOSE replied assured, "+reset, 1) {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			checkEvents(t, events, e, begin)
			end := &events[len(events)-1].State
			if end.Sent.Packets == 0 || end.Sent.Bytes < 20*end.Sent.Packets || c.noServer != (end.Received == conntrack.Counters{}) {
				t.Errorf("sent %+v, received %+v", end.Sent, end.Received)
			}
		})
	}
}

// checkEvents checks what all events of an entry have in common.
func checkEvents(t *testing.T, events []conntrack.Event, entry conntrack.Entry, begin time.Time) {
	t.Helper()
	end := time.Now()
	// Before Linux 6.14 updates do not have the time.
	timed := !events[0].At.IsZero()
	at := begin
	for _, e := range events {
		s := e.State
		if s.Endpoint() != entry.Destination || s.Mark != entry.Mark || s.ID != events[0].State.ID || s.Status&conntrack.StatusDestinationNAT == 0 {
			t.Errorf("%v of another entry: %+v", e.Kind, s)
		}
		if e.Kind == conntrack.Destroyed {
			if !s.HasCounters || s.Start.Before(begin) || s.Stop.Before(s.Start) || s.Stop.After(end) || e.At != s.Stop {
				t.Errorf("%v %+v, between %v and %v", e.Kind, e, begin, end)
			}
			continue
		}
		if s.HasCounters || !s.Start.IsZero() || !s.Stop.IsZero() {
			t.Errorf("%v has counters or times: %+v", e.Kind, s)
		}
		if timed && (e.At.Before(at) || e.At.After(end)) || !timed && !e.At.IsZero() {
			t.Errorf("%v at %v, not between %v and %v", e.Kind, e.At, at, end)
		}
		if timed {
			at = e.At
		}
	}
}

// TestKernelCounts: what an event and a look-up count, to the byte.
func TestKernelCounts(t *testing.T) {
	w := watch(t, 1<<20)
	for _, tt := range []struct {
		entry  conntrack.Entry
		header uint64
	}{
		{entry(17, clientV4+":40000", serviceV4+":53", serverV4+":5353", ""), 20 + 8},
		{entry(17, "["+clientV6+"]:40000", "["+serviceV6+"]:53", "["+serverV6+"]:5353", ""), 40 + 8},
	} {
		w.establish(tt.entry)
		c, s := w.udp(tt.entry)
		w.exchange(c, s) // five bytes there and three back
		now := w.lookup(tt.entry.Tuple)
		w.remove(tt.entry.Tuple)
		events := w.until(tt.entry.Tuple, "DESTROY replied early requested")
		for what, s := range map[string]*conntrack.State{"look-up": &now, "event": &events[len(events)-1].State} {
			sent, received := conntrack.Counters{Packets: 1, Bytes: tt.header + 5}, conntrack.Counters{Packets: 1, Bytes: tt.header + 3}
			if !s.HasCounters || s.Sent != sent || s.Received != received || s.Start != now.Start || s.Start.IsZero() || s.Stop.IsZero() != (what == "look-up") {
				t.Errorf("%s: %+v, want %+v sent and %+v received", what, s, sent, received)
			}
		}
	}
}

// TestKernelCountsNothing: counters that are switched off are not reported.
func TestKernelCountsNothing(t *testing.T) {
	w := watch(t, 1<<20)
	w.set("netfilter.nf_conntrack_acct", "0")
	w.set("netfilter.nf_conntrack_timestamp", "0")
	e := entry(17, clientV4+":40000", serviceV4+":53", serverV4+":5353", "")
	w.establish(e)
	c, s := w.udp(e)
	w.exchange(c, s)
	w.remove(e.Tuple)
	for _, e := range w.until(e.Tuple, "DESTROY replied early requested") {
		if e.State.HasCounters || !e.State.Start.IsZero() || !e.State.Stop.IsZero() || !e.At.IsZero() {
			t.Errorf("%v %+v", e.Kind, e)
		}
	}
}

// TestKernelReplacedEntry: the end of the old entry comes before any event of the new one,
// and the two differ by the time they began.
func TestKernelReplacedEntry(t *testing.T) {
	w := watch(t, 1<<20)
	e := entry(6, clientV4+":40000", serviceV4+":80", serverV4+":8080", "")
	w.establish(e)
	c, s := w.dial(e)
	w.closeTCP(e.Tuple, s, c) // the server waits for what is late, the client's port is free
	w.until(e.Tuple, "TIME_WAIT replied assured", "CLOSE replied assured")
	old := w.lookup(e.Tuple)
	e.Destination = netip.MustParseAddrPort(serverV4 + ":8081")
	if o := w.establish(e); o != conntrack.Replaced {
		t.Fatalf("outcome %v", o)
	}
	anew := w.lookup(e.Tuple)
	if _, err := w.client.Dial(context.Background(), "tcp", e.Tuple.Source, e.Tuple.Destination); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("connected without a listener: %v", err)
	}
	events := w.until(e.Tuple, "DESTROY CLOSE early")
	const want = "TIME_WAIT replied assured, DESTROY TIME_WAIT replied assured early requested, SYN_SENT, DESTROY CLOSE early"
	reset := strings.ReplaceAll(want, "TIME_WAIT", "CLOSE") // see TestKernelEvents
	if got := describeAll(events); !strings.HasSuffix(got, want) && !strings.HasSuffix(got, reset) {
		t.Fatalf("got %s, want %s at the end", got, want)
	}
	ends := []conntrack.State{events[len(events)-3].State, events[len(events)-1].State}
	if ends[0].Start != old.Start || ends[1].Start != anew.Start || !ends[0].Start.Before(ends[1].Start) {
		t.Errorf("ended: from %v and from %v; looked up: from %v and from %v", ends[0].Start, ends[1].Start, old.Start, anew.Start)
	}
}

// TestKernelKeepsRepeatedINIT: an INIT that comes again, because it was not answered yet, does
// not take the place of the association that it began.
func TestKernelKeepsRepeatedINIT(t *testing.T) {
	w := watch(t, 1<<20)
	e := entry(132, clientV4+":40000", serviceV4+":99", serverV4+":9999", "")
	w.establish(e)
	w.sctp(e, 1) // INIT
	e.Destination = netip.MustParseAddrPort(serverV4 + ":9998")
	if o := w.establish(e); o != conntrack.Kept {
		t.Errorf("an INIT that is sent again: %v, want kept", o)
	}
	e.Tuple.Source = netip.MustParseAddrPort(clientV4 + ":40001")
	w.establish(e)
	w.sctp(e, 1, 6) // INIT, ABORT
	if o := w.establish(e); o != conntrack.Replaced {
		t.Errorf("an INIT after an ABORT: %v, want replaced", o)
	}
}

// TestKernelPause: there are no events until the pause ends.
func TestKernelPause(t *testing.T) {
	w := watch(t, 1<<20)
	if err := w.watcher.Pause(true); err != nil {
		t.Fatal(err)
	}
	talk := func(port int) conntrack.Entry {
		e := entry(17, fmt.Sprintf("%s:%d", clientV4, port), serviceV4+":53", fmt.Sprintf("%s:%d", serverV4, port), "")
		w.establish(e)
		c, s := w.udp(e)
		w.exchange(c, s)
		return e
	}
	e := talk(40000)
	w.remove(e.Tuple)
	if err := w.watcher.Pause(false); err != nil {
		t.Fatal(err)
	}
	w.until(talk(40001).Tuple, "replied")
}

// TestKernelExtensionIsReported: a change of an entry over netlink causes an update, which
// names the port that requested it.
func TestKernelExtensionIsReported(t *testing.T) {
	w := watch(t, 1<<20)
	w.set("netfilter.nf_conntrack_udp_timeout", "1")
	e := entry(17, clientV4+":40000", serviceV4+":53", serverV4+":5353", "")
	w.establish(e)
	c, s := w.udp(e)
	w.exchange(c, s) // it has one second left, and is extended
	if o := w.establish(e); o != conntrack.Kept {
		t.Fatalf("outcome %v", o)
	}
	w.until(e.Tuple, "replied requested")
}

// TestKernelEarlierEntries: with nf_conntrack_events=1 the kernel also reports entries that
// were made without a watcher. (With 2 that depends on who else watches on this machine.)
func TestKernelEarlierEntries(t *testing.T) {
	w := watch(t, 1<<20)
	w.set("netfilter.nf_conntrack_events", "1")
	if err := w.watcher.Close(); err != nil {
		t.Fatal(err)
	}
	e := entry(17, clientV4+":40000", serviceV4+":53", serverV4+":5353", "")
	w.establish(e)
	if err := w.host.Do(func() (err error) {
		w.watcher, err = conntrack.Watch(conntrack.WatchConfig{Buffer: 1 << 20})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w.remove(e.Tuple)
	w.until(e.Tuple, "DESTROY early requested")
}

// TestKernelOverrun: the loss of events is reported when all earlier ones were given;
// later ones are reported again.
func TestKernelOverrun(t *testing.T) {
	w := watch(t, 1) // the kernel takes its own minimum
	tuple := func(i int) conntrack.Entry {
		return entry(17, fmt.Sprintf("%s:%d", clientV4, 10000+i), serviceV4+":53", serverV4+":5353", "")
	}
	const n = 500
	for i := range n {
		w.establish(tuple(i))
		w.remove(tuple(i).Tuple)
	}
	into := make([]conntrack.Event, 3)
	given := 0
	for {
		k, err := w.watcher.Receive(into)
		if errors.Is(err, conntrack.ErrOverrun) && k == 0 {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range into[:k] {
			if e.State.Original != tuple(given).Tuple {
				t.Fatalf("event %d is about %v", given, e.State.Original)
			}
			given++
		}
	}
	if given == 0 || given == n {
		t.Fatalf("%d of %d events were given", given, n)
	}
	w.establish(tuple(n))
	w.remove(tuple(n).Tuple)
	w.until(tuple(n).Tuple, "DESTROY early requested")
	if len(w.events) != 1 {
		t.Errorf("after the report of the loss, events of %d entries came; want 1", len(w.events))
	}
}

// TestKernelCloseEndsReceive: also while it waits.
func TestKernelCloseEndsReceive(t *testing.T) {
	w := watch(t, 1<<20)
	received, thread := make(chan error), make(chan int)
	go func() {
		runtime.LockOSThread()
		thread <- unix.Gettid()
		_, err := w.watcher.Receive(make([]conntrack.Event, 1))
		received <- err
	}()
	awaitCall(t, <-thread, unix.SYS_RECVMMSG)
	if err := w.watcher.Pause(true); err != nil {
		t.Error(err)
	}
	if err := w.watcher.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-received:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("error %v, want %v", err, os.ErrClosed)
		}
	case <-time.After(testTimeout):
		t.Fatal("Receive did not return")
	}
	for what, err := range map[string]error{"Pause": w.watcher.Pause(false), "Close": w.watcher.Close()} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

// awaitCall returns when the thread sleeps in the system call.
func awaitCall(t *testing.T, thread, call int) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/syscall", thread))
		if err != nil {
			netnstest.Missing(t, err.Error())
		}
		if strings.HasPrefix(string(text), fmt.Sprint(call, " ")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the thread does not sleep in system call %d: %s", call, text)
		}
	}
}

// TestKernelEventsSwitchedOff: Watch returns an error that names the remedy.
func TestKernelEventsSwitchedOff(t *testing.T) {
	w := watch(t, 1<<20)
	for value, ok := range map[string]bool{"0": false, "1": true, "2": true} {
		w.set("netfilter.nf_conntrack_events", value)
		err := w.host.Do(func() error {
			watcher, err := conntrack.Watch(conntrack.WatchConfig{Buffer: 1 << 16})
			if err == nil {
				err = watcher.Close()
			}
			return err
		})
		if ok && err != nil || !ok && (err == nil || !strings.Contains(err.Error(), "sysctl -w net.netfilter.nf_conntrack_events=2")) {
			t.Errorf("nf_conntrack_events=%s: %v", value, err)
		}
	}
}

// BenchmarkKernelReceive: how long it takes to receive an end, when many wait.
func BenchmarkKernelReceive(b *testing.B) {
	ns, err := netns.New("bench")
	if err != nil {
		b.Skip(err)
	}
	defer ns.Close()
	var table *conntrack.Table
	var watcher *conntrack.Watcher
	if err := errors.Join(ns.SetSysctl("net.netfilter.nf_conntrack_acct", "1"), ns.SetSysctl("net.netfilter.nf_conntrack_timestamp", "1"), ns.Do(func() (err error) {
		if table, err = conntrack.Open(new(conntrack.Locks)); err != nil {
			return err
		}
		watcher, err = conntrack.Watch(conntrack.WatchConfig{Buffer: 8 << 20})
		return err
	})); err != nil {
		b.Fatal(err)
	}
	defer table.Close()
	defer watcher.Close()
	const waiting = 4096
	entries, results := make([]conntrack.Entry, waiting), make([]conntrack.Result, waiting)
	for i := range entries {
		entries[i] = entry(17, fmt.Sprintf("10.244.1.9:%d", 10000+i), "10.96.0.10:53", "10.244.0.2:5353", "")
	}
	states, errs := make([]conntrack.State, 0, waiting), make([]error, waiting)
	events := make([]conntrack.Event, 256)
	received := 0
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		table.Establish(entries, results)
		states = states[:0]
		if err := table.Dump(conntrack.Filter{}, func(s *conntrack.State) { states = append(states, *s) }); err != nil {
			b.Fatal(err)
		}
		table.Delete(states, errs[:len(states)])
		b.StartTimer()
		for left := len(states); left > 0; {
			n, err := watcher.Receive(events)
			if err != nil {
				b.Fatal(err)
			}
			left -= n
			received += n
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(received), "ns/event")
}
