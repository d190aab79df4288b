package flowapi

import (
	"context"
	"crypto/sha256"
	"net/http"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"

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
