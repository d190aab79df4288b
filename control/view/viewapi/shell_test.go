package viewapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi/flowapitest"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// shellTeacher opens shells that the test plays.
type shellTeacher struct {
	fakeTeacher
	opened chan *fakeShell
	err    error
}

func (t *shellTeacher) OpenShell(host string, size labapi.TerminalSize) (labapi.Terminal, error) {
	if t.err != nil {
		return nil, t.err
	}
	own, other := net.Pipe()
	s := &fakeShell{Conn: own, host: host, size: size, resized: make(chan labapi.TerminalSize, 1), theirs: other}
	t.opened <- s
	return s, nil
}

// fakeShell is a terminal; theirs is the end of the shell itself.
type fakeShell struct {
	net.Conn
	host    string
	size    labapi.TerminalSize
	resized chan labapi.TerminalSize
	theirs  net.Conn
}

func (s *fakeShell) Resize(size labapi.TerminalSize) error {
	s.resized <- size
	return nil
}

const shellSize = `{"columns":80,"rows":24}`

func newShellWorld(t *testing.T) (*flowapitest.World, *shellTeacher) {
	t.Helper()
	teacher := &shellTeacher{opened: make(chan *fakeShell, 8)}
	return newWorld(t, Config{Teacher: teacher}, longTiming), teacher
}

// dialShell connects as a browser does.
func dialShell(t *testing.T, url, token string, headers ...string) (*websocket.Conn, *http.Response) {
	t.Helper()
	header := http.Header{"Origin": {url}}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		header.Set(name, value)
	}
	dialer := websocket.Dialer{Subprotocols: []string{shellProtocol}}
	if token != "" {
		dialer.Subprotocols = append(dialer.Subprotocols, tokenProtocol+base64.RawURLEncoding.EncodeToString([]byte(token)))
	}
	conn, r, err := dialer.DialContext(t.Context(), strings.Replace(url, "http", "ws", 1)+"/v1/lesson/shell", header)
	if err != nil && (r == nil || r.StatusCode < 400) {
		t.Fatal(err)
	}
	if conn != nil {
		t.Cleanup(func() { conn.Close() })
	}
	return conn, r
}

// openShell opens a shell of 80 columns and 24 rows.
func openShell(t *testing.T, url string, teacher *shellTeacher) (*websocket.Conn, *fakeShell) {
	t.Helper()
	conn, r := dialShell(t, url, "secret")
	if conn == nil {
		t.Fatalf("%d %s", r.StatusCode, flowapitest.Content(t, r))
	}
	if conn.Subprotocol() != shellProtocol {
		t.Errorf("the subprotocol %q is selected", conn.Subprotocol())
	}
	sendText(t, conn, shellSize)
	return conn, <-teacher.opened
}

func sendText(t *testing.T, conn *websocket.Conn, text string) {
	t.Helper()
	if err := conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// wantClosed reads until the close frame.
func wantClosed(t *testing.T, conn *websocket.Conn, code int, reason string) {
	t.Helper()
	for {
		_, _, err := conn.ReadMessage()
		if err == nil {
			continue
		}
		closed, ok := errors.AsType[*websocket.CloseError](err)
		if !ok || closed.Code != code || closed.Text != reason {
			t.Errorf("closed with %v, want %d %s", err, code, reason)
		}
		return
	}
}

func read(t *testing.T, r io.Reader, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if _, err := io.ReadFull(r, b); err != nil || string(b) != want {
		t.Errorf("read %q, %v, want %q", b, err, want)
	}
}

// TestShell: what is typed reaches the shell, what it prints comes back, and sizes are passed on.
func TestShell(t *testing.T) {
	w, teacher := newShellWorld(t)
	conn, shell := openShell(t, w.URL, teacher)
	if want := (labapi.TerminalSize{Columns: 80, Rows: 24}); shell.size != want || shell.host != "" {
		t.Errorf("opened on host %q with %v, want %v", shell.host, shell.size, want)
	}
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte("ip route\r\x03\xff")); err != nil {
		t.Fatal(err)
	}
	read(t, shell.theirs, "ip route\r\x03\xff")
	if _, err := shell.theirs.Write([]byte("default via\xff")); err != nil {
		t.Fatal(err)
	}
	if kind, data, err := conn.ReadMessage(); err != nil || kind != websocket.BinaryMessage || string(data) != "default via\xff" {
		t.Errorf("printed: %d %q %v", kind, data, err)
	}
	sendText(t, conn, `{"columns":132,"rows":50}`)
	if got, want := <-shell.resized, (labapi.TerminalSize{Columns: 132, Rows: 50}); got != want {
		t.Errorf("resized to %v, want %v", got, want)
	}
	_ = shell.theirs.Close()
	wantClosed(t, conn, websocket.CloseNormalClosure, "the shell has ended")
}

// TestShellEnds: a shell ends with its connection, with a message that is none, and with the server.
func TestShellEnds(t *testing.T) {
	w, teacher := newShellWorld(t)
	ended := func(s *fakeShell) {
		t.Helper()
		if _, err := s.theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the shell goes on: %v", err)
		}
	}
	conn, shell := openShell(t, w.URL, teacher)
	_ = conn.Close()
	ended(shell)
	for _, message := range []string{`columns`, `{"columns":-1,"rows":24}`, `{"columns":80,"rows":1001}`, `{"shown":-1}`} {
		conn, shell = openShell(t, w.URL, teacher)
		sendText(t, conn, message)
		ended(shell)
	}
	conn, shell = openShell(t, w.URL, teacher)
	_ = conn.WriteMessage(websocket.BinaryMessage, make([]byte, maxShellMessage+1))
	ended(shell)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- flowapi.New(flowapi.Config{Observer: observetest.New("node-a"), Token: "secret", Routes: Routes(Config{Teacher: teacher})}).Serve(ctx, l)
	}()
	conn, shell = openShell(t, "http://"+l.Addr().String(), teacher)
	stop()
	ended(shell)
	wantClosed(t, conn, websocket.CloseGoingAway, "the unit has ended")
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestShellOfASilentClient: pings find a client that is gone while its shell is silent.
func TestShellOfASilentClient(t *testing.T) {
	teacher := &shellTeacher{opened: make(chan *fakeShell, 1)}
	timing := longTiming
	timing.KeepAlive = time.Millisecond
	w := newWorld(t, Config{Teacher: teacher}, timing)
	conn, shell := openShell(t, w.URL, teacher)
	// The shell does not read, so that the server does not read from the client either.
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = conn.NetConn().(*net.TCPConn).SetLinger(0)
	_ = conn.NetConn().Close()
	if _, err := io.Copy(io.Discard, onlyAfter(shell)); err != nil {
		t.Errorf("the shell goes on: %v", err)
	}
}

// onlyAfter is the shell's end, from when the terminal is closed: a write to it fails then.
func onlyAfter(s *fakeShell) io.Reader {
	for {
		if _, err := s.theirs.Write([]byte("x")); err != nil {
			return s.theirs
		}
	}
}

func TestShellRefused(t *testing.T) {
	w, teacher := newShellWorld(t)
	for _, tt := range []struct {
		name, token string
		headers     []string
		status      int
		message     string
	}{
		{"no token", "", nil, 401, "missing token"},
		{"another token", "secreT", nil, 401, "wrong token"},
		{"a foreign page", "secret", []string{"Origin: http://evil.example"}, 403, "cross-site request"},
		{"a page of another port", "secret", []string{"Origin: http://127.0.0.1:1"}, 403, "cross-site request"},
		{"another site", "secret", []string{"Sec-Fetch-Site: cross-site"}, 403, "cross-site request"},
		{"another name", "secret", []string{"Host: evil.example", "Origin: http://evil.example"}, 403, "is not a name of this server"},
	} {
		conn, r := dialShell(t, w.URL, tt.token, tt.headers...)
		if conn != nil {
			t.Errorf("%s: it is open", tt.name)
			continue
		}
		b, _ := io.ReadAll(r.Body)
		if r.StatusCode != tt.status || !strings.Contains(string(b), tt.message) {
			t.Errorf("%s: %d %s, want %d %s", tt.name, r.StatusCode, b, tt.status, tt.message)
		}
	}
	for _, method := range []string{"GET", "HEAD"} {
		if r := w.Do(t, method, "/v1/lesson/shell", "", "Authorization: Bearer secret"); r.StatusCode != 426 || r.Header.Get("Upgrade") != "websocket" {
			t.Errorf("%s without a WebSocket: %d", method, r.StatusCode)
		}
	}
	if r := w.Do(t, "GET", "/v1/lesson/shell?host=node-a", "", "Authorization: Bearer secret"); r.StatusCode != 400 {
		t.Errorf("a parameter: %d", r.StatusCode)
	}
	plain := newWorld(t, Config{Teacher: new(fakeTeacher)}, longTiming)
	if _, r := dialShell(t, plain.URL, "secret"); r.StatusCode != 404 {
		t.Errorf("a teacher without shells: %d", r.StatusCode)
	}
	// From other machines, even with the token.
	s := flowapi.New(flowapi.Config{Observer: observetest.New("node-a"), Token: "secret", Routes: Routes(Config{Teacher: teacher}), Timing: &longTiming})
	r := httptest.NewRequest("GET", "http://192.0.2.1/v1/lesson/shell", nil)
	r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}))
	r.Header.Set("Authorization", "Bearer secret")
	answer := httptest.NewRecorder()
	if s.ServeHTTP(answer, r); answer.Code != 403 || !strings.Contains(answer.Body.String(), "this machine only") {
		t.Errorf("from elsewhere: %d %s", answer.Code, answer.Body)
	}

	for _, first := range []string{`{}`, `{"columns":80}`, `{"columns":80,"rows":100000}`, `x`} {
		conn, _ := dialShell(t, w.URL, "secret")
		sendText(t, conn, first)
		wantClosed(t, conn, websocket.ClosePolicyViolation, `the first message must be the size of the terminal, as {"columns":80,"rows":24}`)
	}
	teacher.err = errors.New(strings.Repeat("no unit is under way ", 10))
	conn, _ := dialShell(t, w.URL, "secret")
	sendText(t, conn, shellSize)
	wantClosed(t, conn, websocket.CloseInternalServerErr, teacher.err.Error()[:maxReason])
	if len(teacher.opened) > 0 {
		t.Errorf("%d shells were opened", len(teacher.opened))
	}
}

// TestShellLimit: there are four shells at most, and one more after the end of one.
func TestShellLimit(t *testing.T) {
	w, teacher := newShellWorld(t)
	var last *websocket.Conn
	for range 4 {
		last, _ = openShell(t, w.URL, teacher)
	}
	if _, r := dialShell(t, w.URL, "secret"); r.StatusCode != 429 && r.StatusCode != 503 {
		t.Errorf("the fifth: %d", r.StatusCode)
	}
	_ = last.Close()
	for { // until the server sees that
		if conn, _ := dialShell(t, w.URL, "secret"); conn != nil {
			return
		}
	}
}

// TestShellWindow: a shell is not read while the client has not shown what it got.
func TestShellWindow(t *testing.T) {
	w, teacher := newShellWorld(t)
	conn, shell := openShell(t, w.URL, teacher)
	line := bytes.Repeat([]byte("y"), 4096)
	received := make(chan int)
	go func() {
		defer close(received)
		for {
			_, data, err := conn.ReadMessage()
			if err != nil {
				return
			}
			received <- len(data)
		}
	}()
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		for range 2 * shellWindow / len(line) {
			if _, err := shell.theirs.Write(line); err != nil {
				return
			}
		}
	}()
	total := 0
	for total < shellWindow {
		total += netnstest.Receive(t, received, "output of the shell")
	}
	select {
	case n := <-received:
		t.Fatalf("%d bytes more than the window", n)
	case <-printed:
		t.Fatal("everything is printed")
	case <-time.After(50 * time.Millisecond): // nothing comes: that cannot be waited for
	}
	sendText(t, conn, `{"shown":524288}`)
	for total < 2*shellWindow {
		total += netnstest.Receive(t, received, "output of the shell")
	}
	netnstest.Receive(t, printed, "the end of the output")
}
