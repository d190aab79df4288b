// Package flowapitest has a server of a flow API over a fake node, for tests.
package flowapitest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
)

// World is a server over a fake node.
type World struct {
	*httptest.Server
	Fake *observetest.Fake
	Log  *bytes.Buffer // of errors; to be read when nothing is under way
}

// New makes a World of what serve makes of the fake node and of the writer of the log.
func New(t testing.TB, serve func(*observetest.Fake, io.Writer) http.Handler) *World {
	t.Helper()
	w := &World{Fake: observetest.New("node-a"), Log: new(bytes.Buffer)}
	w.Server = httptest.NewServer(serve(w.Fake, w.Log))
	t.Cleanup(w.Close)
	return w
}

// Do sends a request, with headers as "Name: value".
func (w *World) Do(t testing.TB, method, path, body string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Add(name, value)
	}
	answer, err := w.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	return answer
}

// Content reads a response.
func Content(t testing.TB, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// JSONBody is the header of a request with a body.
const JSONBody = "Content-Type: application/json"
