package netlinkio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// request is for the links of the namespace: any user may send it. The answers take more than
// one datagram, the last of which is marked.
func request() []byte {
	b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_GETLINK)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	return b
}

func take(t *testing.T) (*Socket, *netlink.Conn) {
	t.Helper()
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Take(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, conn
}

func TestSocket(t *testing.T) {
	s, conn := take(t)
	if _, err := conn.Receive(); err == nil {
		t.Error("the connection can still be used")
	}
	in := NewBuffers(3, 1<<16)
	if n, err := s.Poll(in, 3); n != 0 || err != nil {
		t.Errorf("no request was sent: %d datagrams, %v", n, err)
	}
	if err := s.Write(request()); err != nil {
		t.Fatal(err)
	}
	n, err := s.Wait(in, 1)
	if err != nil || n != 1 {
		t.Fatalf("%d datagrams, %v; want 1, the limit", n, err)
	}
	if typ := binary.NativeEndian.Uint16(in.Datagram(0)[4:]); typ != unix.RTM_NEWLINK {
		t.Errorf("answer of type %d, want a link", typ)
	}
	last := in.Datagram(0)
	for n = 3; n == 3; {
		if n, err = s.Poll(in, 100); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			last = in.Datagram(n - 1)
		}
	}
	if typ := binary.NativeEndian.Uint16(last[4:]); typ != unix.NLMSG_DONE {
		t.Errorf("the last datagram has type %d, want the end", typ)
	}
	if err := s.Write(nil); err == nil {
		t.Error("an empty datagram was accepted")
	}
}

// A goroutine that receives from the connection meanwhile, as go-nfqueue's, gets an error
// wherever it is just then.
func TestTakeFromReceiver(t *testing.T) {
	for range 2000 {
		conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
		if err != nil {
			t.Fatal(err)
		}
		received := make(chan error, 1)
		begun := make(chan struct{})
		go func() {
			close(begun)
			_, err := conn.Receive()
			received <- err
		}()
		<-begun
		s, err := Take(conn)
		if err != nil {
			t.Fatal(err)
		}
		if <-received == nil {
			t.Fatal("a message was received that was never sent")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClosedSocket(t *testing.T) {
	s, _ := take(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	in := NewBuffers(1, 1)
	_, polled := s.Poll(in, 1)
	_, waited := s.Wait(in, 1)
	for what, err := range map[string]error{"Write": s.Write(request()), "SetMember": s.SetMember(1, true), "Poll": polled, "Wait": waited, "Close": s.Close()} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v, want os.ErrClosed", what, err)
		}
	}
}

// TestPollerForgets: no epoll instance of this process has the socket.
func TestPollerForgets(t *testing.T) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Stat_t
	if err := raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &before) }); err != nil {
		t.Fatal(err)
	}
	if !watched(t, before.Ino) {
		t.Fatal("the poller does not know a new connection: the test sees nothing")
	}
	s, err := Take(conn)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var after unix.Stat_t
	if err := unix.Fstat(int(s.fd), &after); err != nil || after.Ino != before.Ino {
		t.Fatalf("another socket: inode %d, was %d (%v)", after.Ino, before.Ino, err)
	}
	if watched(t, after.Ino) {
		t.Error("the poller still knows the socket")
	}
}

// watched reports whether a file is in one of the process's epoll instances.
func watched(t *testing.T, inode uint64) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil || len(files) == 0 {
		t.Skip("no /proc")
	}
	for _, f := range files {
		text, _ := os.ReadFile(f) // it may be closed by now
		if strings.Contains(string(text), "tfd:") && strings.Contains(string(text), fmt.Sprintf("ino:%x ", inode)) {
			return true
		}
	}
	return false
}

// TestCloseWaiting: a wake-up that is lost or fails is repeated; one that never comes ends in an
// error, not in a wait for ever.
func TestCloseWaiting(t *testing.T) {
	waiting := func(s *Socket) chan error {
		ended := make(chan error, 1)
		begun := make(chan struct{})
		go func() {
			in := NewBuffers(1, 1<<12)
			close(begun)
			_, err := s.Wait(in, 1)
			ended <- err
		}()
		<-begun
		for s.use.TryLock() { // until it waits
			s.use.Unlock()
			runtime.Gosched()
		}
		return ended
	}
	// The kernel answers an invalid request.
	noop := func(s *Socket) error {
		b := make([]byte, unix.SizeofNlMsghdr)
		binary.NativeEndian.PutUint32(b, uint32(len(b)))
		binary.NativeEndian.PutUint16(b[4:], unix.NLMSG_NOOP)
		binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
		return s.Write(b)
	}

	s, _ := take(t)
	ended := waiting(s)
	tries := 0
	if err := s.CloseWaiting(func() error {
		switch tries++; tries {
		case 1:
			return unix.ENOBUFS
		case 2:
			return nil // lost
		}
		return noop(s)
	}); err != nil || tries < 3 {
		t.Errorf("closed after %d tries: %v", tries, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the wait ended with %v", err)
	}
	if err := s.CloseWaiting(func() error { return noop(s) }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed again: %v", err)
	}

	s, _ = take(t)
	ended = waiting(s)
	if err := s.closeWaiting(func() error { return unix.ENOBUFS }, time.Millisecond); !errors.Is(err, unix.ENOBUFS) {
		t.Errorf("closed though nothing wakes the other: %v", err)
	}
	if err := noop(s); err != nil {
		t.Error(err)
	}
	<-ended
}
