package flowapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// secure sets the headers of every response; the page has a Content-Security-Policy of its own. There are
// never CORS headers: no other site may read a response.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// TokenHeader is the header for a token where a proxy removes or needs Authorization, as the proxy of a
// Kubernetes API server does. Such a request has another Host: its token must be valid, even where reading
// needs none.
const TokenHeader = "X-Nfqproxy-Token"

func hasTokenHeader(r *http.Request) bool { return len(r.Header[TokenHeader]) > 0 }

// admit rejects requests that a browser sends for a page of another site.
func (s *API) admit(r *http.Request) error {
	if !hasTokenHeader(r) && !s.isOwn(r) {
		names := strings.Join(append([]string{"localhost"}, s.Hosts...), ", ")
		return Forbidden("host %q is not a name of this server: use %s or its listen address", r.Host, names)
	}
	// A page of another port of the same host is another one, too (same-site).
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return Forbidden("cross-site request (Sec-Fetch-Site: %s): only pages of this server may send requests", site)
	}
	if origins := r.Header.Values("Origin"); len(origins) > 0 && (len(origins) > 1 || !sameOrigin(origins[0], r)) {
		return Forbidden("cross-site request of %s: only pages of this server may send requests", strings.Join(origins, ", "))
	}
	return nil
}

// localAddr is the server's end of the request's connection; nil: unknown.
func localAddr(r *http.Request) net.Addr {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return local
}

// isOwn reports whether the Host header is a name of this server. A Unix socket is no exception:
// a browser reaches one through a forwarded port (ssh -L).
func (s *API) isOwn(r *http.Request) bool {
	host := (&url.URL{Host: r.Host}).Hostname()
	if strings.EqualFold(host, "localhost") || slices.ContainsFunc(s.Hosts, func(h string) bool { return strings.EqualFold(host, h) }) {
		return true
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	if a = a.Unmap(); a.IsLoopback() {
		return true
	}
	tcp, ok := localAddr(r).(*net.TCPAddr)
	return ok && tcp.AddrPort().Addr().Unmap().WithZone("") == a.WithZone("")
}

// sameOrigin reports whether the origin is the request URL's.
func sameOrigin(origin string, r *http.Request) bool {
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	return strings.EqualFold(origin, scheme+r.Host)
}

// isOpen reports whether the request's connection needs no token to read.
func (s *API) isOpen(r *http.Request) bool {
	switch local := localAddr(r).(type) {
	case *net.UnixAddr:
		return true
	case *net.TCPAddr:
		return s.OpenLoopback && local.IP.IsLoopback()
	}
	return false
}

func (s *API) authorize(r *http.Request, route *Route) error {
	if !route.Guarded && !hasTokenHeader(r) && s.isOpen(r) {
		return nil
	}
	switch {
	case s.Token == "" && s.reviews == nil && !route.Guarded:
		return Forbidden("every request requires the server's token, but the server has none (start it with --flow-api-token-file or --flow-api-service-account)")
	case s.Token == "" && s.reviews == nil:
		return Forbidden("read-only: holds and changes require a token, but the server has none (start it with --flow-api-token-file)")
	}
	given := TokenOf(r)
	if given == "" && route.Token != nil {
		given = route.Token(r)
	}
	if given == "" {
		return unauthorized(`missing token: want the header "Authorization: Bearer TOKEN" with %s`, s.wantedToken())
	}
	// Hashes have one length, independent of the token's.
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(s.Token))
	switch {
	case s.Token != "" && subtle.ConstantTimeCompare(a[:], b[:]) == 1:
		return nil
	case s.reviews != nil:
		return s.reviews.check(r, given)
	}
	return unauthorized("wrong token: want the content of the server's --flow-api-token-file (in a lab: the token that lab status prints)")
}

// TokenOf returns the token of a request; empty: none.
func TokenOf(r *http.Request) string {
	if hasTokenHeader(r) {
		return r.Header.Get(TokenHeader)
	}
	if scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		return token
	}
	return "" // none, or another scheme
}

// wantedToken describes the tokens that the server takes.
func (s *API) wantedToken() string {
	const file, account = "the token of --flow-api-token-file (in a lab: the token that lab status prints)", "a token of the account of --flow-api-service-account (kubectl create token NAME --audience nfqproxy)"
	switch {
	case s.reviews == nil:
		return file
	case s.Token == "":
		return account
	}
	return "the token of --flow-api-token-file, or " + account
}

func unauthorized(format string, a ...any) error {
	return &observe.Error{Status: http.StatusUnauthorized, Message: fmt.Sprintf(format, a...)}
}

// Forbidden is the error of a request that its client may not send.
func Forbidden(format string, a ...any) error {
	return &observe.Error{Status: http.StatusForbidden, Message: fmt.Sprintf(format, a...)}
}

// shortestToken is the minimum length of a token, so that it cannot be guessed.
const shortestToken = 16

// longestToken bounds the file. Headers have less room.
const longestToken = 4 << 10

// ReadToken reads the token from a file that contains only the token and white space around it.
// Errors name the flag of the file. The file may be a pipe.
func ReadToken(flag, file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, longestToken+1))
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	token := string(bytes.TrimSpace(b))
	wrong := strings.IndexFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) // not fit for a header
	switch {
	case wrong >= 0:
		return "", fmt.Errorf("%s %s: want one token on one line, of printable ASCII characters without spaces", flag, file)
	case len(b) > longestToken:
		return "", fmt.Errorf("%s %s: the file exceeds %d bytes: want one token", flag, file, longestToken)
	case len(token) < shortestToken:
		return "", fmt.Errorf("%s %s: the token has %d characters: want at least %d; generate one with: openssl rand -hex 32", flag, file, len(token), shortestToken)
	}
	return token, nil
}

// Reviewer checks tokens that are not [Config.Token]: those of an account elsewhere. It is safe for
// concurrent use.
type Reviewer interface {
	// Review returns why the token is wrong; empty: it is valid. An error means that it cannot be
	// checked.
	Review(ctx context.Context, token string) (wrong string, err error)
}

// Bounds of reviews. Any process of the node can send tokens: without bounds it could have the daemon
// flood the server that checks them.
const (
	// reviewPause is how long a review counts after its end, so that the numbers of tokenReviews are
	// reviews per second.
	reviewPause   = time.Second
	reviewTimeout = 5 * time.Second
	// validFor is how long a valid token is not checked again: so long it stays valid after it was
	// revoked. wrongFor is that of a wrong one.
	validFor, wrongFor = time.Minute, 5 * time.Second
)

var tokenReviews = limit.Numbers{Total: 8, Each: 2, Reserved: 4}

// reviews are the results of a Reviewer.
type reviews struct {
	Reviewer
	quota   *limit.Quota
	running singleflight.Group

	// known has why tokens that were reviewed recently are wrong; empty: they are valid. The key is the token's hash: a
	// dump of the memory shows no tokens. The numbers of tokenReviews bound its size.
	known *cache.Expiring
}

func newReviews(r Reviewer, limits *limit.Set) *reviews {
	return &reviews{Reviewer: r, quota: limits.New(serverName, "token reviews", tokenReviews), known: cache.NewExpiring()}
}

// check returns nil for a valid token. Requests with one token wait for one review.
func (v *reviews) check(r *http.Request, token string) error {
	key := sha256.Sum256([]byte(token))
	wrong, ok := v.known.Get(key)
	if !ok {
		var err error
		if wrong, err, _ = v.running.Do(string(key[:]), func() (any, error) { return v.review(r, token, key) }); err != nil {
			return err
		}
	}
	if wrong == "" {
		return nil
	}
	return unauthorized("wrong token: %s", wrong)
}

// review asks the Reviewer, for all requests that wait: the end of one does not end it.
func (v *reviews) review(r *http.Request, token string, key [sha256.Size]byte) (wrong string, err error) {
	release, err := Take(v.quota, r)
	if err != nil {
		return "", err
	}
	defer time.AfterFunc(reviewPause, release)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), reviewTimeout)
	defer cancel()
	if wrong, err = v.Review(ctx, token); err != nil {
		return "", &observe.Error{Status: http.StatusServiceUnavailable, Message: "cannot check the token: " + err.Error() +
			"; try again later, or use the Unix socket on the node"}
	}
	valid := validFor
	if wrong != "" {
		valid = wrongFor
	}
	v.known.Set(key, wrong, valid)
	return wrong, nil
}
