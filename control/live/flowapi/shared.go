package flowapi

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// sharedAge is how long a response made for one client is reused for others.
const sharedAge = time.Second

// maxVersions is the maximum number of versions of a shared response: the newest, and one that slow
// clients still read. While there are two, other clients get the newest of any age, which is
// bounded by the timeout of a response.
const maxVersions = 2

// shared is a response that is shared by requests at about the same time.
type shared struct {
	making *semaphore.Weighted // held while it is made

	mu     sync.Mutex
	newest *version
	live   int // versions that exist
}

// version is one of the responses. Its fields but content are guarded by shared.mu.
type version struct {
	content []byte
	made    time.Time
	readers int
}

func newShared() *shared { return &shared{making: semaphore.NewWeighted(1)} }

// get returns the response; make creates it if there is none that is recent enough. The caller must
// call done when it was written.
func (s *shared) get(ctx context.Context, make func() ([]byte, error)) (content []byte, done func(), err error) {
	if err := s.making.Acquire(ctx, 1); err != nil {
		return nil, nil, err
	}
	defer s.making.Release(1)
	v := s.reuse() // made by another request meanwhile
	if v == nil {
		if content, err = make(); err != nil {
			return nil, nil, err
		}
		v = s.add(content)
	}
	return v.content, sync.OnceFunc(func() { s.leave(v) }), nil
}

// reuse returns the newest version with one more reader; nil: make a new one.
func (s *shared) reuse() *version {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.newest
	if v == nil || time.Since(v.made) > sharedAge && s.live < maxVersions {
		return nil
	}
	v.readers++
	return v
}

// add makes the content the newest version, with one reader.
func (s *shared) add(content []byte) *version {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &version{content: content, made: time.Now(), readers: 1}
	s.newest = v
	s.live++
	return v
}

// leave removes a reader. A version without readers is freed.
func (s *shared) leave(v *version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.readers--; v.readers > 0 {
		return
	}
	s.live--
	if s.newest == v {
		s.newest = nil
	}
}
