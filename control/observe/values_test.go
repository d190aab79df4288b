package observe_test

import (
	"net/url"
	"reflect"
	"testing"
	"testing/quick"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// TestValuesRoundTrip: what is written is read, whatever is in the fields; each field
// that is set is one parameter.
func TestValuesRoundTrip(t *testing.T) {
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
		v := q.Values()
		got, err := observe.FlowQueryOf(overWire(v))
		return err == nil && got == q && len(v) == number(q)
	}, nil); err != nil {
		t.Error(err)
	}
	if err := quick.Check(func(q observe.ServiceQuery) bool {
		v := q.Values()
		got, err := observe.ServiceQueryOf(overWire(v))
		return err == nil && got == q && len(v) == number(q)
	}, nil); err != nil {
		t.Error(err)
	}
}

func TestValuesErrors(t *testing.T) {
	for query, want := range map[string]string{
		"folow=true":               `parameter "folow": want follow, service, namespace, pod, node, source, destination, endpoint, port, protocol, verdict, reason, state, servicesonly, joined, event, since, until, limit, rate, steps`,
		"follow=1":                 `follow "1": want true or false`,
		"service=a&service=b":      `service is given 2 times: give it once, a list with commas`,
		"steps&steps":              `steps is given 2 times: give it once, a list with commas`,
		"Service=a":                `parameter "Service": want follow, service, namespace, pod, node, source, destination, endpoint, port, protocol, verdict, reason, state, servicesonly, joined, event, since, until, limit, rate, steps`,
		"steps=x&follow=y&b=1&a=1": `parameter "a": want follow, service, namespace, pod, node, source, destination, endpoint, port, protocol, verdict, reason, state, servicesonly, joined, event, since, until, limit, rate, steps`,
	} {
		v, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := observe.FlowQueryOf(v); err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %s", query, err, want)
		}
	}
	q, err := observe.FlowQueryOf(url.Values{"follow": {""}, "steps": {"false"}, "service": {""}})
	if want := (observe.FlowQuery{Follow: true}); err != nil || q != want {
		t.Errorf("got %+v, %v", q, err)
	}
	if err := observe.NoValues(url.Values{"x": {""}}); err == nil || err.Error() != `parameter "x": this path has no parameters` {
		t.Errorf("error %v", err)
	}
}
