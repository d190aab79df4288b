package lab

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// startServer serves TCP and UDP on loopback.
func startServer(t *testing.T) (s *server, tcp, udp string) {
	t.Helper()
	s = newServer(Answer{Pod: "default/web", Node: "node-a"})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.serveTCP(l)
	s.serveUDP(c)
	t.Cleanup(s.Close)
	return s, l.Addr().String(), c.LocalAddr().String()
}

func TestServerHTTP(t *testing.T) {
	_, addr, _ := startServer(t)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	get := func(path string) (int, []byte) {
		r, err := client.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, b
	}
	code, body := get("/")
	a, rest, err := ParseAnswer(body)
	if code != http.StatusOK || err != nil || len(rest) > 0 {
		t.Fatalf("GET /: %d %s %v", code, body, err)
	}
	if a.Pod != "default/web" || a.Node != "node-a" || a.Who() != "default/web" || a.Local != addr || !strings.HasPrefix(a.Client, "127.0.0.1:") {
		t.Errorf("GET /: %+v", a)
	}
	if code, body := get("/download?bytes=1000000"); code != http.StatusOK || len(body) != 1000000 {
		t.Errorf("download: %d, %d bytes", code, len(body))
	}
	for _, path := range []string{"/download", "/download?bytes=-1", "/download?bytes=100000000000"} {
		if code, _ := get(path); code != http.StatusBadRequest {
			t.Errorf("%s: %d, want a bad request", path, code)
		}
	}
	if code, _ := get("/other"); code != http.StatusNotFound {
		t.Errorf("/other: %d, want not found", code)
	}
}

// A client that speaks something else gets the answer too.
func TestServerPlainTCP(t *testing.T) {
	_, addr, _ := startServer(t)
	for name, send := range map[string]string{
		"a line":             "hello\n",
		"nothing":            "",
		"no newline":         "hello",
		"a very long line":   strings.Repeat("x", 100000),
		"not quite HTTP":     "GET / HTTP/3.0\r\n\r\n",
		"a line and more":    "hello\nGET / HTTP/1.1\r\n",
		"binary, like TLS":   "\x16\x03\x01\x00\xf5\x01\n",
		"almost a request":   "get / HTTP/1.1\r\n",
		"newlines, then EOF": "\n\n\n",
	} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// In two writes, so that the line comes in parts.
		half := len(send) / 2
		_, _ = io.WriteString(c, send[:half])
		_, _ = io.WriteString(c, send[half:])
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		if a, rest, perr := ParseAnswer(b); err != nil || perr != nil || len(rest) > 0 || a.Client != c.LocalAddr().String() {
			t.Errorf("%s: %q, %v, %v", name, b, err, perr)
		}
	}
}

func TestServerUDP(t *testing.T) {
	_, _, addr := startServer(t)
	c, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 64<<10)
	for _, send := range []string{"", "ping", strings.Repeat("x", 60000)} {
		if _, err := io.WriteString(c, send); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		a, rest, err := ParseAnswer(b[:n])
		if err != nil || string(rest) != send[:min(len(send), maxEcho)] || a.Client != c.LocalAddr().String() || a.Local != addr {
			t.Errorf("%d bytes: %+v, %d bytes, %v", len(send), a, len(rest), err)
		}
	}
}

// Close ends open connections, idle ones included, and all goroutines.
func TestServerClose(t *testing.T) {
	s, addr, _ := startServer(t)
	silent, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	busy, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	fmt.Fprintf(busy, "GET /download?bytes=%d HTTP/1.1\r\nHost: x\r\n\r\n", maxDownload)
	if _, err := io.ReadFull(busy, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	for _, c := range []net.Conn{silent, busy} {
		if _, err := io.Copy(io.Discard, c); err == nil {
			t.Log("closed")
		}
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("still listening")
	}
}

func TestParseAnswer(t *testing.T) {
	for _, text := range []string{"", "{}", "x\n", "[]\n"} {
		if a, _, err := ParseAnswer([]byte(text)); err == nil {
			t.Errorf("%q is %+v", text, a)
		}
	}
	a, rest, err := ParseAnswer([]byte("{\"host\":\"apiserver\"}\nrest"))
	if err != nil || a.Who() != "apiserver" || !bytes.Equal(rest, []byte("rest")) {
		t.Errorf("%+v, %q, %v", a, rest, err)
	}
}
