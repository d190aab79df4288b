package metrics

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
)

func get(h http.Handler, path, accept string) *httptest.ResponseRecorder {
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
		{"/proxyMode", "", "text/plain; charset=utf-8", "iptables"},
		{"/healthz", "", "text/plain; charset=utf-8", "ok"},
		{"/metrics", "", "text/plain; version=0.0.4", `nfqproxy_build_info{version="v1.2.3"} 1` + "\n"},
		{"/metrics", "", "text/plain; version=0.0.4", "\ngo_goroutines "},
		{"/metrics", "application/openmetrics-text", "application/openmetrics-text", "\n# EOF\n"},
	} {
		w := get(h, c.path, c.accept)
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), c.contentType) || !strings.Contains(w.Body.String(), c.body) {
			t.Errorf("%s (%s): %d %s, want 200 %s with %q in it", c.path, c.accept, w.Code, w.Header().Get("Content-Type"), c.contentType, c.body)
		}
	}
	// Each is kube-proxy's answer, and no more.
	for path, want := range map[string]string{"/proxyMode": "iptables", "/healthz": "ok"} {
		if w := get(h, path, ""); w.Body.String() != want || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %q, headers %v", path, w.Body, w.Header())
		}
	}
	if w := get(h, "/proxyMode", ""); w.Header().Get("Server") != "nfqproxy" {
		t.Errorf("/proxyMode: headers %v do not name nfqproxy", w.Header())
	}
	if w := get(h, "/configz", ""); w.Code != http.StatusNotFound {
		t.Errorf("/configz: %d, want 404", w.Code)
	}
}

func TestProfilingIsAnOption(t *testing.T) {
	m := New("")
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine", "/debug/pprof/symbol"} {
		for profiling, want := range map[bool]int{false: http.StatusNotFound, true: http.StatusOK} {
			h := m.Handler(HandlerConfig{Profiling: profiling, Log: slog.New(slog.DiscardHandler)})
			if w := get(h, path, ""); w.Code != want {
				t.Errorf("%s with profiling %v: %d, want %d", path, profiling, w.Code, want)
			}
		}
	}
}

// TestHosts: over a loopback address, only addresses and localhost are names of the server.
func TestHosts(t *testing.T) {
	h := New("").Handler(HandlerConfig{Log: slog.New(slog.DiscardHandler)})
	loopback, node := net.IPv4(127, 0, 0, 1), net.IPv4(172, 20, 0, 2)
	for _, c := range []struct {
		local net.IP
		host  string
		code  int
	}{
		{loopback, "localhost:10249", 200},
		{loopback, "LOCALHOST", 200},
		{loopback, "127.0.0.1:10249", 200},
		{loopback, "[::1]:10249", 200},
		{loopback, "[::1]", 200},
		{loopback, "172.20.0.2:9449", 200}, // a proxy in front of it that hands the name on
		{net.IPv6loopback, "evil.example:10249", 403},
		{loopback, "evil.example:10249", 403},
		{loopback, "127.0.0.1.evil.example", 403},
		{loopback, "localhost.evil.example", 403},
		{loopback, "", 200},
		{node, "node-1.example:10249", 200},
		{node, "172.20.0.2:10249", 200},
	} {
		for _, path := range []string{"/metrics", "/healthz", "/proxyMode"} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Host = c.host
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: c.local, Port: 10249})))
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != c.code {
				t.Errorf("%s at %s as %q: %d %s, want %d", path, c.local, c.host, w.Code, w.Body, c.code)
			}
		}
	}
}

// TestLimits: what the servers refused can be seen.
func TestLimits(t *testing.T) {
	m, set := New(""), new(limit.Set)
	m.ReadLimits(set)
	q := set.New("health", "connections", limit.Numbers{Total: 2, Each: 1})
	a := limit.Address(netip.MustParseAddr("10.244.0.1"))
	for range 3 {
		_, _ = q.Take(a)
	}
	text := exposition(t, m)
	for _, want := range []string{
		`nfqproxy_server_in_use{server="health",what="connections"} 1`, `nfqproxy_server_limit{server="health",what="connections"} 2`,
		`nfqproxy_server_refused_total{limit="client",server="health",what="connections"} 2`,
		`nfqproxy_server_refused_total{limit="total",server="health",what="connections"} 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}
