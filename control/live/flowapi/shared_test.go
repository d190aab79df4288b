package flowapi

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestShared: however many read an answer slowly, two versions of it exist; no reader gets an old
// one without need.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		made := 0
		get := func(want string) (done func()) {
			t.Helper()
			content, done, err := s.get(t.Context(), func() ([]byte, error) {
				made++
				return fmt.Append(nil, made), nil
			})
			if err != nil || string(content) != want {
				t.Errorf("got %q, %v, want %s", content, err, want)
			}
			return done
		}
		get("1")() // it has no reader any more
		first := get("2")
		again := get("2")
		time.Sleep(2 * sharedAge)
		second := get("3")
		time.Sleep(2 * sharedAge)
		for range 100 {
			defer get("3")() // old as it is: two are read
		}
		first()
		again()
		again()    // a second time counts for nothing
		get("4")() // one is read
		second()
		if s.live != 1 {
			t.Errorf("%d versions are left, want that of those who read still", s.live)
		}
	})
}

// TestSharedFails: an error concerns its own reader; one that does not wait any more goes.
func TestSharedFails(t *testing.T) {
	s := newShared()
	fault := errors.New("a fault")
	if _, _, err := s.get(t.Context(), func() ([]byte, error) { return nil, fault }); !errors.Is(err, fault) {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, done, err := s.get(t.Context(), func() ([]byte, error) {
		cancel()
		if _, _, err := s.get(ctx, func() ([]byte, error) { return nil, errors.New("made twice at a time") }); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		return []byte("x"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	done()
	if s.live != 0 || s.newest != nil {
		t.Errorf("%d versions are left", s.live)
	}
}
