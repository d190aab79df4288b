package traffic

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) {
	// Blocked threads keep their Ps; they are never given back.
	Tune(EchoThreads + 8)
	netnstest.Main(m)
}

const port = 8080

// timeout is how long a test waits for an answer that comes at once. Only a failing test waits that long.
const timeout = time.Minute

var first = netip.MustParseAddr("127.0.1.5")

// echo starts the echo once; it ends with the process.
var echo = sync.OnceValue(func() error {
	ended, ready := make(chan error, 1), make(chan struct{})
	go func() { ended <- Echo(port, func() { close(ready) }) }()
	select {
	case <-ready:
		return nil
	case err := <-ended:
		return err
	}
})

// TestTraffic has a load meet the echo on loopback addresses.
func TestTraffic(t *testing.T) {
	netnstest.Require(t)
	if err := echo(); err != nil {
		t.Fatal(err)
	}
	to := Targets{First: netip.AddrPortFrom(first, port), Count: 300, Step: 1}

	for i := range uint32(3) {
		who, err := Request(to.At(299+i), timeout)
		if want := to.At(299 + i).Addr().As4()[3]; err != nil || who != want {
			t.Errorf("target %d (%s): answered by %d, %v; want %d", 299+i, to.At(299+i), who, err, want)
		}
	}
	for _, udp := range []bool{false, true} {
		l := Load{
			UDP: udp, Workers: 3, From: netip.MustParseAddr("127.0.0.2"), FirstPort: 20000, Ports: 1000, To: to,
			WarmUp: 5, Time: time.Hour, Limit: 40, Timeout: timeout,
		}
		calls := ""
		r, err := l.Run(func() { calls += "began " }, func() { calls += "ended" })
		if err != nil {
			t.Fatal(err)
		}
		if r.Connections != 120 || len(r.Failures) != 0 || calls != "began ended" {
			t.Errorf("udp %v: %+v, calls %q: want 120 connections and no failure", udp, r, calls)
		}
		if r.P50 == 0 || r.P50 > r.P99 || r.P99 > r.P999 || r.P999 > r.Max {
			t.Errorf("udp %v: latencies are not in order: %+v", udp, r)
		}
	}
	rate, err := Stream(to.First, time.Millisecond, func() {}, func() {})
	if err != nil || rate <= 0 {
		t.Errorf("stream: %v bytes/s, %v", rate, err)
	}
}

// TestFailuresAreCounted sends requests to ports without a listener.
func TestFailuresAreCounted(t *testing.T) {
	netnstest.Require(t)
	l := Load{
		Workers: 2, From: netip.MustParseAddr("127.0.0.2"), FirstPort: 30000, Ports: 1000,
		To: Targets{First: netip.MustParseAddrPort("127.0.0.1:9"), Count: 1}, Time: time.Hour, Limit: 7, Timeout: timeout,
	}
	r, err := l.Run(func() {}, func() {})
	if err == nil || len(r.Failures) != 1 || r.Failures["connect: connection refused"] != 14 {
		t.Errorf("%+v, %v: want 14 refusals and an error", r, err)
	}
}

// TestRequestGivesUp sends a request to a silent server. The runtime sends signals meanwhile.
func TestRequestGivesUp(t *testing.T) {
	netnstest.Require(t)
	n, err := netns.New("silent")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	// No host has the address. The kernel would report that, which is another error, after one second for
	// each request.
	if err := errors.Join(n.AddVeth("a", n, "b"), n.AddAddress("a", netip.MustParsePrefix("192.0.2.1/24")),
		n.SetSysctl("net.ipv4.neigh.a.mcast_solicit", "600")); err != nil {
		t.Fatal(err)
	}
	err = n.Do(func() error {
		_, err := Request(netip.MustParseAddrPort("192.0.2.2:80"), 100*time.Millisecond)
		return err
	})
	if err == nil || err.Error() != "connect: timeout" {
		t.Errorf("%v, want the end of the time limit", err)
	}
}

func TestAdvance(t *testing.T) {
	for _, tc := range []struct {
		from string
		n    uint32
		want string
	}{{"10.0.0.1", 0, "10.0.0.1"}, {"10.0.0.1", 255, "10.0.1.0"}, {"10.0.255.255", 65537, "10.2.0.0"}} {
		if got := Advance(netip.MustParseAddr(tc.from), tc.n); got != netip.MustParseAddr(tc.want) {
			t.Errorf("%s + %d = %s, want %s", tc.from, tc.n, got, tc.want)
		}
	}
}
