package serving

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// retransmissions is how often the kernel sent a SYN or data of the connection again.
func retransmissions(t *testing.T, conn net.Conn) uint32 {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	if e := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return info.Total_retrans
}

// TestPortReuse opens 5,000 connections one after the other from 100 source ports:
// each port comes again while the connection table still remembers the connection
// it had before. One that is forgotten to be replaced fails or costs a SYN. A SYN that waits a second for
// a daemon is sent again, too: the test is not parallel to others, and accepts a few of these.
func TestPortReuse(t *testing.T) {
	c := e2etest.NewCluster(t)
	const connections, fewResent = 5000, 10
	replaced, resent := 0, 0
	for i := range connections {
		from := netip.AddrPortFrom(netip.MustParseAddr("10.244.0.9"), uint16(20000+i%100))
		conn := c.Dial("shell", "tcp", from, "10.96.0.20:80")
		if n := retransmissions(t, conn); n > 0 {
			t.Logf("connection %d from %s: %d SYNs were sent again", i, from, n)
			if resent++; resent > fewResent {
				t.FailNow()
			}
		}
		c.Ask(conn)
		// The server has closed first, so the client's port is free at once; every
		// other time the client resets instead.
		if i%2 == 0 {
			if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
				t.Fatal(err)
			}
		} else if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c.Sync("shell")
	replaced = c.Count(func(r *flow.Record) bool { return r.Conntrack == "replaced" })
	if replaced < 4000 {
		t.Errorf("only %d connections took the place of an old one: the test tests nothing", replaced)
	}
}

// lookup finds the connection of a socket in a node's table.
func lookup(c *e2etest.Cluster, node string, conn net.Conn) conntrack.State {
	c.T.Helper()
	var s conntrack.State
	c.Must(c.Host(node).Do(func() error {
		table, err := conntrack.Open(new(conntrack.Locks))
		if err != nil {
			return err
		}
		defer table.Close()
		s, err = table.Lookup(conntrack.Tuple{
			Source:      netip.MustParseAddrPort(conn.LocalAddr().String()),
			Destination: netip.MustParseAddrPort(conn.RemoteAddr().String()),
			Protocol:    unix.IPPROTO_TCP,
		}, 0)
		return err
	}))
	return s
}

// TestStraySYN: a SYN with another sequence number on the tuple of an established
// connection, made by an attacker or an old packet, changes nothing.
func TestStraySYN(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	// One that stays open: a client that has asked nothing yet.
	conn := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80")
	before := lookup(c, "node-a", conn)
	if before.TCP != conntrack.TCPEstablished {
		t.Fatalf("the connection is in state %d", before.TCP)
	}
	for i := range uint32(20) {
		inject(c, "shell", conn, &layers.TCP{SYN: true, Seq: 0x10000000 * i, Window: 1000})
	}
	// All of them have been decided when the records are there.
	kept := func(r *flow.Record) bool {
		return r.Source == conn.LocalAddr().String() && r.Conntrack == "kept"
	}
	c.WaitRecords(20, "20 records of kept flows", kept)
	for _, r := range c.Records() {
		if kept(r) && r.Endpoint != before.Endpoint().String() {
			t.Errorf("a record says %s, the flow goes to %s", r.Endpoint, before.Endpoint())
		}
	}
	after := lookup(c, "node-a", conn)
	if after.ID != before.ID || after.Endpoint() != before.Endpoint() {
		t.Errorf("the entry changed from %+v to %+v", before, after)
	}
	if a := c.Ask(conn); a.Local != before.Endpoint().String() {
		t.Errorf("answered by %s, want %s", a.Local, before.Endpoint())
	}
}

// inject sends a TCP segment on a connection's tuple through a raw socket.
func inject(c *e2etest.Cluster, host string, conn net.Conn, tcp *layers.TCP) {
	c.T.Helper()
	src, dst := netip.MustParseAddrPort(conn.LocalAddr().String()), netip.MustParseAddrPort(conn.RemoteAddr().String())
	tcp.SrcPort, tcp.DstPort = layers.TCPPort(src.Port()), layers.TCPPort(dst.Port())
	ip := &layers.IPv4{Version: 4, Protocol: layers.IPProtocolTCP, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
	if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
		c.T.Fatal(err)
	}
	b := gopacket.NewSerializeBuffer()
	if err := tcp.SerializeTo(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}); err != nil {
		c.T.Fatal(err)
	}
	c.Must(c.Host(host).Do(func() error {
		raw, err := net.ListenPacket("ip4:tcp", src.Addr().String())
		if err != nil {
			return err
		}
		defer raw.Close()
		_, err = raw.WriteTo(b.Bytes(), &net.IPAddr{IP: dst.Addr().AsSlice()})
		return err
	}))
}

// TestFlushedTCPIsReset: after conntrack -F a connection ends at once instead of
// hanging, and a new one works.
func TestFlushedTCPIsReset(t *testing.T) { e2etest.InEachScope(t, testFlushedTCPIsReset) }

func testFlushedTCPIsReset(t *testing.T, c *e2etest.Cluster) {
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.Use(t)
		for from, to := range map[string]string{
			"shell":   at("10.96.0.20", "fd00:10:96::20", 80),
			"node-a":  at("10.96.0.20", "fd00:10:96::20", 80),
			"outside": at("172.21.0.2", "fd00:172:21::2", 30080),
		} {
			conn := c.Dial(from, "tcp", e2etest.AnyPort, to)
			flush(c, "node-a")
			_, err := e2etest.Ask(conn)
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("from %s: error %v, want reset", from, err)
			}
			c.Ask(c.Dial(from, "tcp", e2etest.AnyPort, to))
		}
	})
}

// TestBalanceAndSeed: 3,000 connections spread evenly over three endpoints, and the
// same seed gives the same choices again.
func TestBalanceAndSeed(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	choose := func(n int) []string {
		var chosen []string
		for range n {
			conn := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80")
			chosen = append(chosen, c.Ask(conn).Pod)
			_ = conn.Close()
		}
		return chosen
	}
	first := choose(3000)
	counts := make(map[string]float64)
	for _, pod := range first {
		counts[pod]++
	}
	chi2 := 0.0
	for _, pod := range []string{"default/web-1", "default/web-2", "default/web-3"} {
		chi2 += (counts[pod] - 1000) * (counts[pod] - 1000) / 1000
	}
	if const99 := 9.21; chi2 > const99 || len(counts) != 3 { // 2 degrees of freedom, p = 0.01
		t.Errorf("chi-square %.2f > %.2f: %v", chi2, const99, counts)
	}
	if err := errors.Join(c.StopDaemon(t.Context(), "node-a"), c.StartDaemon(t.Context(), "node-a")); err != nil {
		t.Fatal(err)
	}
	if again := choose(100); fmt.Sprint(again) != fmt.Sprint(first[:100]) {
		t.Errorf("the seed does not give the same choices again:\n%v\n%v", first[:100], again)
	}
	c = e2etest.NewCluster(t, func(s *lab.Spec) { *s.Proxy.Seed = 8 })
	if third := choose(100); fmt.Sprint(third) == fmt.Sprint(first[:100]) {
		t.Error("another seed gives the same choices")
	}
}

// TestDaemonDies kills the daemon in the middle of a download: the kernel goes on
// without it, and decides new connections by its copy of the service table.
func TestDaemonDies(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	const size = 20 << 20
	conn := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80")
	if _, err := fmt.Fprintf(conn, "GET /download?bytes=%d HTTP/1.0\r\n\r\n", size); err != nil {
		t.Fatal(err)
	}
	received, err := io.CopyN(io.Discard, conn, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	c.Must(c.KillDaemon("node-a"))

	if a := c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.244.1.2:8080")); a.Pod != "default/web-2" {
		t.Errorf("pod to pod was answered by %+v", a)
	}
	for _, to := range []string{"10.96.0.20:80", "[fd00:10:96::20]:80", "172.21.0.2:30090"} {
		c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, to))
	}
	c.Ask(c.Dial("shell", "udp", e2etest.AnyPort, "10.96.0.20:53"))
	if _, err := c.TryDial("shell", "tcp", e2etest.AnyPort, "10.96.0.40:80"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a service without endpoints: %v, want connection refused", err)
	}

	rest, err := io.Copy(io.Discard, conn)
	if total := received + rest; err != nil || total < size {
		t.Errorf("the download ended after %d bytes of %d: %v", total, size, err)
	}

	// Restarted: it replaces what the killed one left, and serves.
	c.Must(c.StartDaemon(t.Context(), "node-a"))
	again := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80")
	c.Ask(again)
	c.Record("dnat", "TCP", again.LocalAddr(), again.RemoteAddr())
}

// TestDaemonStops: after SIGTERM nothing of ours is left in the node's kernel, where no
// connection needs it, and what is for no service passes.
func TestDaemonStops(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	conn := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80")
	c.Ask(conn)
	_ = conn.Close()
	e2etest.Eventually(t, e2etest.Timeout, "the end of the connection in the connection table", func() bool { return !hasTranslated(c, "node-a") })
	c.Must(c.StopDaemon(t.Context(), "node-a"))
	c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.244.1.2:8080"))
	c.Must(c.Host("node-a").Do(func() error {
		tables, err := e2etest.Tables()
		if len(tables) > 0 {
			t.Errorf("nftables tables are left: %v", tables)
		}
		if err != nil {
			return err
		}
		queues, err := os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
		if len(queues) > 0 {
			t.Errorf("queues are left: %q", queues)
		}
		return err
	}))
}

// hasTranslated says whether a connection by way of a node is translated.
func hasTranslated(c *e2etest.Cluster, node string) (found bool) {
	c.T.Helper()
	c.Must(c.Host(node).Do(func() error {
		table, err := conntrack.Open(new(conntrack.Locks))
		if err != nil {
			return err
		}
		defer table.Close()
		found, err = table.HasTranslated(conntrack.DefaultMark)
		return err
	}))
	return found
}

// TestStopKeepsConnections: after SIGTERM translated connections go on, also where no other
// rule of the node has the kernel track and translate; new ones meet no rule of ours.
// "nfqproxy cleanup" and the next start remove what was left for them.
func TestStopKeepsConnections(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	download := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.30:80")
	stream := c.Dial("outside", "tcp", e2etest.AnyPort, "172.21.0.2:30090")
	datagrams := c.Dial("shell", "udp", e2etest.AnyPort, "10.96.0.30:53")
	c.Ask(datagrams)
	c.Must(c.StopDaemon(t.Context(), "node-a"))
	for name, conn := range map[string]net.Conn{"ClusterIP": download, "node port": stream, "UDP": datagrams} {
		if a, err := e2etest.Ask(conn); err != nil || a.Pod != "default/solo" {
			t.Errorf("%s: answered by %q, error %v", name, a.Pod, err)
		}
	}
	if got := outcome(c, "outside", "tcp", "172.21.0.2:30090"); got != becomesRefused {
		t.Errorf("a new connection to the node port: %s, want %s", got, becomesRefused)
	}
	tables := func() (names []string) {
		c.Must(c.Host("node-a").Do(func() (err error) { names, err = e2etest.Tables(); return err }))
		return names
	}
	if got := tables(); len(got) != 2 { // one of each family
		t.Fatalf("nftables tables %v, want those for established connections", got)
	}
	c.Must(c.StartDaemon(t.Context(), "node-a"))
	if a := c.Ask(datagrams); a.Pod != "default/solo" {
		t.Errorf("after the next start answered by %+v", a)
	}
	c.Must(c.StopDaemon(t.Context(), "node-a"))
	if code, _, stderr := e2etest.Run(t, c.Host("node-a"), "cleanup"); code != 0 {
		t.Errorf("cleanup: %s", stderr)
	}
	if got := tables(); len(got) != 0 {
		t.Errorf("after cleanup: nftables tables %v", got)
	}
}

// TestChangesApply: an edited manifest of nfqproxy run applies to new connections at once; a faulty one is told and changes
// nothing. SIGTERM ends the daemon with the tool.
func TestChangesApply(t *testing.T) {
	t.Parallel()
	for _, scope := range []string{"all", "services"} {
		t.Run(scope, func(t *testing.T) {
			t.Parallel()
			file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", e2etest.Lab))
			if err != nil {
				t.Fatal(err)
			}
			testChangesApply(t, e2etest.Up(t, file, lab.Options{NoDaemons: true}), scope)
		})
	}
}

func testChangesApply(t *testing.T, c *e2etest.Cluster, scope string) {
	objects := e2etest.WriteFile(t, "objects.yaml", e2etest.Lab)
	d := e2etest.StartDaemon(t, c.Host("node-a"), e2etest.Command("run", "--objects", objects, "-v", "--scope", scope, "--hostname-override", "node-a",
		"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56", "--flow-api", "", "--queue-timeout=1m"))
	logged := func(text string) {
		t.Helper()
		e2etest.Eventually(t, e2etest.Timeout, text, func() bool { return strings.Contains(d.Log(), text) })
	}
	edit := func(from, to string) {
		t.Helper()
		text := strings.ReplaceAll(e2etest.ReadFile(t, objects), from, to)
		c.Must(os.WriteFile(objects+".new", []byte(text), 0o644), os.Rename(objects+".new", objects))
	}
	logged("msg=serving")
	open := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.30:80")
	edit(`["10.244.0.4"]`, `["10.244.1.2"]`)
	logged(`msg="new service table" generation=2`)
	if a := c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.30:80")); a.Pod != "default/web-2" {
		t.Errorf("after the change %s answers, want default/web-2", a.Pod)
	}
	if a := c.Ask(open); a.Pod != "default/solo" {
		t.Errorf("the open connection went over to %s", a.Pod)
	}
	edit("port: 80,", "port: 80000,")
	logged("the last good ones stay in force")
	logged("80000")
	if a := c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.30:80")); a.Pod != "default/web-2" {
		t.Errorf("after a faulty change %s answers, want default/web-2", a.Pod)
	}
	d.Stop(syscall.SIGTERM)
	if !strings.Contains(d.Log(), "msg=stopped") {
		t.Error("the daemon did not stop before the tool")
	}
}

// TestDownloadStaysInTheKernel: of all packets of a download, one is queued.
func TestDownloadStaysInTheKernel(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return c.TryDial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80")
	}}}
	response, err := client.Get("http://web/download?bytes=10485760")
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, response.Body)
	if err != nil || n != 10<<20 {
		t.Fatalf("%d bytes, error %v", n, err)
	}
	client.CloseIdleConnections()
	c.Sync("shell")
	if n := c.Count(func(r *flow.Record) bool { return r.Service == "default/web:http" && r.Node == "node-a" }); n != 1 {
		t.Errorf("%d packets of the download were queued, want 1", n)
	}
}
