package flowapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
)

// reviewer takes one token, and counts.
type reviewer struct {
	valid atomic.Pointer[string]
	away  atomic.Bool
	delay time.Duration
	count atomic.Int32
}

func (v *reviewer) Review(ctx context.Context, token string) (string, error) {
	v.count.Add(1)
	select {
	case <-time.After(v.delay):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	switch {
	case v.away.Load():
		return "", errors.New("the API server does not answer")
	case token != *v.valid.Load():
		return "it is expired", nil
	}
	return "", nil
}

// reviewedServer sends requests to a server with a Reviewer, over the loopback address.
func reviewedServer(v *reviewer, c Config) func(method, path string, headers ...string) (int, string) {
	good := "a.b.c"
	v.valid.Store(&good)
	c.Observer, c.Reviewer, c.Page = observetest.New("node-a"), v, http.NotFoundHandler()
	c.Timing = &longTiming
	s := New(c)
	return func(method, path string, headers ...string) (int, string) {
		r := httptest.NewRequest(method, "http://localhost"+path, strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		var local net.Addr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			switch name {
			case "Host":
				r.Host = value
			case "Unix":
				local = &net.UnixAddr{}
			default:
				r.Header.Add(name, value)
			}
		}
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
}

// TestReviews: which requests are reviewed, and what comes of it.
func TestReviews(t *testing.T) {
	const away = "away"
	for _, tt := range []struct {
		name    string
		token   string // of the file
		method  string
		path    string
		headers []string
		want    int
		says    string
		reviews int32
	}{
		{"valid", "", "GET", "/v1/stats", []string{"Authorization: Bearer a.b.c"}, 200, "", 1},
		{"in the other header", "", "GET", "/v1/stats", []string{"X-Nfqproxy-Token: a.b.c"}, 200, "", 1},
		{"both: the other header counts", "", "GET", "/v1/stats", []string{"X-Nfqproxy-Token: x", "Authorization: Bearer a.b.c"}, 401, "it is expired", 1},
		{"wrong", "", "GET", "/v1/stats", []string{"Authorization: Bearer x"}, 401, "wrong token: it is expired", 1},
		{"none", "", "GET", "/v1/stats", nil, 401, "--flow-api-service-account", 0},
		{"an empty one", "", "GET", "/v1/stats", []string{"Authorization: Bearer "}, 401, "missing token", 0},
		{"an empty one in the other header", "", "GET", "/v1/stats", []string{"X-Nfqproxy-Token: "}, 401, "missing token", 0},
		{"another scheme", "", "GET", "/v1/stats", []string{"Authorization: Basic a.b.c"}, 401, "missing token", 0},
		{"of the file", "0123456789abcdef", "GET", "/v1/stats", []string{"Authorization: Bearer 0123456789abcdef"}, 200, "", 0},
		{"of the file in the other header", "0123456789abcdef", "GET", "/v1/stats", []string{"X-Nfqproxy-Token: 0123456789abcdef"}, 200, "", 0},
		{"not of the file", "0123456789abcdef", "GET", "/v1/stats", []string{"Authorization: Bearer a.b.c"}, 200, "", 1},
		{"neither", "0123456789abcdef", "GET", "/v1/stats", nil, 401, "the token of --flow-api-token-file", 0},
		{"a change", "", "DELETE", "/v1/holds/x", []string{"Authorization: Bearer a.b.c"}, 404, "", 1},
		{"a change, wrong", "", "DELETE", "/v1/holds/x", []string{"Authorization: Bearer x"}, 401, "it is expired", 1},
		{"it cannot be checked", away, "GET", "/v1/stats", []string{"Authorization: Bearer a.b.c"}, 503, "cannot check the token: the API server does not answer; try again later, or use the Unix socket", 1},
		{"a socket", away, "GET", "/v1/stats", []string{"Unix: "}, 200, "", 0},
		{"a socket, with the other header", "", "GET", "/v1/stats", []string{"Unix: ", "X-Nfqproxy-Token: x"}, 401, "it is expired", 1},
		{"another host", "", "GET", "/v1/stats", []string{"Host: evil.example", "Authorization: Bearer a.b.c"}, 403, "evil.example", 0},
		{"another host, with the other header", "", "GET", "/v1/stats", []string{"Host: api.example", "X-Nfqproxy-Token: a.b.c"}, 200, "", 1},
		{"another host, with a wrong token", "", "GET", "/v1/stats", []string{"Unix: ", "Host: api.example", "X-Nfqproxy-Token: x"}, 401, "it is expired", 1},
		{"another site, with the other header", "", "GET", "/v1/stats", []string{"Origin: http://evil.example", "X-Nfqproxy-Token: a.b.c"}, 403, "cross-site", 0},
		{"the page", "", "GET", "/", nil, 404, "", 0},
	} {
		v := new(reviewer)
		c := Config{Token: tt.token}
		if tt.token == away {
			c.Token = ""
			v.away.Store(true)
		}
		code, body := reviewedServer(v, c)(tt.method, tt.path, tt.headers...)
		if code != tt.want || !strings.Contains(body, tt.says) || v.count.Load() != tt.reviews {
			t.Errorf("%s: %d %s after %d reviews; want %d, %q and %d", tt.name, code, body, v.count.Load(), tt.want, tt.says, tt.reviews)
		}
	}
}

// TestReviewsAreKept: a result counts for its time, errors do not, and requests at a time share one review.
func TestReviewsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &reviewer{delay: 100 * time.Millisecond}
		do := reviewedServer(v, Config{})
		expect := func(token string, want int, reviews int32) {
			t.Helper()
			code, body := do("GET", "/v1/stats", "Authorization: Bearer "+token)
			if code != want || v.count.Swap(0) != reviews {
				t.Errorf("%s: %d %s, want %d; the reviews differ from %d", token, code, body, want, reviews)
			}
		}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { do("GET", "/v1/stats", "Authorization: Bearer a.b.c") })
		}
		all.Wait()
		expect("a.b.c", 200, 1)
		time.Sleep(validFor - time.Second)
		expect("a.b.c", 200, 0)
		other := "d.e.f" // a.b.c is revoked
		v.valid.Store(&other)
		time.Sleep(time.Second)
		expect("a.b.c", 401, 1)
		expect("a.b.c", 401, 0)
		time.Sleep(wrongFor)
		expect("a.b.c", 401, 1)
		v.away.Store(true)
		time.Sleep(reviewPause) // a client may have two reviews a second
		expect("d.e.f", 503, 1)
		v.away.Store(false)
		expect("d.e.f", 200, 1)
		time.Sleep(reviewPause)
		v.delay = time.Hour
		expect("g.h.i", 503, 1)
		time.Sleep(time.Minute) // for the pauses
	})
}

// TestReviewsAreLimited: wrong tokens in any number make few reviews.
func TestReviewsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := new(reviewer)
		do := reviewedServer(v, Config{})
		const seconds = 10
		refused := 0
		for second := range seconds {
			for i := range 100 {
				if code, body := do("GET", "/v1/stats", fmt.Sprintf("Authorization: Bearer %d.%d", second, i)); code == 429 && strings.Contains(body, "too many token reviews") {
					refused++
				} else if code != 401 {
					t.Errorf("%d %s", code, body)
				}
			}
			time.Sleep(reviewPause)
			synctest.Wait()
		}
		if n := int(v.count.Load()); n != seconds*tokenReviews.Each || refused != 100*seconds-n {
			t.Errorf("%d reviews of a client in %d s, %d requests refused", n, seconds, refused)
		}
		if code, body := do("GET", "/v1/stats", "Authorization: Bearer a.b.c"); code != 200 {
			t.Errorf("afterwards: %d %s", code, body)
		}
		time.Sleep(time.Minute)
	})
}

// takesAll takes every token.
type takesAll struct{}

func (takesAll) Review(context.Context, string) (string, error) { return "", nil }

// TestReviewsAreForgotten: results that are too old take no memory, and many clients cannot fill it.
func TestReviewsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newReviews(takesAll{}, nil)
		most := 0
		for second := range 90 {
			for i := range 100 { // each from a client of its own
				r := httptest.NewRequest("GET", "/v1/stats", nil)
				r.RemoteAddr = fmt.Sprintf("10.0.%d.%d:1", second, i)
				_ = v.check(r, fmt.Sprintf("a.b.%d.%d", second, i)) // most are too many
			}
			most = max(most, v.known.Len())
			time.Sleep(reviewPause)
			synctest.Wait()
		}
		if bound := tokenReviews.Total * int((validFor+reviewPause)/reviewPause); most == 0 || most > bound {
			t.Errorf("%d results at a time, want at most %d", most, bound)
		}
		time.Sleep(validFor)
		if err := v.check(httptest.NewRequest("GET", "/v1/stats", nil), "c.d.e"); err != nil || v.known.Len() != 1 {
			t.Errorf("%v, %d results, want the new one", err, v.known.Len())
		}
		time.Sleep(reviewPause)
	})
}
