package lab

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestParseUnixTable(t *testing.T) {
	const table = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 20001 @nfqproxy-lab-1000-kind
0000000000000000: 00000003 00000000 00000000 0001 03 20002 @nfqproxy-lab-1000-kind
0000000000000000: 00000002 00000000 00010000 0001 01 20003 @nfqproxy-lab-1000-dual-stack
0000000000000000: 00000002 00000000 00010000 0001 01 20004 @nfqproxy-lab-0-kind
0000000000000000: 00000002 00000000 00010000 0001 01 20005 /run/dbus/system_bus_socket
0000000000000000: 00000002 00000000 00010000 0001 01 20006
0000000000000000: 00000002 00000000 00010000 0001 01 20007 @nfqproxy-lab-
0000000000000000: 00000002 00000000 00010000 0001 01 20008 @other-1000-kind
`
	own, others := parseUnixTable(table, 1000)
	if d := cmp.Diff([]string{"dual-stack", "kind"}, own); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"kind (user 0)"}, others); d != "" {
		t.Error(d)
	}
}

func TestNotRunningError(t *testing.T) {
	for _, tc := range []struct {
		err  NotRunningError
		want string
	}{
		{NotRunningError{}, "no lab is running; start one: nfqproxy lab up kind"},
		{NotRunningError{Others: []string{"kind (user 0)"}}, "running for other users: kind (user 0)"},
		{NotRunningError{Running: []string{"a", "b"}}, "choose one with --lab: a, b"},
		{NotRunningError{Lab: "c", Running: []string{"a"}}, "lab c is not running; running labs: a"},
		{NotRunningError{Lab: "kind"}, "lab kind is not running; start it: nfqproxy lab up kind"},
		{NotRunningError{Lab: "knd"}, "lab knd is not running (did you mean \"kind\"?); start a lab: nfqproxy lab up FILE"},
	} {
		if got := tc.err.Error(); !strings.Contains(got, tc.want) {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

// pair is two connected sockets.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c.(*net.UnixConn)
		t.Cleanup(func() { _ = c.Close() })
	}
	return conns[0], conns[1]
}

func TestMessages(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want := request{Exec: &execRequest{Host: "shell", Command: []string{"echo", strings.Repeat("x", 1<<20)}, Env: []string{"A=b"}}}
	sent := make(chan error, 1)
	go func() { sent <- writeMessage(a, want, w) }()
	var got request
	files, err := readMessage(b, &got)
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %d files", err, len(files))
	}
	if err := errors.Join(<-sent, w.Close()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// What arrived is the same pipe, and the only end left.
	if _, err := io.WriteString(files[0], "hello"); err != nil {
		t.Error(err)
	}
	closeFiles(files)
	if text, err := io.ReadAll(r); err != nil || string(text) != "hello" {
		t.Errorf("%q, %v", text, err)
	}
	if err := writeMessage(a, request{Exec: &execRequest{Dir: strings.Repeat("x", maxMessage)}}); err == nil {
		t.Error("a message without measure")
	}
}

func TestBadMessages(t *testing.T) {
	header := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	for name, tc := range map[string]struct {
		sent []byte
		want error // nil: any
	}{
		"nothing":        {nil, io.EOF},
		"half a header":  {[]byte{0, 0}, io.EOF},
		"half a message": {append(header(10), "{}"...), io.ErrUnexpectedEOF},
		"too large":      {header(1 << 31), nil},
		"no JSON":        {append(header(1), 'x'), nil},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			if _, err := a.Write(tc.sent); err != nil {
				t.Fatal(err)
			}
			_ = a.CloseWrite()
			var r request
			files, err := readMessage(b, &r)
			if err == nil || len(files) > 0 || tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}

func TestCheckPeer(t *testing.T) {
	a, _ := pair(t)
	if err := checkPeer(a); err != nil {
		t.Errorf("ourselves: %v", err)
	}
}
