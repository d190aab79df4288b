package observe_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/flows/flowapi"
	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/control/flows/observe/observetest"
)

// TestFleetBalance: a change reaches all nodes, through their servers; the algorithms are those that all have; errors name the nodes.
func TestFleetBalance(t *testing.T) {
	ctx := t.Context()
	fakes := []*observetest.Balancing{{}, {}}
	var members []observe.Member
	for i, b := range fakes {
		s := httptest.NewServer(flowapi.New(flowapi.Config{Observer: observetest.New("node"), Balancing: b, Token: "secret"}))
		t.Cleanup(s.Close)
		members = append(members, observe.Member{Name: "node-" + string(rune('a'+i)), Observer: newClient(t, s.URL, observe.ClientOptions{Token: "secret"})})
	}
	f, err := observe.NewFleet(members, observe.FleetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	change := observe.BalanceChange{Service: "default/web", Algorithm: "lc"}
	if err := f.Balance(ctx, change); err != nil {
		t.Fatal(err)
	}
	for i, b := range fakes {
		if diff := cmp.Diff([]observe.BalanceChange{change}, b.Changes()); diff != "" {
			t.Errorf("node %d: -want +got:\n%s", i, diff)
		}
	}
	one, err := fakes[0].Algorithms(ctx)
	if err != nil {
		t.Fatal(err)
	}
	all, err := f.Algorithms(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(one, all); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var e *observe.Error
	if err := f.Balance(ctx, observe.BalanceChange{Service: "default/wep", Algorithm: "lc"}); !errors.As(err, &e) || e.Status != 404 || e.Field != "service" {
		t.Errorf("of a service that does not exist: %v", err)
	}
	fakes[1].Err = errors.New("on fire")
	if err := f.Balance(ctx, change); err == nil || !strings.Contains(err.Error(), "node node-b: ") || strings.Contains(err.Error(), "node-a") {
		t.Errorf("one node has failed: %v", err)
	}
	if all, err := f.Algorithms(ctx); err != nil || len(all.Algorithms) != 3 {
		t.Errorf("without one node: %+v, %v", all, err)
	}
	if err := newClient(t, "http://127.0.0.1:1", observe.ClientOptions{}).Balance(ctx, change); err == nil {
		t.Error("no error without a server")
	}
}
