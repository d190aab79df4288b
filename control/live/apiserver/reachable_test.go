package apiserver

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Whether the API server answers is logged once each time it changes.
func TestReachable(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer server.Close()
	var log strings.Builder
	r := &reachable{next: http.DefaultTransport, log: slog.New(slog.NewTextHandler(&log, nil)), server: "s"}
	request := func(url string) {
		request, _ := http.NewRequest(http.MethodPost, url, nil) // tried once
		if response, err := r.RoundTrip(request); err == nil {
			response.Body.Close()
		}
	}
	for _, step := range []struct {
		status int
		url    string
		want   string // in the log; empty: nothing
	}{
		{http.StatusOK, server.URL, ""},
		{http.StatusOK, "http://127.0.0.1:1", "cannot reach the API server; the last table stays in force"},
		{http.StatusOK, "http://127.0.0.1:1", ""},
		{http.StatusOK, server.URL, "is reachable again"},
		{http.StatusServiceUnavailable, server.URL, "is not ready"},
		{http.StatusOK, server.URL, "is reachable again"},
		{http.StatusForbidden, server.URL + "/api/v1/services", "check the ClusterRole\" request=\"POST /api/v1/services\""},
	} {
		log.Reset()
		status = step.status
		request(step.url)
		if got := log.String(); step.want == "" && got != "" || !strings.Contains(got, step.want) || strings.Count(got, "\n") > 1 {
			t.Errorf("%s, status %d: logged %q, want %q", step.url, step.status, got, step.want)
		}
	}
}

// server answers each request with the next of its statuses, 0 for none at all, and
// with the last of them from then on.
type server struct {
	statuses []int
	attempts []time.Time
}

func (s *server) RoundTrip(*http.Request) (*http.Response, error) {
	status := s.statuses[min(len(s.attempts), len(s.statuses)-1)]
	s.attempts = append(s.attempts, time.Now())
	if status == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: status, Body: http.NoBody}, nil
}

// A read waits for the API server, with an attempt every few seconds; a write does
// not.
func TestReachableAgain(t *testing.T) {
	for name, test := range map[string]struct {
		method   string
		statuses []int
		status   int // of the answer; 0: an error
		attempts int
	}{
		"away for long":     {http.MethodGet, append(make([]int, 40), 200), 200, 41},
		"cannot answer yet": {http.MethodGet, []int{0, 503, 503, 200}, 200, 4},
		"refuses":           {http.MethodGet, []int{403}, 403, 1},
		"too old to list":   {http.MethodGet, []int{410}, 410, 1},
		"busy":              {http.MethodGet, []int{429}, 429, 1}, // client-go sees to it
		"write":             {http.MethodPost, []int{0}, 0, 1},
		"write, not now":    {http.MethodPost, []int{503}, 503, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{statuses: test.statuses}
				r := &reachable{next: s, log: quiet}
				request, _ := http.NewRequestWithContext(t.Context(), test.method, "https://server/api", nil)
				response, err := r.RoundTrip(request)
				status := 0
				if err == nil {
					status = response.StatusCode
				}
				if status != test.status || len(s.attempts) != test.attempts {
					t.Errorf("status %d (%v) at attempt %d, want %d at %d", status, err, len(s.attempts), test.status, test.attempts)
				}
				for i := 1; i < len(s.attempts); i++ {
					if pause := s.attempts[i].Sub(s.attempts[i-1]); pause < firstPause/2 || pause > longestPause || i > 10 && pause < longestPause/2 {
						t.Errorf("pause %d is %s", i, pause)
					}
				}
			})
		})
	}
}

// Waiting ends with the request's context.
func TestReachableStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		request, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://server/api", nil)
		began := time.Now()
		if _, err := (&reachable{next: &server{statuses: []int{0}}, log: quiet}).RoundTrip(request); err == nil {
			t.Error("no error, and no answer")
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("ended after %s, want a minute", took)
		}
	})
}
