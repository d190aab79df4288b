package engine

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestSuccessorOfOtherUser: only processes of the same user may take over.
func TestSuccessorOfOtherUser(t *testing.T) {
	for _, user := range []int{os.Geteuid(), os.Geteuid() + 1} {
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: t.TempDir() + "/socket", Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		s := &successors{listener: l, user: user, requests: make(chan *successor), stop: make(chan struct{}), log: slog.New(slog.DiscardHandler)}
		go s.run()
		conn, err := net.Dial("unixpacket", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(handoverRequest)) // it fails after the end of the connection
		if user == os.Geteuid() {
			close((<-s.requests).over)
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("user %d: %v, want the end", user, err)
		}
		select {
		case <-s.requests:
			t.Errorf("user %d: a request", user)
		default:
		}
		_ = conn.Close()
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}
