package limit

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// serve answers each request with its client, within the numbers.
func serve(t *testing.T, l net.Listener, n Numbers) *Quota {
	t.Helper()
	q := new(Set).New("test", "connections", n)
	s := &http.Server{ConnContext: ConnContext, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, Of(r).String()+"\n")
	})}
	go func() { _ = s.Serve(Listen(l, q, Text)) }()
	t.Cleanup(func() { _ = s.Close() })
	return q
}

// open connects, and sends nothing.
func open(t *testing.T, a net.Addr) net.Conn {
	t.Helper()
	c, err := net.Dial(a.Network(), a.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// read gives what comes before the end.
func read(t *testing.T, c net.Conn) string {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.Status + ": " + string(b)
}

func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// asOtherUser runs bash as another user, which connects to the address and prints what comes
// after the request.
func asOtherUser(t *testing.T, a net.Addr, request string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		netnstest.Missing(t, "root")
	}
	host, port, _ := net.SplitHostPort(a.String())
	cmd := exec.Command("bash", "-c", `exec 3<>/dev/tcp/$0/$1; printf "$2" >&3; cat <&3`, host, port, request)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

const request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

// TestUsersOfLoopback: root gets through when others have taken all that they may.
func TestUsersOfLoopback(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		q := serve(t, l, Numbers{Total: 2, Each: 1, Reserved: 1})
		if got := asOtherUser(t, l.Addr(), request); !strings.HasSuffix(got, "\r\n\r\nuid 65534\n") {
			t.Errorf("%s: the other user is %q", at, got)
		}
		await(t, "its connection is still counted", func() bool { return q.Count().Taken == 0 })
		release, err := q.Take(User(65534))
		if err != nil {
			t.Fatal(err)
		}
		got := asOtherUser(t, l.Addr(), request)
		const want = "too many connections: uid 65534 has 1, the limit for one client: close one, or try again later\n"
		if !strings.HasPrefix(got, "HTTP/1.1 429 Too Many Requests\r\n") || !strings.HasSuffix(got, want) {
			t.Errorf("%s: beyond the limit: %q, want 429 and %q", at, got, want)
		}
		c := open(t, l.Addr())
		_, _ = io.WriteString(c, request)
		if got := read(t, c); got != "200 OK: uid 0\n" {
			t.Errorf("%s: root: %s", at, got)
		}
		release()
	}
}

// TestUnixPeers: the kernel names who connected.
func TestUnixPeers(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l, Numbers{Total: 1, Each: 1})
	c := open(t, l.Addr())
	_, _ = io.WriteString(c, request)
	if got := read(t, c); got != "200 OK: "+User(uint32(os.Geteuid())).String()+"\n" {
		t.Error(got)
	}
}

// pipes is a listener of connections from made-up addresses.
type pipes struct {
	net.Listener
	conns chan net.Conn
}

func (p *pipes) Accept() (net.Conn, error) {
	if c, ok := <-p.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

type from struct {
	net.Conn
	address string
}

func (f from) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(f.address))
}

// TestFloodIsBounded: however many connect, few are kept, all others are closed, and those
// with a share are served.
func TestFloodIsBounded(t *testing.T) {
	inner := &pipes{conns: make(chan net.Conn)}
	q := new(Set).New("test", "connections", Numbers{Total: 8, Each: 2, Reserved: 2})
	l := Listen(inner, q, func(error) []byte { return []byte("no") })
	accepted := make(chan net.Conn, 10000)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	var far []net.Conn
	for i := range 2000 {
		near, server := net.Pipe()
		far = append(far, near)
		address := "10.244.0.9:1000"
		if i == 1999 {
			address = "10.244.0.10:1000"
		}
		inner.conns <- from{server, address}
	}
	close(inner.conns)
	kept := 0
	for range accepted {
		kept++
	}
	if c := q.Count(); kept != 3 || c.Taken != 3 || c.RefusedEach != 1997 {
		t.Errorf("%d are kept, %+v", kept, c)
	}
	for i, c := range far[2:1999] { // closed, with or without an answer
		if b, err := io.ReadAll(c); err != nil || len(b) > 0 && !bytes.Equal(b, []byte("no")) {
			t.Fatalf("%d: %q, %v", i, b, err)
		}
	}
}

func TestDiagAnswers(t *testing.T) {
	if uid, ok := diagUID(nil); ok {
		t.Errorf("of nothing: uid %d", uid)
	}
	b := make([]byte, diagAnswerSize)
	b[4] = sockDiagByFamily
	b[17] = tcpEstablished
	if _, ok := diagUID(b); ok {
		t.Error("a socket without an owner counts as root's")
	}
	b[16+68] = 1
	b[16+64] = 7
	if uid, ok := diagUID(b); !ok || uid != 7 {
		t.Errorf("uid %d, %v", uid, ok)
	}
	b[17] = 6 // TIME_WAIT
	if _, ok := diagUID(b); ok {
		t.Error("a socket that is closed counts as root's")
	}
}
