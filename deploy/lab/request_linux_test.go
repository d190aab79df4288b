package lab

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestUnansweredRequests: a request without a connection or an answer ends after the time for it, with the reason.
func TestUnansweredRequests(t *testing.T) {
	l := mustUp(t, "kind", "")
	const node = "kind-worker"
	silent, closing := netip.MustParseAddrPort("172.20.0.2:7000"), netip.MustParseAddrPort("172.20.0.2:7001")
	ns, err := l.Namespace(node)
	if err != nil {
		t.Fatal(err)
	}
	// The kernel accepts connections, and nothing reads them.
	tcp, err := ns.Listen(t.Context(), silent)
	if err != nil {
		t.Fatal(err)
	}
	udp, err := ns.ListenPacket(t.Context(), silent)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := ns.Listen(t.Context(), closing)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() {
		c, err := listener.Accept()
		if err == nil {
			_, err = c.Read(make([]byte, 100)) // unread data would reset the connection
			err = errors.Join(err, c.Close())
		}
		closed <- err
	}()
	t.Cleanup(func() {
		if err := errors.Join(tcp.Close(), udp.Close()); err != nil {
			t.Error(err)
		}
	})

	const soon, never = 20 * time.Millisecond, time.Hour
	for _, tt := range []struct {
		name, to, protocol string
		timeouts           timeouts
		source             bool // the request has left
		want               string
	}{
		{"connection without an answer", silent.String(), "tcp", timeouts{connect: never, answer: soon, datagram: never, held: never}, true, "no answer"},
		{"datagram without an answer", silent.String(), "udp", timeouts{connect: never, answer: never, datagram: soon, held: never}, true, "no answer"},
		// No machine has the address; the kernel looks for one for some seconds.
		{"no connection", "172.20.0.77:80", "tcp", timeouts{connect: soon, answer: never, datagram: never, held: never}, false, "no connection"},
		{"closed", closing.String(), "tcp", timeouts{connect: never, answer: never, datagram: never, held: never}, true, "connection closed without an answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l.timeouts = tt.timeouts
			// A request that does not end by itself ends with the test's timeout.
			ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
			defer cancel()
			r, err := l.Request(ctx, labapi.Request{From: "kind-worker2", To: tt.to, Protocol: tt.protocol})
			if err != nil {
				t.Fatal(err)
			}
			if ctx.Err() != nil {
				t.Error("the request did not end by itself")
			}
			if r.Error != tt.want || r.By != "" || r.Client != "" || (r.Source != "") != tt.source {
				t.Errorf("%+v, want the error %q", r, tt.want)
			}
		})
	}
	if err := errors.Join(listener.Close(), <-closed); err != nil {
		t.Error(err)
	}
}

// TestRequestWaitsForHold: the time limit of a request does not count while a node holds a flow.
func TestRequestWaitsForHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := observetest.New("kind-worker")
		l := &Lab{Observer: node, timeouts: timeouts{held: time.Second}}
		begun := time.Now()
		ctx, cancel := l.wait(t.Context(), 5*time.Second)
		defer cancel()
		<-ctx.Done()
		if took := time.Since(begun); took != 5*time.Second || !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			t.Errorf("nothing is held: the limit is %v, %v; want 5s", took, context.Cause(ctx))
		}

		hold, err := node.Holder().Hold(t.Context(), observe.HoldQuery{Flow: observe.HoldFilter{Service: "default/web"}})
		if err != nil || !node.Catch(flow.Record{Service: "default/web"}) {
			t.Fatalf("no flow is held: %v", err)
		}
		begun = time.Now()
		ctx, cancel = l.wait(t.Context(), 5*time.Second)
		defer cancel()
		time.AfterFunc(time.Minute+time.Second/2, func() { node.Expire(hold.ID) })
		<-ctx.Done()
		if took := time.Since(begun); took != time.Minute+time.Second {
			t.Errorf("a flow is held for a minute: the limit is %v", took)
		}
	})
}
