package flowapi

import (
	"context"
	"sync"
	"time"
)

// sharedAge is how long an answer that was made for one client is given to others.
const sharedAge = time.Second

// maxVersions is how many versions of a shared answer exist at a time: the newest, and one
// that slow clients still read. While there are two, others get the newest whatever its age, which is
// bounded by how long an answer may take to be read.
const maxVersions = 2

// shared is an answer of which all who ask at about the same time get the same bytes.
type shared struct {
	making chan struct{} // holds something while it is made

	mu     sync.Mutex
	newest *version
	live   int // versions that exist
}

// version is one of the answers. Its fields but content are guarded by shared.mu.
type version struct {
	content []byte
	made    time.Time
	readers int
}

func newShared() *shared { return &shared{making: make(chan struct{}, 1)} }

// get gives the answer, which make makes if there is none that is young enough. done has to
// be called when it was written.
func (s *shared) get(ctx context.Context, make func() ([]byte, error)) (content []byte, done func(), err error) {
	if v := s.reuse(); v != nil {
		return v.content, sync.OnceFunc(func() { s.leave(v) }), nil
	}
	select {
	case s.making <- struct{}{}:
		defer func() { <-s.making }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	v := s.reuse() // another one made it meanwhile
	if v == nil {
		if content, err = make(); err != nil {
			return nil, nil, err
		}
		v = s.add(content)
	}
	return v.content, sync.OnceFunc(func() { s.leave(v) }), nil
}

// reuse gives the newest version with one more reader; nil: a new one is to be made.
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

// leave notes that a reader has gone. What nobody reads is not kept.
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
