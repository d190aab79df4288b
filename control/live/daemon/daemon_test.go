package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// manager listens as a service manager does, and puts its address into the environment.
func manager(t *testing.T, address string) (next func() string) {
	t.Helper()
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	t.Setenv("NOTIFY_SOCKET", address)
	return func() string {
		t.Helper()
		b := make([]byte, 1000)
		if err := l.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := l.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

// TestSupervisor: the service manager gets the start, a sign of life as long as there is one, and the end.
func TestSupervisor(t *testing.T) {
	for _, address := range []string{filepath.Join(t.TempDir(), "notify"), fmt.Sprintf("@nfqproxy-test-%d", os.Getpid())} {
		next := manager(t, address)
		t.Setenv("WATCHDOG_USEC", "4000")
		t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
		s, err := findSupervisor()
		if err != nil {
			t.Fatal(err)
		}
		var isStuck atomic.Bool
		isStuck.Store(true)
		looks := make(chan bool)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.run(ctx, func() bool {
				select {
				case looks <- true:
				case <-ctx.Done():
				}
				return isStuck.Load()
			}, slog.New(slog.DiscardHandler))
		}()
		if got := next(); got != "READY=1" {
			t.Errorf("first came %q", got)
		}
		// Two looks while it is stuck cause nothing: a message of theirs would be the next one.
		<-looks
		<-looks
		stop()
		if got := next(); got != "STOPPING=1" {
			t.Errorf("stuck: %q", got)
		}
		<-done

		if s, err = findSupervisor(); err != nil {
			t.Fatal(err)
		}
		ctx, stop = context.WithCancel(t.Context())
		done = make(chan struct{})
		go func() {
			defer close(done)
			s.run(ctx, func() bool { return false }, slog.New(slog.DiscardHandler))
		}()
		for _, want := range []string{"READY=1", "WATCHDOG=1", "WATCHDOG=1"} {
			if got := next(); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		stop()
		for got := next(); got != "STOPPING=1"; got = next() {
			if got != "WATCHDOG=1" {
				t.Errorf("at the end: %q", got)
			}
		}
		<-done
	}
}

// TestNoWatchdog: a service manager that does not want signs of life, or wants those of another process.
func TestNoWatchdog(t *testing.T) {
	manager(t, filepath.Join(t.TempDir(), "notify"))
	for _, environment := range [][2]string{{"", ""}, {"4000", "1"}, {"nonsense", ""}} {
		t.Setenv("WATCHDOG_USEC", environment[0])
		t.Setenv("WATCHDOG_PID", environment[1])
		s, err := findSupervisor()
		if err != nil {
			t.Fatal(err)
		}
		if s.watchdog != 0 {
			t.Errorf("%q: watchdog %s", environment, s.watchdog)
		}
		_ = s.conn.Close()
	}
	t.Setenv("NOTIFY_SOCKET", "")
	if s, err := findSupervisor(); s != nil || err != nil {
		t.Errorf("without a service manager: %v, %v", s, err)
	}
	t.Setenv("NOTIFY_SOCKET", "/none/notify")
	if _, err := findSupervisor(); err == nil {
		t.Error("no error for a socket that does not exist")
	}
}
