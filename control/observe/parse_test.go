package observe_test

import (
	"net/url"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

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
		if _, err := observe.QueryOf[observe.FlowQuery](v); err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %s", query, err, want)
		}
	}
	q, err := observe.QueryOf[observe.FlowQuery](url.Values{"follow": {""}, "steps": {"false"}, "service": {""}})
	if want := (observe.FlowQuery{Follow: true}); err != nil || q != want {
		t.Errorf("got %+v, %v", q, err)
	}
	if _, err := observe.QueryOf[struct{}](url.Values{"x": {""}}); err == nil || err.Error() != `parameter "x": this path has no parameters` {
		t.Errorf("error %v", err)
	}
}
