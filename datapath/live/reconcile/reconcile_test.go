package reconcile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/conntrack/conntracktest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// world is a fake kernel: connections, and the requests to it, in order.
type world struct {
	*conntrack.Table
	kernel  *conntracktest.Fake
	seen    map[conntrack.Tuple]bool
	calls   []string
	forget  error           // what Forget fails with
	refuse  func(int) error // what Delete answers for the i-th flow, if not nil
	dumpErr error
	onDump  func(ipv6 bool)
	onCall  func() // before the call has its effect
}

func newWorld(t testing.TB, flows ...string) *world {
	t.Helper()
	w := &world{kernel: conntracktest.NewFake(), seen: make(map[conntrack.Tuple]bool)}
	w.Table = w.kernel.Table()
	for _, f := range flows {
		w.add(t, flow(f))
	}
	return w
}

// add puts a flow into the kernel, and its tuples into the sets.
func (w *world) add(t testing.TB, s conntrack.State) {
	t.Helper()
	var r [1]conntrack.Result
	e := conntrack.Entry{Tuple: s.Original, Mark: s.Mark, Destination: s.Reply.Source}
	if s.Masqueraded() {
		e.SourceAddr = s.Reply.Destination.Addr()
	}
	if w.Establish([]conntrack.Entry{e}, r[:]); r[0].Outcome != conntrack.Created {
		t.Fatal(r[0])
	}
	w.kernel.Change(s.Original, func(k *conntrack.State) { k.Status = s.Status })
	w.seen[s.Original], w.seen[s.Reply] = true, true
}

// call notes a call.
func (w *world) call(format string, args ...any) {
	w.calls = append(w.calls, fmt.Sprintf(format, args...))
	if w.onCall != nil {
		w.onCall()
	}
}

func (w *world) Dump(f conntrack.Filter, each func(*conntrack.State)) error {
	w.call("dump")
	if w.onDump != nil {
		w.onDump(f.Family == conntrack.IPv6)
	}
	return errors.Join(w.Table.Dump(f, each), w.dumpErr)
}

func (w *world) Delete(s []conntrack.State, errs []error) {
	w.call("delete %d", len(s))
	w.Table.Delete(s, errs)
	for i := range errs {
		if w.refuse != nil {
			errs[i] = w.refuse(i)
		}
	}
}

func (w *world) Forget(tuples []conntrack.Tuple) error {
	w.call("forget %d", len(tuples))
	if w.forget != nil {
		return w.forget
	}
	for _, t := range tuples {
		delete(w.seen, t)
	}
	return nil
}

func (w *world) reconciler() *Reconciler { return New(Config{Connections: w, Seen: w}) }

const (
	toTwo   = "udp 10.244.1.9:1002 10.96.0.10:53 > 10.244.0.2:53 ours"
	toThree = "udp 10.244.1.9:1003 10.96.0.10:53 > 10.244.0.3:53 ours masq=172.20.0.2"
	toSix   = "udp [fd44::9]:1000 [fd96::a]:53 > [fd44::3]:53 ours answered"
	both    = "udp 10.96.0.10:53 10.244.0.2:53 10.244.0.3:53"
	onlyTwo = "udp 10.96.0.10:53 10.244.0.2:53"
)

func TestPass(t *testing.T) {
	w := newWorld(t, toTwo, toThree, toSix, "tcp 10.244.1.9:1003 10.96.0.10:53 > 10.244.0.3:53 ours")
	type observed struct {
		family decision.Family
		r      Result
	}
	var seen []observed
	r := New(Config{Connections: w, Seen: w, Observe: func(f decision.Family, r Result, err error) {
		if err != nil {
			t.Error(err)
		}
		seen = append(seen, observed{f, r})
	}})
	result, err := r.Run(table(onlyTwo, "udp [fd96::a]:53 [fd44::2]:53"))
	if err != nil || result.Examined != 3 || result.Total() != 2 || result.Deleted[EndpointGone] != 2 || result.Failed != 0 {
		t.Errorf("result %+v, error %v", result, err)
	}
	// Both tuples of each before the entry and after it.
	if want := []string{"dump", "forget 2", "delete 1", "forget 2", "dump", "forget 2", "delete 1", "forget 2"}; !slices.Equal(w.calls, want) {
		t.Errorf("calls %q, want %q", w.calls, want)
	}
	for _, text := range []string{toThree, toSix} {
		s := flow(text)
		if w.seen[s.Original] || w.seen[s.Reply] {
			t.Errorf("the tuples of %s are still in the sets", text)
		}
	}
	if two := flow(toTwo); w.kernel.Len() != 2 || !w.seen[two.Original] || !w.seen[two.Reply] {
		t.Errorf("%d entries are left, want 2 with their tuples", w.kernel.Len())
	}
	if len(seen) != 2 || seen[0].family != decision.IPv4 || seen[0].r.Examined != 2 || seen[1].family != decision.IPv6 || seen[1].r.Total() != 1 {
		t.Errorf("observed %+v", seen)
	}
	w.calls = nil
	if result, err = r.Run(table(onlyTwo, "udp [fd96::a]:53 [fd44::2]:53")); err != nil || result.Total() != 0 || len(w.calls) != 2 {
		t.Errorf("second pass: %+v, error %v, calls %q", result, err, w.calls)
	}
}

func TestPassInBatches(t *testing.T) {
	w := newWorld(t)
	const n = 3*batchSize + 1
	for i := range n {
		w.add(t, flow(fmt.Sprintf("udp 10.244.1.9:%d 10.96.0.10:53 > 10.244.0.3:53", 1000+i)))
	}
	result, err := w.reconciler().Run(table(onlyTwo))
	if err != nil || result.Total() != n || w.kernel.Len() != 0 || len(w.seen) != 0 {
		t.Errorf("result %+v, error %v; %d entries and %d elements are left", result, err, w.kernel.Len(), len(w.seen))
	}
}

func TestInterruptedDumps(t *testing.T) {
	flows := []string{toTwo, toThree, "udp 10.244.1.9:1004 10.96.0.10:53 > 10.244.0.3:53"}
	w := newWorld(t, flows...)
	w.kernel.Interrupt = maxDumps - 1
	if result, err := w.reconciler().Run(table(onlyTwo)); err != nil || result.Examined != 3 || result.Total() != 2 {
		t.Errorf("result %+v, error %v", result, err)
	}
	// Not one whole dump: what was dumped is removed, and the error requests another pass.
	w = newWorld(t, flows...)
	w.kernel.Interrupt = maxDumps
	r := w.reconciler()
	if result, err := r.Run(table()); !errors.Is(err, conntrack.ErrInterrupted) || result.Examined != 1 {
		t.Errorf("result %+v, error %v", result, err)
	}
	if _, err := r.Run(table(onlyTwo)); err != nil {
		t.Error(err)
	}
	if two := flow(toTwo); !w.seen[two.Original] && w.kernel.Len() > 0 {
		t.Errorf("%d entries are left", w.kernel.Len())
	}
}

func TestFailures(t *testing.T) {
	t.Run("dump", func(t *testing.T) {
		w := newWorld(t, toThree)
		w.dumpErr = syscall.ENOBUFS
		result, err := w.reconciler().Run(table(onlyTwo))
		if !errors.Is(err, syscall.ENOBUFS) || !strings.Contains(err.Error(), "IPv6") || result.Total() != 1 {
			t.Errorf("result %+v, error %v: what was read should be gone", result, err)
		}
	})
	t.Run("forget", func(t *testing.T) {
		w := newWorld(t, toThree)
		w.forget = syscall.EPERM
		result, err := w.reconciler().Run(table(onlyTwo))
		if !errors.Is(err, syscall.EPERM) || result.Failed != 1 || w.kernel.Len() != 1 {
			t.Errorf("result %+v, error %v, %d entries; the entry must not go before its elements", result, err, w.kernel.Len())
		}
		w.forget = nil
		if result, err := w.reconciler().Run(table(onlyTwo)); err != nil || result.Total() != 1 {
			t.Errorf("afterwards: result %+v, error %v", result, err)
		}
	})
	t.Run("delete", func(t *testing.T) {
		w := newWorld(t, toThree, "udp 10.244.1.9:1004 10.96.0.10:53 > 10.244.0.3:53")
		w.refuse = func(i int) error { return []error{syscall.EBUSY, syscall.ENOENT}[i] }
		result, err := w.reconciler().Run(table(onlyTwo))
		if !errors.Is(err, syscall.EBUSY) || result.Failed != 1 || result.Total() != 0 {
			t.Errorf("result %+v, error %v: gone already is no failure, and no deletion", result, err)
		}
	})
}

// TestServicesThatWentAway: entries of an earlier proxy have no mark; they are known only
// by the service that there was.
func TestServicesThatWentAway(t *testing.T) {
	foreign := []string{
		"udp 10.244.1.9:1001 10.96.0.10:53 > 10.244.0.2:53",
		"udp 10.244.1.9:1002 172.20.0.2:30053 > 10.244.0.2:53",
		"udp [fd44::9]:1003 [fd96::a]:53 > [fd44::2]:53",
	}
	others := []string{ // not of that service
		"udp 10.244.1.9:1004 10.96.0.10:53 > 10.244.0.7:53",
		"udp 10.244.1.9:1005 10.96.0.11:53 > 10.244.0.2:53",
		"udp 10.244.1.9:1006 9.9.9.9:30053 > 10.244.0.2:53",
		"udp 10.244.1.9:1007 10.96.0.10:54",
	}
	before := table("udp 10.96.0.10:53 nodeport=30053 10.244.0.2:53", "udp [fd96::a]:53 [fd44::2]:53")
	w := newWorld(t)
	r := w.reconciler()
	if _, err := r.Run(before); err != nil {
		t.Fatal(err)
	}
	for _, f := range slices.Concat(foreign, others) {
		w.add(t, flow(f))
	}
	// A pass that fails does not forget; a service that is back is not gone.
	w.dumpErr, w.forget = syscall.ENOBUFS, syscall.EPERM
	if _, err := r.Run(table()); err == nil {
		t.Error("no error")
	}
	w.dumpErr, w.forget = nil, nil
	if result, err := r.Run(before); err != nil || result.Total() != 1 || result.Deleted[EndpointGone] != 1 {
		t.Errorf("with the service back: %+v, error %v", result, err)
	}
	result, err := r.Run(table())
	if err != nil || !maps.Equal(result.Deleted, map[Reason]int{ServiceGone: len(foreign)}) {
		t.Errorf("result %+v, error %v", result, err)
	}
	if w.kernel.Len() != len(others)-1 {
		t.Errorf("%d entries are left", w.kernel.Len())
	}
	if len(r.gone) != 0 {
		t.Error("it is still remembered after a whole pass")
	}
}

func TestGoneIsBounded(t *testing.T) {
	old, gone := make(frontends), make(frontends)
	for i := range maxGone + 10 {
		s := flow(fmt.Sprintf("udp 10.0.0.1:1 10.%d.%d.1:53", i>>8, i&255))
		old[s.Original.Destination] = &backends{}
	}
	gone.addRemoved(old, nil)
	if len(gone) != maxGone {
		t.Errorf("%d are remembered", len(gone))
	}
}

// TestAnnounced: workers decide by the next table while a pass by the one before is under way.
func TestAnnounced(t *testing.T) {
	before, after := table("udp 10.96.0.10:53 "+oldEndpoint), table("udp 10.96.0.10:53 "+newEndpoint)
	const right, wrong = "udp 10.244.1.9:1000 10.96.0.10:53 > " + newEndpoint + " ours", "udp 10.244.1.9:1001 10.96.0.10:53 > 10.244.0.9:53 ours"
	for _, announced := range []bool{false, true} {
		w := newWorld(t, wrong)
		r := w.reconciler()
		w.onDump = func(ipv6 bool) {
			if ipv6 {
				return
			}
			if announced {
				r.Announce(after)
			}
			w.add(t, flow(right))
		}
		result, err := r.Run(before)
		want := 1 // of the wrong one
		if !announced {
			want++
		}
		if err != nil || result.Deleted[EndpointGone] != want {
			t.Errorf("announced %v: removed %v, error %v; want %d", announced, result.Deleted, err, want)
		}
		if _, stays := w.kernel.Get(flow(right).Original); stays != announced {
			t.Errorf("announced %v: the flow stays: %v", announced, stays)
		}
	}
}
