package flowapi

import (
	"errors"
	"net/http"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
)

// FuzzDecode: whatever a body is, it is a question or one clear error.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"flow":{"service":"web"},"seconds":5}`))
	f.Add([]byte(`{"flow":[{}],"seconds":1e400}`))
	f.Add([]byte(` null `))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{new(observe.Question), new(observe.HoldQuery), new(observe.Act)} {
			err := decode(b, v)
			if q, ok := v.(*observe.HoldQuery); ok && err == nil {
				_, _, err = q.Parse()
			}
			var e *observe.Error
			if err != nil && (!errors.As(err, &e) || e.Status != http.StatusBadRequest || e.Message == "") {
				t.Errorf("%q: %#v", b, err)
			}
		}
	})
}
