package remote

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// pipe is a server that answers with what is written into it, and nothing more.
type pipe struct{ io.Reader }

func (p pipe) RoundTrip(r *http.Request) (*http.Response, error) {
	reader, writer := io.Pipe()
	context.AfterFunc(r.Context(), func() { writer.CloseWithError(r.Context().Err()) })
	go func() { _, _ = io.Copy(writer, p) }() // and then stays open
	return &http.Response{StatusCode: http.StatusOK, Body: reader}, nil
}

// TestSilence: a stream without a writer does not last for ever, but its reader
// may take as long as it likes over a record.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := NewClient("localhost:1", ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.http.Transport = pipe{strings.NewReader(strings.Repeat(`{"version":1}`+"\n", 2))}
		n, start := 0, time.Now()
		err = c.Flows(t.Context(), observe.FlowQuery{Follow: true}, func(observe.Item) error {
			n++
			time.Sleep(time.Hour) // of the bubble's clock
			return nil
		})
		if n != 2 || !errors.Is(err, errSilent) || !strings.HasPrefix(err.Error(), "localhost:1: ") {
			t.Errorf("error %v after %d records", err, n)
		}
		if took := time.Since(start); took != 2*time.Hour+streamTimeout {
			t.Errorf("it took %v, want two hours and %v", took, streamTimeout)
		}
	})
}
