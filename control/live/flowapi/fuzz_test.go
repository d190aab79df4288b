package flowapi

import (
	"errors"
	"net/http"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// FuzzDecode: whatever a body is, it is a question or one clear error.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"flow":{"service":"web"},"seconds":5}`))
	f.Add([]byte(`{"flow":[{}],"seconds":1e400}`))
	f.Add([]byte(` null `))
	f.Add([]byte(`{"kind":"firewall","host":"a","to":"10.0.0.0/8","port":80,"reject":true}`))
	f.Add([]byte(`{"kind":"loss","percent":[1],"to":null}`))
	f.Add([]byte(`{"addPod":{"name":"a","ports":[{"port":80,"protocol":"tcp"}]},"removePod":{"grace":"1x"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{new(observe.Question), new(observe.HoldQuery), new(observe.Act), new(labapi.Fault), new(labapi.Change), new(observe.BalanceChange)} {
			err := decode(b, v)
			if q, ok := v.(*observe.HoldQuery); ok && err == nil {
				_, _, err = q.Parse()
			}
			if fault, ok := v.(*labapi.Fault); ok && err == nil {
				err = fault.Check()
			}
			if change, ok := v.(*labapi.Change); ok && err == nil {
				err = change.Check()
			}
			var e *observe.Error
			if err != nil && (!errors.As(err, &e) || e.Status != http.StatusBadRequest || e.Message == "") {
				t.Errorf("%q: %#v", b, err)
			}
		}
	})
}
