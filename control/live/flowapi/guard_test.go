package flowapi

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi/flowapitest"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
)

// TestHeaders: every answer has the same headers for browsers.
func TestHeaders(t *testing.T) {
	const dataPolicy, pagePolicy = "default-src 'none'; frame-ancestors 'none'", "the page's own"
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", pagePolicy)
		_, _ = io.WriteString(w, "page "+r.URL.Path)
	})
	w := newWorld(t, Config{Page: page}, longTiming)
	for path, policy := range map[string]string{
		"/":                dataPolicy, // requested with POST below
		"/v1/flows":        dataPolicy,
		"/v1/stats":        dataPolicy,
		"/v1/flows?x":      dataPolicy,
		"/v1/nothing":      dataPolicy,
		"/openapi.yaml":    dataPolicy,
		"/page":            pagePolicy,
		"/assets/page.css": pagePolicy,
	} {
		method := "GET"
		if path == "/" {
			method = "POST"
		}
		r := w.Do(t, method, path, "", "Origin: "+w.URL, "Sec-Fetch-Site: same-origin")
		for name, want := range map[string]string{
			"Content-Security-Policy":      policy,
			"X-Content-Type-Options":       "nosniff",
			"Referrer-Policy":              "no-referrer",
			"Cache-Control":                "no-store",
			"X-Frame-Options":              "DENY",
			"Cross-Origin-Resource-Policy": "same-origin",
			"Access-Control-Allow-Origin":  "",
		} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%s %s: %s: %s, want %s", method, path, name, got, want)
			}
		}
		if body := flowapitest.Content(t, r); policy == pagePolicy && body != "page "+path {
			t.Errorf("%s: %d %s", path, r.StatusCode, body)
		}
	}
}

// TestAdmission: requests that browsers make for others' pages are refused.
func TestAdmission(t *testing.T) {
	w := newWorld(t, Config{Token: "secret", Hosts: []string{"flows.example.org", "192.0.2.7"}, Page: http.NotFoundHandler()}, longTiming)
	own := strings.TrimPrefix(w.URL, "http://")
	_, port, _ := net.SplitHostPort(own)
	const hostWanted = " is not a name of this server: use localhost, flows.example.org, 192.0.2.7 or its listen address"
	tests := []struct {
		name    string
		headers []string
		refusal string // empty: none
	}{
		{"no header", nil, ""},
		{"localhost", []string{"Host: localhost:10253"}, ""},
		{"in capitals", []string{"Host: LOCALHOST"}, ""},
		{"IPv6", []string{"Host: [::1]:10253"}, ""},
		{"IPv6 without a port", []string{"Host: [::1]"}, ""},
		{"another loopback address", []string{"Host: 127.8.8.8:1"}, ""},
		{"its name", []string{"Host: Flows.example.org:10253"}, ""},
		{"its address", []string{"Host: 192.0.2.7"}, ""},
		{"another name", []string{"Host: evil.example:" + port}, `host "evil.example:` + port + `"` + hostWanted},
		{"a name that begins alike", []string{"Host: localhost.evil.example"}, `host "localhost.evil.example"` + hostWanted},
		{"a name that looks like an address", []string{"Host: 127.0.0.1.evil.example"}, `host "127.0.0.1.evil.example"` + hostWanted},
		{"another address", []string{"Host: 192.0.2.8"}, `host "192.0.2.8"` + hostWanted},
		{"own origin", []string{"Origin: " + w.URL, "Sec-Fetch-Site: same-origin"}, ""},
		{"own origin by another name", []string{"Host: localhost:10253", "Origin: http://localhost:10253"}, ""},
		{"a foreign origin", []string{"Origin: http://evil.example"}, "cross-site request of http://evil.example: only pages of this server may send requests"},
		{"no origin's page", []string{"Origin: null"}, "cross-site request of null: only pages of this server may send requests"},
		{"another port", []string{"Origin: http://127.0.0.1:1"}, "cross-site request of http://127.0.0.1:1: only pages of this server may send requests"},
		{"another scheme", []string{"Origin: https://" + own}, "cross-site request of https://" + own + ": only pages of this server may send requests"},
		{"two origins", []string{"Origin: " + w.URL, "Origin: http://evil.example"}, "cross-site request of " + w.URL + ", http://evil.example: only pages of this server may send requests"},
		{"the address bar", []string{"Sec-Fetch-Site: none"}, ""},
		{"another site", []string{"Sec-Fetch-Site: cross-site"}, "cross-site request (Sec-Fetch-Site: cross-site): only pages of this server may send requests"},
		{"another port of this host", []string{"Sec-Fetch-Site: same-site"}, "cross-site request (Sec-Fetch-Site: same-site): only pages of this server may send requests"},
	}
	for _, tt := range tests {
		for _, q := range []string{"GET /v1/stats", "GET /v1/flows", "GET /openapi.yaml", "GET /", "OPTIONS /v1/explain", "POST /v1/explain", "POST /v1/holds", "GET /nothing"} {
			method, path, _ := strings.Cut(q, " ")
			r := w.Do(t, method, path, "{}", append(tt.headers, flowapitest.JSONBody)...)
			body := flowapitest.Content(t, r)
			if refused := r.StatusCode == http.StatusForbidden; refused != (tt.refusal != "") {
				t.Errorf("%s: %s: %d %s", tt.name, q, r.StatusCode, body)
			} else if refused && !strings.Contains(body, strings.ReplaceAll(tt.refusal, `"`, `\"`)) {
				t.Errorf("%s: %s: %s, want %s", tt.name, q, body, tt.refusal)
			}
			if got := r.Header.Values("Access-Control-Allow-Origin"); len(got) > 0 {
				t.Errorf("%s: %s: CORS: %s", tt.name, q, got)
			}
		}
	}
}

// TestAdmissionByListener: the address that a connection came in by is the server's own; the names
// are the same over a Unix socket, which ssh forwards to browsers.
func TestAdmissionByListener(t *testing.T) {
	s := New(Config{Observer: observetest.New("node-a"), Token: "secret", Timing: &longTiming})
	for _, tt := range []struct {
		local  net.Addr
		host   string
		status int
	}{
		{&net.TCPAddr{IP: net.ParseIP("10.0.0.5"), Port: 10253}, "10.0.0.5:10253", 200},
		{&net.TCPAddr{IP: net.ParseIP("10.0.0.5").To4(), Port: 10253}, "10.0.0.5:9", 200}, // a forwarded port
		{&net.TCPAddr{IP: net.ParseIP("10.0.0.5"), Port: 10253}, "10.0.0.6:10253", 403},
		{&net.TCPAddr{IP: net.ParseIP("fd00::5"), Port: 10253}, "[fd00::5]:10253", 200},
		{&net.TCPAddr{IP: net.ParseIP("10.0.0.5"), Port: 10253}, "evil.example", 403},
		{&net.UnixAddr{Name: "/run/flows"}, "localhost", 200},
		{&net.UnixAddr{Name: "/run/flows"}, "127.0.0.1:10253", 200}, // a forwarded socket
		{&net.UnixAddr{Name: "/run/flows"}, "evil.example", 403},
		{nil, "evil.example", 403},
	} {
		r := httptest.NewRequest("GET", "/v1/stats", nil)
		r.Host = tt.host
		r.Header.Set("Authorization", "Bearer secret")
		r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, tt.local))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != tt.status {
			t.Errorf("%v requested as %s: %d %s, want %d", tt.local, tt.host, w.Code, w.Body, tt.status)
		}
	}
}

func TestTokens(t *testing.T) {
	writes := []string{"POST /v1/more", "POST /v1/balance", "POST /v1/holds", "POST /v1/holds/x/act", "DELETE /v1/holds/x"}
	reads := []string{"GET /v1/flows", "GET /v1/flows/x", "GET /v1/services", "GET /v1/table", "GET /v1/table/objects", "GET /v1/stats", "GET /v1/status", "GET /v1/topology", "POST /v1/explain", "GET /v1/balance", "GET /v1/shadows", "GET /v1/holds", "GET /v1/holds/x", "GET /openapi.yaml"}
	page := []string{"GET /", "GET /page.js"}
	unix, loopback, loopback6 := &net.UnixAddr{Name: "/run/flows"}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.TCPAddr{IP: net.IPv6loopback}
	other := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}
	tests := []struct {
		name                string
		local               net.Addr
		config              Config
		token               string // the header; empty: none
		writes, reads, page int    // the status; 0: neither 401 nor 403
	}{
		{"no token there", unix, Config{}, "", 403, 0, 0},
		{"no token there, one is given", unix, Config{}, "Bearer secret", 403, 0, 0},
		{"an empty one is given", unix, Config{}, "Bearer ", 403, 0, 0},
		{"none given", unix, Config{Token: "secret"}, "", 401, 0, 0},
		{"another one", unix, Config{Token: "secret"}, "Bearer secreT", 401, 0, 0},
		{"a longer one", unix, Config{Token: "secret"}, "Bearer secret1", 401, 0, 0},
		{"no bearer", unix, Config{Token: "secret"}, "Basic secret", 401, 0, 0},
		{"given", unix, Config{Token: "secret"}, "Bearer secret", 0, 0, 0},
		{"given, the scheme in lower case (RFC 9110, 11.1)", unix, Config{Token: "secret"}, "bearer secret", 0, 0, 0},
		{"loopback, none given", loopback, Config{Token: "secret"}, "", 401, 401, 0},
		{"loopback of IPv6, none given", loopback6, Config{Token: "secret"}, "", 401, 401, 0},
		{"loopback, another one", loopback, Config{Token: "secret"}, "Bearer x", 401, 401, 0},
		{"loopback, given", loopback, Config{Token: "secret"}, "Bearer secret", 0, 0, 0},
		{"loopback, but there is none", loopback, Config{}, "Bearer ", 403, 403, 0},
		{"a lab, none given", loopback, Config{Token: "secret", OpenLoopback: true}, "", 401, 0, 0},
		{"a lab of IPv6, none given", loopback6, Config{Token: "secret", OpenLoopback: true}, "", 401, 0, 0},
		{"elsewhere, none given", other, Config{Token: "secret", OpenLoopback: true}, "", 401, 401, 0},
		{"elsewhere, given", other, Config{Token: "secret"}, "Bearer secret", 0, 0, 0},
		{"somewhere, none given", nil, Config{Token: "secret", OpenLoopback: true}, "", 401, 401, 0},
	}
	more := Route{Method: http.MethodPost, Path: "/v1/more", Guarded: true, Handle: func(s *API, w http.ResponseWriter, _ *http.Request) error {
		return s.Answer(w, http.StatusOK, "more")
	}}
	if len(writes)+len(reads) != len(routes)+1 {
		t.Fatalf("%d routes, %d of them here", len(routes), len(writes)+len(reads))
	}
	for _, tt := range tests {
		tt.config.Page, tt.config.Observer = http.NotFoundHandler(), observetest.New("node-a")
		tt.config.Timing, tt.config.Routes = &longTiming, []Route{more}
		s := New(tt.config)
		check := func(questions []string, want int) {
			for _, q := range questions {
				method, path, _ := strings.Cut(q, " ")
				r := httptest.NewRequest(method, "http://localhost"+path, strings.NewReader("{}"))
				r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, tt.local))
				r.Header.Set("Content-Type", "application/json")
				if tt.token != "" {
					r.Header.Set("Authorization", tt.token)
				}
				w := httptest.NewRecorder()
				s.ServeHTTP(w, r)
				got := w.Code
				if got != 401 && got != 403 {
					got = 0
				}
				if got != want || (got == 401) != (w.Header().Get("WWW-Authenticate") == "Bearer") {
					t.Errorf("%s: %s: %d %s", tt.name, q, w.Code, w.Body)
				}
				if body := w.Body.String(); tt.config.Token != "" && strings.Contains(body, tt.config.Token) {
					t.Errorf("the answer shows the token: %s", body)
				}
			}
		}
		check(writes, tt.writes)
		check(reads, tt.reads)
		check(page, tt.page)
	}
	// Without a token the refusal names the source of tokens.
	w := newWorld(t, Config{}, longTiming)
	if body := flowapitest.Content(t, w.Do(t, "DELETE", "/v1/holds/x", "")); !strings.Contains(body, "--flow-api-token-file") {
		t.Error(body)
	}
}

func TestReadToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	const one = ": want one token on one line, of printable ASCII characters without spaces"
	const long = " characters: want at least 16; generate one with: openssl rand -hex 32"
	for content, want := range map[string]string{ // the token, or the error behind the file's name
		"0123456789abcdef":                   "0123456789abcdef",
		" 0123456789ab+/==\r\n":              "0123456789ab+/==",
		"0123456789abcde\n":                  ": the token has 15" + long,
		"":                                   ": the token has 0" + long,
		"0123456789abcdef 0123456789abcdef":  one,
		"0123456789abcdef\n0123456789abcdef": one,
		"0123456789abcdefé":                  one,
		strings.Repeat("x", 5000):            ": the file exceeds 4096 bytes: want one token",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadToken("--token-file", file)
		if err != nil {
			want, got = "--token-file "+file+want, err.Error()
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", content, got, want)
		}
	}
	missing := file + ".none"
	if _, err := ReadToken("--flow-api-token-file", missing); err == nil || err.Error() != "--flow-api-token-file: open "+missing+": no such file or directory" {
		t.Errorf("error %v", err)
	}
}
