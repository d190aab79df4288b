package remote

import (
	"net/url"
	"reflect"
	"testing"
	"testing/quick"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// TestParametersRoundTrip: what is written is read, whatever is in the fields; each field
// that is set is one parameter.
func TestParametersRoundTrip(t *testing.T) {
	number := func(q any) (n int) {
		for i := range reflect.TypeOf(q).NumField() {
			if !reflect.ValueOf(q).Field(i).IsZero() {
				n++
			}
		}
		return n
	}
	overWire := func(v url.Values) url.Values {
		u, err := url.Parse("http://localhost/?" + v.Encode())
		if err != nil {
			t.Fatal(err)
		}
		return u.Query()
	}
	if err := quick.Check(func(q observe.FlowQuery) bool {
		v := parameters(q)
		got, err := observe.QueryOf[observe.FlowQuery](overWire(v))
		return err == nil && got == q && len(v) == number(q)
	}, nil); err != nil {
		t.Error(err)
	}
	if err := quick.Check(func(q observe.ServiceQuery) bool {
		v := parameters(q)
		got, err := observe.QueryOf[observe.ServiceQuery](overWire(v))
		return err == nil && got == q && len(v) == number(q)
	}, nil); err != nil {
		t.Error(err)
	}
}
