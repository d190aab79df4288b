package remote_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
)

// TestRelayBalance: a change reaches all nodes, through their servers; the algorithms are those that all have; errors name the nodes.
func TestRelayBalance(t *testing.T) {
	ctx := t.Context()
	fakes := []*observetest.Balancing{{}, {}}
	var members []remote.Member
	for i, b := range fakes {
		s := httptest.NewServer(flowapi.New(flowapi.Config{Observer: observetest.New("node"), Balancing: b, Token: "secret"}))
		t.Cleanup(s.Close)
		members = append(members, remote.Member{Name: "node-" + string(rune('a'+i)), Observer: newClient(t, s.URL, remote.ClientOptions{Token: "secret"})})
	}
	f, err := remote.NewRelay(members, remote.RelayOptions{})
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
	shadows, err := f.Shadows(ctx, "default/web")
	if err != nil || len(shadows.Services) != 1 {
		t.Fatalf("shadows %+v, %v", shadows, err)
	}
	alone, err := fakes[0].Shadows(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	sum, want := shadows.Services[0], alone.Services[0]
	want.Flows *= 2
	for _, l := range []*observe.ShadowLoad{&want.Actual, &want.Shadows[0]} {
		l.Same *= 2
		for i := range l.Endpoints {
			l.Endpoints[i].Flows, l.Endpoints[i].Open = 2*l.Endpoints[i].Flows, 2*l.Endpoints[i].Open
		}
	}
	if diff := cmp.Diff(want, sum); diff != "" {
		t.Errorf("shadows of two nodes: -want +got:\n%s", diff)
	}
	if none, err := f.Shadows(ctx, "default/other"); err != nil || len(none.Services) != 0 || len(none.Algorithms) != 1 {
		t.Errorf("shadows of another service: %+v, %v", none, err)
	}
	if _, err := f.Shadows(ctx, "web"); err == nil {
		t.Error("no error without a namespace")
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
	if err := newClient(t, "http://127.0.0.1:1", remote.ClientOptions{}).Balance(ctx, change); err == nil {
		t.Error("no error without a server")
	}
}
