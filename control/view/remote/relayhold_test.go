package remote_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

var holdWeb = observe.HoldQuery{Flow: observe.HoldFilter{Service: "web"}, Seconds: 5}

// TestRelayHolds: the first node that gets a flow wins, and the others are cancelled.
func TestRelayHolds(t *testing.T) {
	f, fakes := newRelay(t, 3, remote.RelayOptions{})
	ctx, h := t.Context(), f.Holder()
	hold, err := h.Hold(ctx, holdWeb)
	if err != nil {
		t.Fatal(err)
	}
	if hold.State != observe.HoldWaiting || hold.Query != holdWeb || hold.Expires == nil {
		t.Errorf("%+v", hold)
	}
	var e *observe.Error
	if _, err := h.Act(ctx, hold.ID, observe.Act{Action: observe.ActStep}); !errors.As(err, &e) || e.Status != 409 {
		t.Errorf("nothing is held: error %v", err)
	}
	if !fakes[1].Catch(flow.Record{Version: 1, Source: "1", Steps: []flow.Step{{}}}) {
		t.Fatal("node-b got no request")
	}
	next := func() {
		t.Helper()
		if hold, err = h.Get(ctx, hold.ID, hold.Generation); err != nil {
			t.Fatal(err)
		}
	}
	next()
	if hold.State != observe.HoldHolding || hold.Record.Source != "1" || hold.Query != holdWeb {
		t.Errorf("%+v", hold)
	}
	for i, outcome := range []string{"cancelled", "", "cancelled"} {
		if !fakes[i].AwaitOutcome(ctx, outcome) {
			t.Errorf("node %d has another outcome than %q", i, outcome)
		}
	}
	if fakes[0].Catch(flow.Record{}) || fakes[2].Catch(flow.Record{}) {
		t.Error("the others still wait")
	}
	generation := hold.Generation
	if hold, err = h.Act(ctx, hold.ID, observe.Act{Action: observe.ActStep}); err != nil || hold.Step != 1 || hold.Generation <= generation {
		t.Fatalf("%+v, %v", hold, err)
	}
	// What happens at the node by itself is seen, too.
	fakes[1].Expire("node-b-1")
	next()
	if hold.State != observe.HoldDone || hold.Outcome != "expired" || hold.Record.Source != "1" || hold.Record.Held.ID != hold.ID || hold.Step != 1 {
		t.Errorf("%+v", hold)
	}
	list, err := h.Holds(ctx)
	if diff := cmp.Diff([]observe.Hold{*hold}, list); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	for _, err := range []error{h.Cancel(ctx, "none"), second(h.Get(ctx, "none", 0)), second(h.Act(ctx, "none", observe.Act{}))} {
		if !errors.As(err, &e) || e.Status != 404 {
			t.Errorf("error %v", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestRelayHoldsOnce: of two nodes that get a flow at the same time, one releases it.
func TestRelayHoldsOnce(t *testing.T) {
	f, fakes := newRelay(t, 2, remote.RelayOptions{})
	for n := range 20 {
		hold, err := f.Holder().Hold(t.Context(), holdWeb)
		if err != nil {
			t.Fatal(err)
		}
		caught := make(chan bool)
		for _, fake := range fakes {
			go func() { caught <- fake.Catch(flow.Record{Version: 1}) }()
		}
		for range fakes {
			netnstest.Receive(t, caught, "a flow to be held or let go")
		}
		if hold, err = f.Holder().Get(t.Context(), hold.ID, hold.Generation); err != nil || hold.State != observe.HoldHolding {
			t.Fatalf("%+v, %v", hold, err)
		}
		if hold, err = f.Holder().Act(t.Context(), hold.ID, observe.Act{Action: observe.ActRelease}); err != nil || hold.Outcome != "released" {
			t.Fatalf("%+v, %v", hold, err)
		}
		released := 0
		for _, fake := range fakes {
			list, err := fake.Holds(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if id := list[n].ID; list[n].Outcome != "released" {
				// It is cancelled now or in a moment.
				got, err := fake.Get(t.Context(), id, 0)
				for err == nil && got.State != observe.HoldDone {
					got, err = fake.Get(t.Context(), id, got.Generation)
				}
				if err != nil || got.Outcome != "cancelled" {
					t.Errorf("%+v, %v", got, err)
				}
				continue
			}
			released++
		}
		if released != 1 {
			t.Errorf("%d were released", released)
		}
	}
}

func TestRelayHoldCancelled(t *testing.T) {
	f, fakes := newRelay(t, 2, remote.RelayOptions{})
	hold, err := f.Holder().Hold(t.Context(), holdWeb)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Holder().Cancel(t.Context(), hold.ID); err != nil {
		t.Fatal(err)
	}
	if hold, err = f.Holder().Get(t.Context(), hold.ID, 0); err != nil || hold.State != observe.HoldDone || hold.Outcome != "cancelled" {
		t.Errorf("%+v, %v", hold, err)
	}
	for _, fake := range fakes {
		if !fake.AwaitOutcome(t.Context(), "cancelled") {
			t.Error("a node still waits")
		}
	}
}

// TestRelayHoldExpires when it did on all nodes.
func TestRelayHoldExpires(t *testing.T) {
	f, fakes := newRelay(t, 2, remote.RelayOptions{})
	hold, err := f.Holder().Hold(t.Context(), holdWeb)
	if err != nil {
		t.Fatal(err)
	}
	fakes[0].Expire("node-a-1")
	if hold, err = f.Holder().Get(t.Context(), hold.ID, 0); err != nil || hold.State != observe.HoldWaiting {
		t.Errorf("%+v, %v", hold, err)
	}
	fakes[1].Expire("node-b-1")
	if hold, err = f.Holder().Get(t.Context(), hold.ID, hold.Generation); err != nil || hold.Outcome != "expired" || hold.Expires != nil {
		t.Errorf("%+v, %v", hold, err)
	}
}

// TestRelayHoldLost: a node that answers and does not know the hold does not keep it open;
// one that is unreachable for a moment does.
func TestRelayHoldLost(t *testing.T) {
	f, fakes := newRelay(t, 1, remote.RelayOptions{})
	ctx := t.Context()
	hold, err := f.Holder().Hold(ctx, holdWeb)
	if err != nil {
		t.Fatal(err)
	}
	fakes[0].Catch(flow.Record{Version: 1})
	if hold, err = f.Holder().Get(ctx, hold.ID, hold.Generation); err != nil || hold.State != observe.HoldHolding {
		t.Fatalf("%+v, %v", hold, err)
	}
	requests := len(fakes[0].Requests())
	fakes[0].Fail(errors.New("on fire"))
	if !fakes[0].AwaitRequests(ctx, requests+2) {
		t.Error("no second request")
	}
	fakes[0].Fail(nil)
	if hold, err = f.Holder().Get(ctx, hold.ID, 0); err != nil || hold.State != observe.HoldHolding {
		t.Fatalf("%+v, %v", hold, err)
	}
	fakes[0].Forget()
	if hold, err = f.Holder().Get(ctx, hold.ID, hold.Generation); err != nil || hold.State != observe.HoldDone || hold.Outcome != "expired" || hold.Record == nil {
		t.Errorf("%+v, %v", hold, err)
	}
}

// TestRelayHoldRefused: what one node refuses the others do not wait for.
func TestRelayHoldRefused(t *testing.T) {
	f, fakes := newRelay(t, 3, remote.RelayOptions{})
	ctx := t.Context()
	fakes[1].Fail(&observe.Error{Status: 409, Message: "another flow is held"})
	var e *observe.Error
	if _, err := f.Holder().Hold(ctx, holdWeb); !errors.As(err, &e) || e.Status != 409 {
		t.Errorf("error %v", err)
	}
	if !fakes[0].AwaitOutcome(ctx, "cancelled") || !fakes[2].AwaitOutcome(ctx, "cancelled") {
		t.Error("the others still wait")
	}
	// An unreachable node is left out, unless it is named.
	fakes[1].Fail(errors.New("on fire"))
	if _, err := f.Holder().Hold(ctx, holdWeb); err != nil {
		t.Error(err)
	}
	const none = "holding flows is not available: the daemon requires --flow-api-holds"
	named := observe.HoldQuery{Flow: observe.HoldFilter{Node: "node-a,node-b"}}
	if _, err := f.Holder().Hold(ctx, named); err == nil || err.Error() != "node node-b: on fire" {
		t.Errorf("error %v", err)
	}
	fakes[1].Fail(nil)
	fakes[1].NoHolds = true
	if _, err := f.Holder().Hold(ctx, named); err == nil || err.Error() != "node node-b: "+none {
		t.Errorf("error %v", err)
	}
	if !fakes[2].AwaitOutcome(ctx, "cancelled", "") {
		t.Error("a node that is not named got a request")
	}
	fakes[0].Fail(&observe.Error{Status: 404, Message: "holding flows is not available on this server"}) // as a remote node answers
	if _, err := f.Holder().Hold(ctx, holdWeb); err != nil {
		t.Error(err)
	}
	fakes[2].NoHolds = true
	fakes[1].NoHolds = false
	holder := f.Holder()
	fakes[1].NoHolds = true
	if _, err := holder.Hold(ctx, holdWeb); !errors.As(err, &e) || e.Status != 404 || e.Message != "holding flows is not available on this server" {
		t.Errorf("error %v", err)
	}
	fakes[0].Fail(nil)
	for want, q := range map[string]observe.HoldQuery{
		"flow":      {},
		"flow.node": {Flow: observe.HoldFilter{Node: "x"}},
		"flow.port": {Flow: observe.HoldFilter{Port: "x"}},
	} {
		if _, err := f.Holder().Hold(ctx, q); !errors.As(err, &e) || e.Status != 400 || e.Field != want {
			t.Errorf("error %#v, want one of field %s", err, want)
		}
	}
	for _, fake := range fakes {
		fake.NoHolds = true
	}
	if f.Holder() != nil {
		t.Error("no node can hold flows")
	}
}

// TestRelayHoldNames: records name the relay's hold, not the node's, and holds that are over
// are forgotten at last.
func TestRelayHoldNames(t *testing.T) {
	f, fakes := newRelay(t, 1, remote.RelayOptions{})
	ctx := t.Context()
	seen := make(map[string]bool)
	var last string
	for range remote.RememberedHolds + 5 {
		hold, err := f.Holder().Hold(ctx, holdWeb)
		if err != nil {
			t.Fatal(err)
		}
		if seen[hold.ID] {
			t.Fatalf("%s twice", hold.ID)
		}
		seen[hold.ID], last = true, hold.ID
		if err := f.Holder().Cancel(ctx, hold.ID); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := f.Holder().Holds(ctx); err != nil || len(list) != remote.RememberedHolds || list[len(list)-1].ID != last {
		t.Errorf("%d holds, %v", len(list), err)
	}
	r := flow.Record{Version: 1, ID: "1", Held: &flow.Hold{ID: "node-a-105"}}
	fakes[0].List = []observe.Item{{Record: &r}}
	if got, err := f.Flow(ctx, "1"); err != nil || got.Held.ID != last || r.Held.ID != "node-a-105" {
		t.Errorf("%+v, %v", got.Held, err)
	}
	r.Held.ID = "another"
	if got, err := f.Flow(ctx, "1"); err != nil || got.Held.ID != "another" {
		t.Errorf("%+v, %v", got.Held, err)
	}
}

// TestRelayHoldGet: when the context ends, the hold is given as it is.
func TestRelayHoldGet(t *testing.T) {
	f, _ := newRelay(t, 1, remote.RelayOptions{})
	hold, err := f.Holder().Hold(t.Context(), holdWeb)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := f.Holder().Get(ctx, hold.ID, hold.Generation); err != nil || got.ID != hold.ID {
		t.Errorf("%+v, %v", got, err)
	}
}

var _ observe.Observer = (*observetest.Fake)(nil)
