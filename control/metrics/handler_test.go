package metrics

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func ask(h http.Handler, path, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHandler(t *testing.T) {
	m := New("v1.2.3")
	h := m.Handler(HandlerConfig{Log: slog.New(slog.DiscardHandler)})
	for _, c := range []struct{ path, accept, contentType, body string }{
		{"/proxyMode", "", "text/plain; charset=utf-8", "nfqueue"},
		{"/healthz", "", "text/plain; charset=utf-8", "ok"},
		{"/metrics", "", "text/plain; version=0.0.4", `nfqproxy_build_info{version="v1.2.3"} 1` + "\n"},
		{"/metrics", "", "text/plain; version=0.0.4", "\ngo_goroutines "},
		{"/metrics", "application/openmetrics-text", "application/openmetrics-text", "\n# EOF\n"},
	} {
		w := ask(h, c.path, c.accept)
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), c.contentType) || !strings.Contains(w.Body.String(), c.body) {
			t.Errorf("%s (%s): %d %s, want 200 %s with %q in it", c.path, c.accept, w.Code, w.Header().Get("Content-Type"), c.contentType, c.body)
		}
	}
	// Each is what kube-proxy would say, and no more.
	for path, want := range map[string]string{"/proxyMode": "nfqueue", "/healthz": "ok"} {
		if w := ask(h, path, ""); w.Body.String() != want || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %q, headers %v", path, w.Body, w.Header())
		}
	}
	if w := ask(h, "/configz", ""); w.Code != http.StatusNotFound {
		t.Errorf("/configz: %d, want 404", w.Code)
	}
}

func TestProfilingIsAnOption(t *testing.T) {
	m := New("")
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine", "/debug/pprof/symbol"} {
		for profiling, want := range map[bool]int{false: http.StatusNotFound, true: http.StatusOK} {
			h := m.Handler(HandlerConfig{Profiling: profiling, Log: slog.New(slog.DiscardHandler)})
			if w := ask(h, path, ""); w.Code != want {
				t.Errorf("%s with profiling %v: %d, want %d", path, profiling, w.Code, want)
			}
		}
	}
}
