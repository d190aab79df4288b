package viewapi

import (
	"bufio"
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi/flowapitest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
)

// TestUpstream: a server in front of a daemon's socket passes through what the daemon answers, streams and changes too; it
// answers itself what views know, and takes the tokens that the daemon takes and no others.
func TestUpstream(t *testing.T) {
	discard := slog.New(slog.DiscardHandler)
	path := filepath.Join(t.TempDir(), "s")
	socket, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	node, balancing := observetest.New("node-a"), new(observetest.Balancing)
	node.StatsAnswer.Node = "node-a"
	node.List = []observe.Item{record("a/1")}
	daemon, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- flowapi.New(flowapi.Config{Observer: node, Balancing: balancing, Token: "secret"}).Serve(daemon, socket)
	}()
	upstream := NewUpstream(path, discard)
	front := flowapi.New(flowapi.Config{
		Observer: observetest.New("another"), Reviewer: upstream, Log: discard,
		Routes: append(upstream.Routes(), Routes(Config{Doctor: new(fakeDoctor)})...),
	})
	w := &flowapitest.World{Server: httptest.NewServer(front)}
	t.Cleanup(w.Close)

	const token, wrong = "Authorization: Bearer secret", "Authorization: Bearer secreT"
	for _, c := range []struct {
		method, path, body, header string
		status                     int
		want                       string
	}{
		{"GET", "/v1/stats", "", "", 401, "missing token"},
		{"GET", "/v1/stats", "", wrong, 401, "wrong token"},
		{"GET", "/v1/stats", "", token, 200, `"node":"node-a"`},
		{"GET", "/v1/stats?x=1", "", token, 400, "x"},
		{"GET", "/v1/flows/a%2F1", "", token, 200, `"id":"a/1"`},
		{"GET", "/v1/findings", "", wrong, 401, "wrong token"},
		{"GET", "/v1/findings", "", token, 200, `"findings":`},
		{"POST", "/v1/balance", `{"service":"default/web","algorithm":"lc"}`, wrong, 401, "wrong token"},
		{"POST", "/v1/balance", `{"service":"default/web","algorithm":"lc"}`, token, 204, ""},
		{"GET", "/v1/lab", "", token, 404, "there is no lab here"},
		{"OPTIONS", "/v1/stats", "", token, 204, ""},
	} {
		r := w.Do(t, c.method, c.path, c.body, cmp.Or(c.header, "Accept: */*"), flowapitest.JSONBody)
		if body := flowapitest.Content(t, r); r.StatusCode != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: %d %s, want %d with %q", c.method, c.path, r.StatusCode, body, c.status, c.want)
		}
		for name, values := range r.Header {
			if len(values) > 1 {
				t.Errorf("%s %s: %s: %q", c.method, c.path, name, values)
			}
		}
		if c.method == "OPTIONS" && r.Header.Get("Allow") != "GET, HEAD, OPTIONS" {
			t.Errorf("%s %s: allowed are %q", c.method, c.path, r.Header.Get("Allow"))
		}
	}

	// The first record of a stream comes before its end.
	r := w.Do(t, http.MethodGet, "/v1/flows?follow&since=1h", "", token)
	if line, err := bufio.NewReader(r.Body).ReadString('\n'); err != nil || !strings.Contains(line, "a/1") {
		t.Errorf("a stream: %q, %v", line, err)
	}
	_ = r.Body.Close()

	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if r := w.Do(t, http.MethodGet, "/v1/stats", "", token); r.StatusCode != http.StatusServiceUnavailable || !strings.Contains(flowapitest.Content(t, r), "the daemon does not answer") {
		t.Errorf("without a daemon: %d", r.StatusCode)
	}
}
