package flowapi

import (
	"context"
	"crypto/sha256"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

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
	// maxReviewed bounds the memory. The numbers of tokenReviews keep below it.
	maxReviewed = 1024
)

var tokenReviews = limit.Numbers{Total: 8, Each: 2, Reserved: 4}

// reviews are the results of a Reviewer.
type reviews struct {
	Reviewer
	quota   *limit.Quota
	running singleflight.Group

	mu sync.Mutex
	// known has the recent results. The key is the token's hash: a dump of the memory shows no tokens.
	known map[[sha256.Size]byte]reviewed
}

type reviewed struct {
	wrong string // empty: the token is valid
	until time.Time
}

func newReviews(r Reviewer, limits *limit.Set) *reviews {
	return &reviews{Reviewer: r, quota: limits.New(serverName, "token reviews", tokenReviews), known: make(map[[sha256.Size]byte]reviewed)}
}

// check returns nil for a valid token. Requests with one token wait for one review.
func (v *reviews) check(r *http.Request, token string) error {
	key := sha256.Sum256([]byte(token))
	if found, ok := v.recent(key); ok {
		return found.refusal()
	}
	result, err, _ := v.running.Do(string(key[:]), func() (any, error) { return v.review(r, token, key) })
	if err != nil {
		return err
	}
	return result.(reviewed).refusal()
}

// review asks the Reviewer, for all requests that wait: the end of one does not end it.
func (v *reviews) review(r *http.Request, token string, key [sha256.Size]byte) (reviewed, error) {
	release, err := Take(v.quota, r)
	if err != nil {
		return reviewed{}, err
	}
	defer time.AfterFunc(reviewPause, release)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), reviewTimeout)
	defer cancel()
	wrong, err := v.Review(ctx, token)
	if err != nil {
		return reviewed{}, &observe.Error{Status: http.StatusServiceUnavailable, Message: "cannot check the token: " + err.Error() +
			"; try again later, or use the Unix socket on the node"}
	}
	found := reviewed{wrong, time.Now().Add(validFor)}
	if wrong != "" {
		found.until = time.Now().Add(wrongFor)
	}
	v.keep(key, found)
	return found, nil
}

func (v *reviews) recent(key [sha256.Size]byte) (reviewed, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	found, ok := v.known[key]
	return found, ok && time.Now().Before(found.until)
}

// keep keeps a result, and forgets those that are too old.
func (v *reviews) keep(key [sha256.Size]byte, found reviewed) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	for k, old := range v.known {
		if !now.Before(old.until) {
			delete(v.known, k)
		}
	}
	if len(v.known) < maxReviewed {
		v.known[key] = found
	}
}

func (found reviewed) refusal() error {
	if found.wrong == "" {
		return nil
	}
	return &observe.Error{Status: http.StatusUnauthorized, Message: "wrong token: " + found.wrong}
}
