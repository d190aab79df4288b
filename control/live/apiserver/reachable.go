package apiserver

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"
)

// Pauses between attempts to reach the API server double from one to the other, and are
// up to a half shorter at random, so that not all nodes come at once.
const firstPause, longestPause = 250 * time.Millisecond, 5 * time.Second

// reachable tracks whether the API server responds, and retries if it does not.
//
// Informers would try again themselves, but wait up to a minute before they do, and
// that each for itself (client-go's reflectors): so long would changes be missed though
// the API server is back.
type reachable struct {
	next   http.RoundTripper
	log    *slog.Logger
	server string
	away   atomic.Bool
}

// RoundTrip implements [http.RoundTripper].
func (r *reachable) RoundTrip(request *http.Request) (*http.Response, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		response, err := r.next.RoundTrip(request)
		r.note(request, response, err)
		again := err != nil || response.StatusCode == http.StatusServiceUnavailable
		// Write requests are not retried: the caller decides.
		if !again || request.Method != http.MethodGet {
			return response, err
		}
		timer := time.NewTimer(pause - rand.N(pause/2))
		select {
		case <-request.Context().Done():
			timer.Stop()
			return response, err
		case <-timer.C:
		}
		if err == nil {
			_ = response.Body.Close()
		}
	}
}

// note logs a change of the API server's reachability.
func (r *reachable) note(request *http.Request, response *http.Response, err error) {
	switch {
	case err == nil && response.StatusCode < http.StatusInternalServerError:
		if r.away.CompareAndSwap(true, false) {
			r.log.Info("the API server is reachable again", "server", r.server)
		}
		switch what := request.Method + " " + request.URL.Path; response.StatusCode {
		case http.StatusForbidden:
			// An API server that has just started may do so for a moment.
			r.log.Error("permission denied by the API server: check the ClusterRole", "request", what, "status", response.Status)
		case http.StatusUnauthorized:
			r.log.Error("authentication at the API server failed: check the token or certificate", "request", what, "status", response.Status)
		}
	case request.Context().Err() == nil && r.away.CompareAndSwap(false, true):
		message := "cannot reach the API server; the last table stays in force"
		if err == nil {
			message, err = "the API server is not ready; the last table stays in force", errors.New(response.Status)
		}
		r.log.Warn(message, "server", r.server, "error", err)
	}
}
