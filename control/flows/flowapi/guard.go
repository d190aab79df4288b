package flowapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
)

// What browsers may load with an answer. The page's own scripts, styles and questions come
// from here, and nothing else does.
const (
	dataPolicy = "default-src 'none'; frame-ancestors 'none'"
	pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

// secure sets the headers of every answer. There are none of CORS, ever: no other site may
// read an answer.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", dataPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// admit refuses requests that a browser makes for somebody else's page.
func (s *server) admit(r *http.Request) error {
	if !s.isOwn(r) {
		return forbidden("host %q is none of this server's names: ask for it as localhost%s or by the address that it listens on", r.Host, s.otherHosts())
	}
	// A page of another port of the same host is another one, too (same-site).
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return forbidden("the request is made by a page of another site (Sec-Fetch-Site: %s): only pages of this server may ask it", site)
	}
	if origins := r.Header.Values("Origin"); len(origins) > 0 && (len(origins) > 1 || !sameOrigin(origins[0], r)) {
		return forbidden("the request is made by a page of %s: only pages of this server may ask it", strings.Join(origins, ", "))
	}
	return nil
}

// otherHosts names Hosts for a message.
func (s *server) otherHosts() string {
	if len(s.Hosts) == 0 {
		return ""
	}
	return ", " + strings.Join(s.Hosts, ", ")
}

// isOwn tells whether the request asks for this server by one of its names. Browsers cannot
// ask over a Unix socket, and there any name is right.
func (s *server) isOwn(r *http.Request) bool {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if _, ok := local.(*net.UnixAddr); ok {
		return true
	}
	host := (&url.URL{Host: r.Host}).Hostname()
	if strings.EqualFold(host, "localhost") {
		return true
	}
	for _, h := range s.Hosts {
		if strings.EqualFold(host, h) {
			return true
		}
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	if a = a.Unmap(); a.IsLoopback() {
		return true
	}
	tcp, ok := local.(*net.TCPAddr)
	return ok && tcp.AddrPort().Addr().Unmap().WithZone("") == a.WithZone("")
}

// sameOrigin tells whether the origin is the one the request asks for.
func sameOrigin(origin string, r *http.Request) bool {
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	return strings.EqualFold(origin, scheme+r.Host)
}

// authorize looks for the token.
func (s *server) authorize(r *http.Request, guarded bool) error {
	if !guarded && !s.TokenForAll {
		return nil
	}
	switch {
	case s.Token == "" && !guarded:
		return forbidden("every request needs the server's token, and it has none (give it one with --flow-api-token-file)")
	case s.Token == "":
		return forbidden("flows can be looked at here and not held: the server has no token (give it one with --flow-api-token-file)")
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return &observe.Error{Status: http.StatusUnauthorized, Message: `a token is missing: want the header "Authorization: Bearer TOKEN", with the token of --flow-api-token-file (of a lab, with the token that lab status prints)`}
	}
	// Hashes are of one length, whatever the token's is.
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(s.Token))
	if subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return &observe.Error{Status: http.StatusUnauthorized, Message: "this is not the server's token: it is the one in the file of its --flow-api-token-file"}
	}
	return nil
}

func forbidden(format string, a ...any) error {
	return &observe.Error{Status: http.StatusForbidden, Message: fmt.Sprintf(format, a...)}
}
