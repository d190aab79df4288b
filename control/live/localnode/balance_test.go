package localnode

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// TestBalancing: algorithms are listed, and a change reaches the controller by its canonical name, or not at all.
func TestBalancing(t *testing.T) {
	port := func(name, algorithm string) *decision.ServicePort {
		return &decision.ServicePort{Name: decision.ServicePortName{Namespace: "default", Name: name, Port: algorithm + "x"}, Balance: algorithm}
	}
	table := decision.NewTable(1, time.Unix(1, 0), decision.Node{}, []*decision.ServicePort{port("web", "rr"), port("web", "lc"), port("dns", "jsq(3)"), port("plain", "")})
	type change struct {
		Service   decision.ServiceName
		Algorithm string
	}
	var changes []change
	failure := errors.New("the controller is closed")
	b := New(Config{Algorithms: balance.NewRegistry(), Table: func() *decision.Table { return table }, Switch: func(_ context.Context, name decision.ServiceName, algorithm *string) error {
		c := change{name, "default"}
		if algorithm != nil {
			c.Algorithm = *algorithm
		}
		changes = append(changes, c)
		if name.Name == "plain" {
			return failure
		}
		return nil
	}})

	a, err := b.Algorithms(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(a.Algorithms, func(a observe.Algorithm) bool { return a.Name == "jsq" }); i < 0 || a.Algorithms[i].Usage != "jsq(N)" || a.Algorithms[i].Summary == "" {
		t.Errorf("algorithms %+v, want jsq among them, with its usage", a.Algorithms)
	}
	if len(a.Services) == 0 || a.Services[0] != (observe.ServiceAlgorithm{Service: "default/dns", Algorithm: "jsq(3)"}) || len(a.Services) != 2 || a.Services[1].Service != "default/web" {
		t.Errorf("services %+v, want default/dns and default/web once", a.Services)
	}

	for _, tt := range []struct {
		change observe.BalanceChange
		status int // 0: it is made
		field  string
	}{
		{observe.BalanceChange{Service: "default/web", Algorithm: "jsq( 2 )"}, http.StatusBadRequest, "algorithm"},
		{observe.BalanceChange{Service: "default/web", Algorithm: "lcc"}, http.StatusBadRequest, "algorithm"},
		{observe.BalanceChange{Service: "web", Algorithm: "lc"}, http.StatusBadRequest, "service"},
		{observe.BalanceChange{Service: "default/wep", Algorithm: "lc"}, http.StatusNotFound, "service"},
		{observe.BalanceChange{Service: "default/web", Algorithm: "maglev(251)"}, 0, ""},
		{observe.BalanceChange{Service: "default/dns"}, 0, ""},
	} {
		err := b.Balance(t.Context(), tt.change)
		var e *observe.Error
		if tt.status == 0 && err != nil || tt.status != 0 && (!errors.As(err, &e) || e.Status != tt.status || e.Field != tt.field) {
			t.Errorf("%+v: %v, want status %d of %q", tt.change, err, tt.status, tt.field)
		}
	}
	if diff := cmp.Diff([]change{
		{decision.ServiceName{Namespace: "default", Name: "web"}, "maglev(251)"},
		{decision.ServiceName{Namespace: "default", Name: "dns"}, "default"},
	}, changes); diff != "" {
		t.Errorf("changes -want +got:\n%s", diff)
	}
	if err := b.Balance(t.Context(), observe.BalanceChange{Service: "default/plain", Algorithm: "lc"}); !errors.Is(err, failure) {
		t.Errorf("%v, want %v", err, failure)
	}

	table = nil
	if _, err := b.Algorithms(t.Context()); err == nil {
		t.Error("algorithms without a table")
	}
	if err := b.Balance(t.Context(), observe.BalanceChange{Service: "default/web", Algorithm: "lc"}); err == nil {
		t.Error("a change without a table")
	}
}
