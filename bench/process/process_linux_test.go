package process

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

func namespace(t *testing.T) *netns.Namespace {
	t.Helper()
	netnstest.Require(t)
	n, err := netns.New("side")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// TestProcess: the output comes line by line, however long they are, and the end of a process has
// its error and its last words.
func TestProcess(t *testing.T) {
	n := namespace(t)
	p, err := Start(n, exec.Command("sh", "-c", `trap 'echo it got SIGTERM >&2; exit 3' TERM
echo one; head -c 200000 /dev/zero | tr '\0' x; echo; echo ready; while :; do sleep 0.01; done`))
	if err != nil {
		t.Fatal(err)
	}
	if line, err := p.Line(); line != "one" || err != nil {
		t.Errorf("the first line is %q, %v", line, err)
	}
	if line, err := p.Line(); len(line) != 200000 || err != nil {
		t.Errorf("the second line has %d bytes, %v", len(line), err)
	}
	if err := p.Await("ready"); err != nil {
		t.Error(err)
	}
	if err := p.End(); err == nil || err.Error() != "exit status 3" {
		t.Errorf("it ended with %v", err)
	}
	if got := p.Stderr(); got != "it got SIGTERM" {
		t.Errorf("standard error is %q", got)
	}
	if _, err := p.Line(); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a line behind the last: %v", err)
	}
	if err := p.End(); err == nil {
		t.Error("it ended a second time without its error")
	}
}

// TestGet: any status but 200 is an error, and so is a server that is not there.
func TestGet(t *testing.T) {
	n := namespace(t)
	var l net.Listener
	if err := n.Do(func() (err error) { l, err = net.Listen("tcp4", "127.0.0.1:0"); return err }); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/page" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprint(w, r.URL.RawQuery)
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	if page, err := Get(context.Background(), n, at, "/page?a=b"); string(page) != "a=b" || err != nil {
		t.Errorf("%q, %v", page, err)
	}
	if _, err := Get(context.Background(), n, at, "/other"); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("status 503: %v", err)
	}
	if _, err := Get(context.Background(), n, netip.MustParseAddrPort("127.0.0.1:1"), "/page"); err == nil {
		t.Error("a page of no server")
	}
}
