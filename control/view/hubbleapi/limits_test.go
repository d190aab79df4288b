package hubbleapi

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// idle follows without flows.
type idle struct{ observe.Observer }

func (idle) Flows(ctx context.Context, _ observe.FlowQuery, _ func(observe.Item) error) error {
	<-ctx.Done()
	return nil
}

// start serves, and gives how the quotas are used.
func start(t *testing.T, o observe.Observer) (address string, limits *limit.Set) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	limits = new(limit.Set)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- Serve(ctx, l, Config{Observer: o, Limits: limits, Log: slog.New(slog.DiscardHandler)}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String(), limits
}

func await(t *testing.T, limits *limit.Set, what string, so func(limit.Count) bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		for _, c := range limits.Counts() {
			if c.What == what && so(c) {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %+v", what, limits.Counts())
		}
	}
}

// TestCallsAreLimited: one more than the limit gets the error.
func TestCallsAreLimited(t *testing.T) {
	address, limits := start(t, idle{})
	for range 2 {
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		transport := &http.Transport{Protocols: protocols} // one connection
		defer transport.CloseIdleConnections()
		for range 16 {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/observer.Observer/GetFlows", bytes.NewReader(framed("\x18\x01")))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/grpc")
			answer, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
		}
	}
	await(t, limits, "calls", func(c limit.Count) bool { return c.Taken == 32 })
	status, message := post(t, address, "/observer.Observer/ServerStatus", framed(""))
	if want := "too many calls: all clients together have 32, the limit of this server: try again later"; status != "8" || message != want {
		t.Errorf("status %s, %q, want 8, %q", status, message, want)
	}
}

// TestConnectionsAreLimited: clients of HTTP/2 get the reason why they have to go.
func TestConnectionsAreLimited(t *testing.T) {
	address, limits := start(t, idle{})
	for range 64 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	await(t, limits, "connections", func(c limit.Count) bool { return c.Taken == 64 })
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	b, err := io.ReadAll(c)
	const want = "too many connections: all clients together have 64, the limit of this server: try again later"
	if err != nil || !bytes.HasPrefix(b, []byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00")) || b[12] != 7 || int(b[10])<<8|int(b[11]) != 8+len(want) || !strings.HasSuffix(string(b), "\x00\x00\x00\x0b"+want) {
		t.Errorf("%q, %v", b, err)
	}
}

// endless gives flows without end, of which each takes some hundred bytes.
type endless struct{ observe.Observer }

func (endless) Flows(_ context.Context, _ observe.FlowQuery, each func(observe.Item) error) error {
	now := time.Now()
	for {
		err := each(observe.Item{Record: &flow.Record{
			Version: 1, ID: "f-1", Time: &now, Verdict: "accept", Reason: "not-a-service", Protocol: "TCP", Source: "10.0.0.1:1", Destination: "10.0.0.2:2",
		}})
		if err != nil {
			return err
		}
	}
}

// TestLastIsBounded: the newest of very many flows are refused, and not collected.
func TestLastIsBounded(t *testing.T) {
	address, _ := start(t, endless{})
	status, message := post(t, address, "/observer.Observer/GetFlows", framed(encoded(t, &hubblepb.GetFlowsRequest{Number: 1 << 40})))
	if want := "the last 1099511627776 flows exceed 4 MiB: request fewer, or use --since"; status != "8" || message != want {
		t.Errorf("status %s, %q, want 8, %q", status, message, want)
	}
}
