package journal

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// slowWriter takes some time for each write.
type slowWriter struct {
	each    time.Duration
	written strings.Builder
	release chan struct{} // ends the wait; nil: never
}

func (w *slowWriter) Write(b []byte) (int, error) {
	select {
	case <-time.After(w.each):
	case <-w.release:
	}
	return w.written.Write(b)
}

// fullWriter takes nothing.
type fullWriter struct{}

func (fullWriter) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestFailedLog: a log that cannot be written says so while it runs, and counts what is lost.
func TestFailedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{})
		reported := 0
		log := b.NewLog(fullWriter{}, LogConfig{Failed: func(error) { reported++ }})
		if err := log.Err(); err != nil {
			t.Error(err)
		}
		const flows = 5
		for i := range flows {
			b.decide(netip.AddrPortFrom(client.Addr(), uint16(40000+i)), nil)
			synctest.Wait()
		}
		if err := log.Err(); !errors.Is(err, syscall.ENOSPC) || reported != 1 || log.Lost() != flows-1 {
			t.Errorf("%v, reported %d times, %d lost", err, reported, log.Lost())
		}
		if err := log.Close(); !errors.Is(err, syscall.ENOSPC) {
			t.Error(err)
		}
	})
}

// TestCloseLog: a log waits for a slow reader, but not for a blocked one.
func TestCloseLog(t *testing.T) {
	const flows = 100
	for name, tt := range map[string]struct {
		each    time.Duration // of a write
		blocked bool
	}{
		"fast":    {0, false},
		"slow":    {closeTimeout - time.Second, false},
		"blocked": {time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Config{})
				w := &slowWriter{each: tt.each, release: make(chan struct{})}
				log := b.NewLog(w, LogConfig{Failed: func(err error) { t.Error(err) }})
				for i := range flows {
					b.decide(netip.AddrPortFrom(client.Addr(), uint16(40000+i)), nil)
				}
				began := time.Now()
				err := log.Close()
				if tt.blocked {
					if err == nil || !strings.Contains(err.Error(), "blocked") {
						t.Errorf("Close returns %v, want that the reader is blocked", err)
					}
					close(w.release)
					synctest.Wait()
				} else if n := strings.Count(w.written.String(), "\n"); err != nil || n != flows {
					t.Errorf("Close returns %v after %d records, want %d", err, n, flows)
				}
				if took := time.Since(began); tt.each > 0 && !tt.blocked && took < 2*closeTimeout {
					t.Errorf("all was written after %v: nothing to wait for", took)
				}
			})
		})
	}
}
