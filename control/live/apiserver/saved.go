package apiserver

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// saveInterval is how old the saved objects of a daemon that runs are at most.
const saveInterval = time.Minute

// savedAfter is how long the API server may take before saved objects are used.
const savedAfter = 3 * time.Second

// awaitAll waits for all objects, and publishes saved ones if that takes long. It returns false if the
// context ends.
func (s *Source) awaitAll(ctx context.Context, needed []cache.DoneChecker, publish func(servicetable.Update)) bool {
	synced := make(chan bool, 1)
	// WaitForCacheSync would poll every 100 ms only.
	go func() { synced <- cache.WaitFor(ctx, "", needed...) }()
	if s.config.Saved == nil {
		return <-synced
	}
	select {
	case ok := <-synced:
		return ok
	case <-time.After(savedAfter):
	}
	inForce := s.publishSaved(publish)
	tick := time.Tick(saveInterval)
	for {
		select {
		case ok := <-synced:
			return ok
		case <-tick:
			if !inForce {
				break
			}
			if err := s.config.Saved.Touch(); err != nil {
				s.config.Logger.Debug("cannot touch the saved objects", "error", err)
			}
		}
	}
}

// Saved returns when the saved objects were current by which the daemon serves until the API server
// answers; nil: it does not serve by them. It is safe for concurrent use.
func (s *Source) Saved() *time.Time { return s.saved.Load() }

// publishSaved publishes the saved objects, if they can be used.
func (s *Source) publishSaved(publish func(servicetable.Update)) bool {
	file := s.config.Saved.Path
	u, last, err := s.config.Saved.Read(time.Now())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.config.Logger.Info("the API server does not answer, and there are no saved objects", "file", file)
	case err != nil:
		s.config.Logger.Warn("the API server does not answer, and the saved objects cannot be used; waiting", "error", err)
	default:
		s.config.Logger.Warn("the API server does not answer: serving by the saved objects until it does", "file", file, "last", last, "services", len(u.Services))
		if n := u.Nodes[s.config.Node]; n != nil && s.config.NodeChanged != nil {
			s.config.NodeChanged(n)
		}
		s.saved.Store(&last)
		publish(u)
		return true
	}
	return false
}

// keep saves the objects when they have changed: every saveInterval, and when the context ends.
func (s *Source) keep(ctx context.Context) {
	tick := time.Tick(saveInterval)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick:
		}
		var err error
		if s.unsaved.Swap(false) {
			err = s.config.Saved.Write(s.all())
		} else {
			err = s.config.Saved.Touch()
		}
		if err != nil {
			s.unsaved.Store(true)
			s.config.Logger.Warn("cannot save the objects of the API server; a daemon that starts while it is away cannot use them", "error", err)
		}
	}
}

// all returns the objects of the informers.
func (s *Source) all() servicetable.Update {
	u := servicetable.Update{All: true}
	for _, store := range s.stores {
		for _, o := range store.List() {
			u.Add(o, false)
		}
	}
	return u
}
