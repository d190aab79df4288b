package hold

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// owners knows one pod.
type owners struct{}

func (owners) Owner(a netip.Addr) flow.Owner {
	if a.String() == "10.244.1.9" {
		return flow.Owner{Pod: "shop/client", Node: "node-a"}
	}
	return flow.Owner{}
}

// heldFlow is a flow at a gate that carries out as the datapath does: once.
type heldFlow struct {
	flow flow.Flow

	mu   sync.Mutex
	gone *flow.Flow
}

func (f *heldFlow) Flow() *flow.Flow { return &f.flow }

func (f *heldFlow) Release(d decision.Decision, held flow.Hold) *flow.Flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone != nil {
		return nil
	}
	gone := f.flow
	gone.Decision, gone.Held, gone.Outcome = d, &held, conntrack.Created
	f.gone = &gone
	return &gone
}

// went returns how it was released: its way and the endpoint.
func (f *heldFlow) went() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone == nil {
		return "held"
	}
	s := fmt.Sprintf("%s after %gs: %s", f.gone.Held.Action, f.gone.Held.Seconds, f.gone.Decision.Verdict)
	if to := f.gone.Endpoint(); to.IsValid() {
		s += " " + to.String()
	}
	return s
}

type draw float64

func (d draw) Float64() float64 { return float64(d) }

// web has three endpoints; of them the one at position 1 is drawn.
const drawnEndpoint = "10.244.0.3:8080"

func table() *decision.Table {
	port := func(name, ip string, endpoints ...string) *decision.ServicePort {
		s := &decision.ServicePort{
			Name:     decision.ServicePortName{Namespace: "shop", Name: name, Port: "http"},
			Protocol: decision.TCP, Family: decision.IPv4, ClusterIP: netip.MustParseAddr(ip), Port: 80, HasEndpoints: len(endpoints) > 0,
		}
		for i, e := range endpoints {
			s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.MustParseAddrPort(e)})
			s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(i))
		}
		return s
	}
	var many []string
	for i := range 13 {
		many = append(many, fmt.Sprintf("10.244.7.%d:80", i+1))
	}
	return decision.NewTable(7, time.Now(), decision.Node{Name: "node-a", Detector: decision.Detector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}, []*decision.ServicePort{
		port("web", "10.96.0.1", "10.244.0.2:8080", drawnEndpoint, "10.244.0.4:8080"), port("none", "10.96.0.2"), port("many", "10.96.0.3", many...),
	})
}

// arrive makes a flow from a pod to a service that was decided just now.
func arrive(sourcePort uint16, destination string) *heldFlow {
	t := table()
	p := decision.Packet{Protocol: decision.TCP, Source: netip.AddrPortFrom(netip.MustParseAddr("10.244.1.9"), sourcePort), Destination: netip.MustParseAddrPort(destination)}
	return &heldFlow{flow: flow.Flow{Packet: p, Decision: decision.Decide(t, &p, draw(0.4), nil, nil), Table: t, Node: t.Node(), Queue: 100, Time: time.Now(), Waited: -1}}
}

const (
	toWeb  = "10.96.0.1:80"
	toNone = "10.96.0.2:80"
	toMany = "10.96.0.3:80"
)

func newHolder() *Holder { return New(Config{Node: "node-a", Names: owners{}.Owner}) }

// startHold holds the next flow to a service.
func startHold(t *testing.T, h *Holder, service string, seconds int) *observe.Hold {
	t.Helper()
	got, err := h.Hold(t.Context(), observe.HoldQuery{Flow: observe.HoldFilter{Service: service}, Seconds: seconds})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// act acts, and fails the test if it cannot.
func act(t *testing.T, h *Holder, id, action, endpoint string) *observe.Hold {
	t.Helper()
	got, err := h.Act(t.Context(), id, observe.Act{Action: action, Endpoint: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func get(t *testing.T, h *Holder, id string) *observe.Hold {
	t.Helper()
	got, err := h.Get(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// holding starts a hold, and has a flow arrive.
func holding(t *testing.T, h *Holder, service, destination string) (id string, f *heldFlow) {
	t.Helper()
	id = startHold(t, h, service, 60).ID
	f = arrive(40000, destination)
	if !h.Armed() || !h.Take(f) {
		t.Fatalf("armed: %v; the flow to %s was not taken", h.Armed(), service)
	}
	return id, f
}

// refused checks an error of the client's.
func refused(t *testing.T, err error, status int, field string, texts ...string) {
	t.Helper()
	e, ok := errors.AsType[*observe.Error](err)
	if !ok {
		t.Fatalf("error %v, want an *observe.Error", err)
	}
	if e.Status != status || e.Field != field {
		t.Errorf("status %d, field %q of %q; want %d, %q", e.Status, e.Field, e.Message, status, field)
	}
	for _, text := range texts {
		if !strings.Contains(e.Message, text) {
			t.Errorf("error %q: want %q in it", e.Message, text)
		}
	}
}

func TestOnlyFlowsThatMatchAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder()
		defer h.Close()
		if h.Armed() {
			t.Error("armed, though no hold waits")
		}
		waiting := startHold(t, h, "shop/web", 0)
		if waiting.State != observe.HoldWaiting || waiting.Generation != 1 || waiting.Query.Seconds != 60 || waiting.Record != nil || !waiting.Expires.Equal(time.Now().Add(time.Minute)) {
			t.Errorf("a new hold: %+v", waiting)
		}
		if h.Take(arrive(1, toNone)) {
			t.Error("took a flow of another service")
		}
		f := arrive(2, toWeb)
		if !h.Take(f) {
			t.Error("did not take the flow")
		}
		if h.Armed() || h.Take(arrive(3, toWeb)) {
			t.Error("one hold wants two flows")
		}
		got := get(t, h, waiting.ID)
		if got.State != observe.HoldHolding || got.Generation != 2 || got.Step != 0 || got.Record == nil {
			t.Fatalf("holding: %+v", got)
		}
		r := got.Record
		if r.SourcePod != "shop/client" || r.Service != "shop/web:http" || r.Endpoint != drawnEndpoint || r.Conntrack != "" || *r.Queue != 100 || r.Generation != 7 || len(r.Steps) < 3 || r.Held != nil {
			t.Errorf("record %+v", r)
		}
		r.SourcePod = "changed by its reader"
		if again := get(t, h, waiting.ID).Record; again.SourcePod != "shop/client" {
			t.Error("readers share one record")
		}
		// By the pod it comes from, which only the names show.
		if _, err := h.Hold(t.Context(), observe.HoldQuery{Flow: observe.HoldFilter{Pod: "shop/client"}}); err != nil || !h.Take(arrive(4, toNone)) {
			t.Errorf("did not take the pod's flow (%v)", err)
		}
	})
}

func TestSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder()
		defer h.Close()
		id, f := holding(t, h, "web", toWeb)
		_, err := h.Act(t.Context(), id, observe.Act{Action: observe.ActBack})
		refused(t, err, 409, "", id, "is at its first step")
		steps := len(get(t, h, id).Record.Steps)
		for i := range steps {
			if got := act(t, h, id, observe.ActStep, ""); got.Step != i+1 || got.State != observe.HoldHolding || got.Generation != uint64(3+i) {
				t.Fatalf("after step %d of %d: %+v", i+1, steps, got)
			}
		}
		if got := act(t, h, id, observe.ActBack, ""); got.Step != steps-1 {
			t.Errorf("a step back from %d is %d", steps, got.Step)
		}
		act(t, h, id, observe.ActStep, "")
		if f.went() != "held" {
			t.Errorf("at the last step it is %s", f.went())
		}
		time.Sleep(3 * time.Second)
		got := act(t, h, id, observe.ActStep, "")
		if want := "released after 3s: dnat " + drawnEndpoint; f.went() != want || got.State != observe.HoldDone || got.Outcome != "released" || got.Expires != nil {
			t.Errorf("beyond the last step: %s, %+v; want %s", f.went(), got, want)
		}
		if r := got.Record; r.Conntrack != "created" || r.Held == nil || *r.Held != (flow.Hold{ID: id, Seconds: 3, Action: "released"}) || len(r.Steps) != steps || got.Step != steps || r.SourcePod == "" {
			t.Errorf("record of what went: %+v", r)
		}
		if w := h.holds[0]; w.flow.Table != nil || w.drawn.ServicePort != nil {
			t.Error("the table of a flow that has gone is kept")
		}
		_, err = h.Act(t.Context(), id, observe.Act{Action: observe.ActStep})
		refused(t, err, 409, "", id, "has ended (released)")
	})
}

func TestChoose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder()
		defer h.Close()
		id, f := holding(t, h, "web", toWeb)
		before := get(t, h, id)
		for range before.Record.Steps {
			act(t, h, id, observe.ActStep, "")
		}
		got := act(t, h, id, observe.ActChoose, "10.244.0.4:8080")
		if got.Record.Endpoint != "10.244.0.4:8080" || *got.Record.Draw <= 2.0/3 || got.State != observe.HoldHolding {
			t.Errorf("chosen: %+v, record %+v", got, got.Record)
		}
		// The way to the draw is the same; what was done after it is undone.
		if got.Step == 0 || got.Step >= len(before.Record.Steps) || got.Record.Steps[got.Step-1] != before.Record.Steps[got.Step-1] || got.Record.Steps[got.Step] == before.Record.Steps[got.Step] {
			t.Errorf("at step %d after the choice; before: %+v; then: %+v", got.Step, before.Record.Steps, got.Record.Steps)
		}
		if again := act(t, h, id, observe.ActChoose, "10.244.0.4:8080"); again.Generation != got.Generation {
			t.Error("the same choice again is a change")
		}
		if f.went() != "held" {
			t.Errorf("a choice let the flow go: %s", f.went())
		}
		for _, bad := range []string{"10.244.0.5:8080", "10.244.0.4", "web", "10.244.0.4:80800"} {
			_, err := h.Act(t.Context(), id, observe.Act{Action: observe.ActChoose, Endpoint: bad})
			refused(t, err, 400, "endpoint", bad, "want one of 10.244.0.2:8080, "+drawnEndpoint+", 10.244.0.4:8080")
		}
		act(t, h, id, observe.ActRelease, "")
		if want := "chosen after 0s: dnat 10.244.0.4:8080"; f.went() != want {
			t.Errorf("went %s, want %s", f.went(), want)
		}
		if got := get(t, h, id); got.Outcome != "chosen" || got.Record.Endpoint != "10.244.0.4:8080" || got.Step != len(got.Record.Steps) {
			t.Errorf("done: %+v", got)
		}
	})
}

// TestChooseBackWhatWasDrawn: then it was no choice, and the draw is the real one.
func TestChooseBackWhatWasDrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder()
		defer h.Close()
		id, f := holding(t, h, "web", toWeb)
		act(t, h, id, observe.ActChoose, "10.244.0.2:8080")
		if got := act(t, h, id, observe.ActChoose, drawnEndpoint); *got.Record.Draw != 0.4 {
			t.Errorf("draw %v, want the one it was", *got.Record.Draw)
		}
		act(t, h, id, observe.ActRelease, "")
		if want := "released after 0s: dnat " + drawnEndpoint; f.went() != want {
			t.Errorf("went %s, want %s", f.went(), want)
		}
	})
}

func TestManyCandidatesAreNotAllListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder()
		defer h.Close()
		id, _ := holding(t, h, "many", toMany)
		_, err := h.Act(t.Context(), id, observe.Act{Action: observe.ActChoose, Endpoint: "10.244.7.99:80"})
		refused(t, err, 400, "endpoint", "10.244.7.10:80, 3 others")
	})
}

func TestRefusedFlowHasNoChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder()
		defer h.Close()
		id, f := holding(t, h, "none", toNone)
		_, err := h.Act(t.Context(), id, observe.Act{Action: observe.ActChoose, Endpoint: "10.244.0.2:8080"})
		refused(t, err, 409, "", id, "without an endpoint", "reject, no-endpoints")
		act(t, h, id, observe.ActRelease, "")
		if want := "released after 0s: reject"; f.went() != want {
			t.Errorf("went %s, want %s", f.went(), want)
		}
	})
}

func TestDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder()
		defer h.Close()
		id, f := holding(t, h, "web", toWeb)
		act(t, h, id, observe.ActChoose, "10.244.0.2:8080")
		got := act(t, h, id, observe.ActDrop, "")
		if want := "dropped after 0s: drop"; f.went() != want || f.gone.Decision.Reason != decision.DroppedByHand {
			t.Errorf("went %s (%s), want %s", f.went(), f.gone.Decision.Reason, want)
		}
		if got.Outcome != "dropped" || got.Step != 0 || got.Record.Held.Action != "dropped" || len(got.Record.Steps) == 0 {
			t.Errorf("dropped: %+v", got)
		}
	})
}

// TestExpiry: waiting and holding end by themselves, each after its time, and a flow without an
// act goes where it was drawn, whatever was played with.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder()
		defer h.Close()
		waiting := startHold(t, h, "none", 10)
		held := startHold(t, h, "web", 10)
		time.Sleep(9 * time.Second)
		f := arrive(1, toWeb)
		h.Take(f)
		drawn := get(t, h, held.ID).Record.Steps
		act(t, h, held.ID, observe.ActChoose, "10.244.0.2:8080")
		time.Sleep(9 * time.Second) // the one that waits expires
		synctest.Wait()
		if got := get(t, h, waiting.ID); got.State != observe.HoldDone || got.Outcome != "expired" || got.Record != nil || h.Armed() {
			t.Errorf("waited too long: %+v, armed: %v", got, h.Armed())
		}
		if f.went() != "held" {
			t.Errorf("9 s of 10 after it was held: %s", f.went())
		}
		_, err := h.Act(t.Context(), waiting.ID, observe.Act{Action: observe.ActRelease})
		refused(t, err, 409, "", waiting.ID, "has ended (expired): no flow matched")
		time.Sleep(time.Second)
		synctest.Wait()
		if want := "expired after 10s: dnat " + drawnEndpoint; f.went() != want {
			t.Errorf("went %s, want %s", f.went(), want)
		}
		if got := get(t, h, held.ID); got.State != observe.HoldDone || got.Outcome != "expired" || got.Record.Endpoint != drawnEndpoint || *got.Record.Draw != 0.4 || got.Record.Held.Action != "expired" || !slices.Equal(got.Record.Steps, drawn) {
			t.Errorf("held too long: %+v, %+v", got, got.Record)
		}
	})
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder()
		defer h.Close()
		waiting := startHold(t, h, "none", 0)
		_, err := h.Act(t.Context(), waiting.ID, observe.Act{Action: observe.ActStep})
		refused(t, err, 409, "", waiting.ID, "is waiting for a flow")
		id, f := holding(t, h, "web", toWeb)
		for _, id := range []string{waiting.ID, id, id} {
			if err := h.Cancel(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if got := get(t, h, id); got.State != observe.HoldDone || got.Outcome != "cancelled" {
				t.Errorf("cancelled: %+v", got)
			}
		}
		if want := "cancelled after 0s: dnat " + drawnEndpoint; f.went() != want {
			t.Errorf("went %s, want %s", f.went(), want)
		}
		if h.Armed() {
			t.Error("armed, though no hold waits")
		}
		for _, err := range []error{h.Cancel(t.Context(), "hold-x"), second(h.Get(t.Context(), "hold-x", 0)), second(h.Act(t.Context(), "hold-x", observe.Act{Action: observe.ActStep}))} {
			refused(t, err, 404, "id", "hold hold-x not found")
		}
	})
}

func second(_ *observe.Hold, err error) error { return err }

// TestGetWaits: for a change, or for as long as the client does.
func TestGetWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder()
		defer h.Close()
		id := startHold(t, h, "web", 60).ID
		got := make(chan *observe.Hold, 1)
		next := func(after uint64) {
			w, err := h.Get(t.Context(), id, after)
			if err != nil {
				t.Error(err)
			}
			got <- w
		}
		go next(1)
		synctest.Wait()
		if len(got) > 0 {
			t.Fatal("did not wait")
		}
		f := arrive(1, toWeb)
		h.Take(f)
		if w := <-got; w.Generation != 2 || w.State != observe.HoldHolding {
			t.Errorf("after a flow came: %+v", w)
		}
		go next(1) // it is past already
		if w := <-got; w.Generation != 2 {
			t.Errorf("past generation: %+v", w)
		}
		go next(2)
		synctest.Wait()
		h.Repeated(f)
		h.Repeated(arrive(2, toWeb)) // not this one
		if w := <-got; w.Generation != 3 || w.Retransmissions != 1 {
			t.Errorf("after the packet came again: %+v", w)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		if w, err := h.Get(ctx, id, 3); err != nil || w.Generation != 3 || time.Since(began) != 5*time.Second {
			t.Errorf("after %s: %+v, %v", time.Since(began), w, err)
		}
	})
}

func TestHowManyHoldsThereMayBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder()
		defer h.Close()
		var first, last *observe.Hold
		for i := range Remembered + 1 {
			if last = startHold(t, h, "web", 0); i == 0 {
				first = last
			}
			if i > 0 { // the first stays open
				if err := h.Cancel(t.Context(), last.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
		list, err := h.Holds(t.Context())
		if err != nil || len(list) != Remembered || list[0].ID != first.ID || list[len(list)-1].ID != last.ID {
			t.Errorf("%d holds remembered (%v), from %s to %s; want %d, from %s to %s", len(list), err, list[0].ID, list[len(list)-1].ID, Remembered, first.ID, last.ID)
		}
		for range MaxOpen - 1 {
			startHold(t, h, "web", 0)
		}
		q := observe.HoldQuery{Flow: observe.HoldFilter{Service: "web"}}
		_, err = h.Hold(t.Context(), q)
		refused(t, err, 409, "", "8 active holds", first.ID)
		if err := h.Cancel(t.Context(), first.ID); err != nil {
			t.Fatal(err)
		}
		startHold(t, h, "web", 0)
	})
}

func TestInvalidRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder()
		_, err := h.Hold(t.Context(), observe.HoldQuery{})
		refused(t, err, 400, "flow", "no filter")
		_, err = h.Hold(t.Context(), observe.HoldQuery{Flow: observe.HoldFilter{Node: "node-b"}})
		refused(t, err, 404, "flow.node", "node node-b is not observed by this server: it observes node-a")
		id := startHold(t, h, "web", 0).ID
		_, err = h.Act(t.Context(), id, observe.Act{Action: "jump"})
		refused(t, err, 400, "action", "want step, back, choose, release or drop")
		h.Close()
		_, err = h.Hold(t.Context(), observe.HoldQuery{Flow: observe.HoldFilter{Service: "web"}})
		refused(t, err, 503, "", "node-a has stopped")
	})
}

// TestClose: nothing is held, or waited for, any more.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder()
		startHold(t, h, "none", 0)
		id, f := holding(t, h, "web", toWeb)
		h.Close()
		if want := "cancelled after 0s: dnat " + drawnEndpoint; f.went() != want {
			t.Errorf("went %s, want %s", f.went(), want)
		}
		if got := get(t, h, id); got.State != observe.HoldDone || h.Armed() || h.Take(arrive(9, toNone)) {
			t.Errorf("after the end: %+v, armed: %v", got, h.Armed())
		}
	})
}

// TestEverybodyAtOnce: actions, expiry and the end come together; the flow goes once.
func TestEverybodyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 {
			h := newHolder()
			id := startHold(t, h, "web", 1).ID
			f := arrive(1, toWeb)
			h.Take(f)
			var all sync.WaitGroup
			for _, a := range []observe.Act{{Action: observe.ActStep}, {Action: observe.ActChoose, Endpoint: "10.244.0.2:8080"}, {Action: observe.ActRelease}, {Action: observe.ActDrop}, {Action: observe.ActBack}} {
				all.Go(func() {
					time.Sleep(time.Second) // with the expiry
					if _, err := h.Act(t.Context(), id, a); err != nil {
						refused(t, err, 409, "")
					}
					h.Repeated(f)
				})
			}
			all.Go(func() { time.Sleep(time.Second); h.Close() })
			all.Wait()
			synctest.Wait()
			if got := get(t, h, id); got.State != observe.HoldDone || f.went() == "held" || got.Record.Held.Action != got.Outcome || f.gone.Held.Action != got.Outcome {
				t.Fatalf("%s; %+v", f.went(), got)
			}
		}
	})
}
