package observe

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestSilence: a stream that nobody writes any more does not last for ever, but its reader
// may take as long as it likes over a record.
func TestSilence(t *testing.T) {
	next := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 2 {
			_, _ = w.Write([]byte(`{"version":1}` + "\n"))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
			}
		}
		<-r.Context().Done()
	}))
	defer s.Close()
	c, err := NewClient(s.URL, ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.silence = 50 * time.Millisecond
	n := 0
	err = c.Flows(t.Context(), FlowQuery{Follow: true}, func(Item) error {
		if n++; n == 1 {
			time.Sleep(3 * c.silence) // the time does not count, however long it is
			close(next)
		}
		return nil
	})
	if n != 2 || !errors.Is(err, errSilent) || !strings.HasPrefix(err.Error(), s.URL+": ") {
		t.Errorf("error %v after %d records", err, n)
	}
}
