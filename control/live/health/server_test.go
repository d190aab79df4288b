package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
)

// logBuffer collects a log and signals when there is some.
type logBuffer struct {
	mu      sync.Mutex
	buffer  bytes.Buffer
	written chan struct{}
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.written <- struct{}{}:
	default:
	}
	return b.buffer.Write(p)
}

// TestRequestsEndBeforeTheServer: a request from before the end still gets an answer.
func TestRequestsEndBeforeTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		l, err := n.listen("tcp4", "192.0.2.1:10256")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &HTTPServer{Name: "health", Connections: quota(), Log: slog.New(slog.DiscardHandler), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			cancel()
			time.Sleep(shutdownGrace / 2)
			fmt.Fprint(w, "hello")
		})}
		ended := make(chan error, 1)
		go func() { ended <- s.serve(ctx, l) }()
		if a := readAll(t, n.get(t, "192.0.2.1:10256", "/")); a != "hello" {
			t.Errorf("answer %q", a)
		}
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
		if n.len() != 0 {
			t.Error("the address is still bound")
		}
	})
}

// TestSlowRequestIsCutOff: the end of the server does not wait for it.
func TestSlowRequestIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		l, err := n.listen("tcp4", "192.0.2.1:10256")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s := &HTTPServer{Name: "health", Connections: quota(), Log: slog.New(slog.DiscardHandler), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			<-r.Context().Done()
		})}
		ended := make(chan error, 1)
		go func() { ended <- s.serve(ctx, l) }()
		c, err := n.dial(t.Context(), "192.0.2.1:10256")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
			t.Errorf("read %q, error %v", b, err)
		}
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestAddressThatIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	log := &logBuffer{written: make(chan struct{}, 1)}
	s := &HTTPServer{Name: "metrics", Address: taken.Addr().String(), HardFail: true, Connections: quota(), Log: slog.New(slog.NewTextHandler(log, nil))}
	if err := s.Run(t.Context()); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "metrics") {
		t.Errorf("hard failure: %v", err)
	}
	s.HardFail = false
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-log.written:
	case err := <-ended:
		t.Fatalf("gave up: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("nothing logged")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	if line := log.buffer.String(); !strings.Contains(line, "cannot serve metrics") || !strings.Contains(line, s.Address) {
		t.Errorf("logged %s", line)
	}
}

func quota() *limit.Quota { return new(limit.Set).Connections("health", Connections) }
