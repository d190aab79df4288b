package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/netns"
)

// beCommand is the environment variable that makes the nfqproxy command of this
// test binary.
const beCommand = "NFQPROXY_TEST_BE_COMMAND"

// commandEnv is the environment of that command, besides the test's own. Where the test is
// built with the race detector, so is the command, and a data race ends it: a report that
// is only logged fails nothing where the process is killed or fails anyway.
var commandEnv = []string{beCommand + "=1", "GORACE=halt_on_error=1"}

func TestMain(m *testing.M) {
	if os.Getenv(beCommand) != "" {
		if os.Getenv(asksMadeUp) != "" {
			os.Exit(runProcess(connectMadeUp))
		}
		main()
	}
	netns.Main(m)
}

// anyPort leaves a socket's own address to the kernel.
var anyPort netip.AddrPort

// patience is how long a test waits for what should come at once. Only a failing
// test waits that long.
const patience = time.Minute

// eventually asks again and again until it is so.
func eventually(t testing.TB, within time.Duration, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain for %s", within, what)
		}
	}
}

// cluster is a lab with real daemons, usually that of testdata/e2e.yaml.
type cluster struct {
	*lab.Lab
	t       *testing.T
	objects string // the lab file: what the daemons watch
	keep    int    // how many of the latest records are kept at least; 0: all

	mu      sync.Mutex
	arrived *sync.Cond
	records []*flow.Record
	logs    []string
}

// newCluster brings the lab up, for one test.
func newCluster(t *testing.T, options ...func(*lab.Spec)) *cluster {
	t.Helper()
	return newClusterWith(t, nil, options...)
}

// newClusterWith gives the daemons further arguments.
func newClusterWith(t *testing.T, arguments []string, options ...func(*lab.Spec)) *cluster {
	t.Helper()
	data, err := os.ReadFile("testdata/e2e.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, objects: filepath.Join(t.TempDir(), "lab.yaml")}
	if err := os.WriteFile(c.objects, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return c.upFile(arguments, options...)
}

// upFile brings the lab up that is in the file c.objects.
func (c *cluster) upFile(arguments []string, options ...func(*lab.Spec)) *cluster {
	c.t.Helper()
	netns.Require(c.t)
	file, err := lab.Load(c.objects)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, o := range options {
		o(file.Spec)
	}
	c.up(file.Spec, lab.Options{Objects: file.ObjectPaths(), Arguments: append([]string{"-v"}, arguments...)})
	return c
}

// inEachScope runs a test with each value of --scope.
func inEachScope(t *testing.T, test func(*testing.T, *cluster)) {
	for _, scope := range []string{"all", "services"} {
		t.Run(scope, func(t *testing.T) { test(t, newClusterWith(t, []string{"--scope", scope})) })
	}
}

// up brings a lab up with this test binary for daemons, and down at the end of the test.
func (c *cluster) up(spec *lab.Spec, options lab.Options) {
	t := c.t
	t.Helper()
	options.Env = append(options.Env, commandEnv...)
	var err error
	if c.Lab, err = lab.Up(t.Context(), spec, options); err != nil {
		t.Fatal(err)
	}
	c.arrived = sync.NewCond(&c.mu)
	events := c.Subscribe(1 << 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range events.C {
			c.note(e)
		}
	}()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("taking the lab down: %v", err)
		}
		<-done
		if n := events.Lost(); n > 0 {
			t.Errorf("the test lost %d events", n)
		}
		if t.Failed() {
			c.mu.Lock()
			defer c.mu.Unlock()
			t.Logf("daemons:\n%s", strings.Join(c.logs, "\n"))
		}
	})
}

func (c *cluster) note(e lab.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.Record != nil:
		c.records = append(c.records, e.Record)
		if c.keep > 0 && len(c.records) > 2*c.keep {
			c.records = slices.Delete(c.records, 0, c.keep)
		}
	case e.Died != nil:
		c.t.Errorf("unexpected end: %v", e.Died)
	default:
		c.logs = append(c.logs, e.Node+": "+e.Log)
	}
	c.arrived.Broadcast()
}

// wait returns what f finds, called again with every event, until it says ok.
func wait[T any](c *cluster, what string, f func() (T, bool)) T {
	c.t.Helper()
	late := false
	timer := time.AfterFunc(patience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		c.arrived.Broadcast()
	})
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		v, ok := f()
		switch {
		case ok:
			return v
		case late:
			for _, r := range c.records[max(0, len(c.records)-20):] {
				c.t.Logf("record: %s %s %s > %s %s", r.Node, r.Protocol, r.Source, r.Destination, r.Verdict)
			}
			c.t.Fatalf("waited %s for %s", patience, what)
		}
		c.arrived.Wait()
	}
}

// record waits for the latest record of the flow between two addresses that has the
// verdict, on whatever node: one may decide what another only forwards.
func (c *cluster) record(verdict, protocol string, source, destination net.Addr) *flow.Record {
	c.t.Helper()
	return wait(c, fmt.Sprintf("a record of %s %s > %s: %s", protocol, source, destination, verdict), func() (*flow.Record, bool) {
		for _, r := range slices.Backward(c.records) {
			if r.Verdict == verdict && r.Protocol == protocol && r.Source == source.String() && r.Destination == destination.String() {
				return r, true
			}
		}
		return nil, false
	})
}

// ping sends one ICMP echo request and waits for the answer.
func (c *cluster) ping(host, to string) {
	c.t.Helper()
	if err := c.host(host).Do(func() error {
		conn, err := net.ListenPacket("ip4:icmp", "0.0.0.0")
		if err != nil {
			return err
		}
		defer conn.Close()
		request := []byte{8, 0, 0xf7, 0xfe, 0, 1, 0, 0} // echo request, id 1, sequence 0
		if _, err := conn.WriteTo(request, &net.IPAddr{IP: net.ParseIP(to)}); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		b := make([]byte, 64)
		for {
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				return err
			}
			if n >= 1 && b[0] == 0 { // echo reply
				return nil
			}
		}
	}); err != nil {
		c.t.Fatalf("ping from %s to %s: %v", host, to, err)
	}
}

// sync waits until a flow made now has its record: so have all flows made before it
// from the same host. It goes to a service, whose flows have one in each scope.
func (c *cluster) sync(host string) {
	c.t.Helper()
	conn := c.dial(host, "udp", anyPort, "10.96.0.40:53")
	defer conn.Close()
	if _, err := conn.Write([]byte("sync")); err != nil {
		c.t.Fatal(err)
	}
	c.record("reject", "UDP", conn.LocalAddr(), conn.RemoteAddr())
}

// count counts records so far.
func (c *cluster) count(match func(*flow.Record) bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, r := range c.records {
		if match(r) {
			n++
		}
	}
	return n
}

// logged waits for a log line that contains the text.
func (c *cluster) logged(text string) {
	c.t.Helper()
	c.loggedTimes(text, 1)
}

// loggedTimes waits for as many such lines.
func (c *cluster) loggedTimes(text string, n int) {
	c.t.Helper()
	wait(c, fmt.Sprintf("%d log lines with %q", n, text), func() (struct{}, bool) {
		return struct{}{}, strings.Count(strings.Join(c.logs, "\n"), text) >= n
	})
}

// edit changes the lab file and waits until both daemons have taken it over.
func (c *cluster) edit(change func(string) string) {
	c.t.Helper()
	data, err := os.ReadFile(c.objects)
	if err != nil {
		c.t.Fatal(err)
	}
	changed := change(string(data))
	if changed == string(data) {
		c.t.Fatal("the edit changes nothing")
	}
	tables := func() map[string]int {
		n := make(map[string]int)
		for _, l := range c.logs {
			if node, text, _ := strings.Cut(l, ":"); strings.Contains(text, "new service table") {
				n[node]++
			}
		}
		return n
	}
	c.mu.Lock()
	before := tables()
	c.mu.Unlock()
	// Written beside and renamed, as editors do.
	temporary := c.objects + ".new"
	if err := errors.Join(os.WriteFile(temporary, []byte(changed), 0o644), os.Rename(temporary, c.objects)); err != nil {
		c.t.Fatal(err)
	}
	wait(c, "both daemons to take the change over", func() (struct{}, bool) {
		now := tables()
		return struct{}{}, now["node-a"] > before["node-a"] && now["node-b"] > before["node-b"]
	})
}

func (c *cluster) host(name string) *netns.Namespace {
	c.t.Helper()
	ns, err := c.Namespace(name)
	if err != nil {
		c.t.Fatal(err)
	}
	return ns
}

// tryDial connects from a host.
func (c *cluster) tryDial(host, network string, from netip.AddrPort, to string) (net.Conn, error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	conn, err := c.host(host).Dial(ctx, network, from, netip.MustParseAddrPort(to))
	if err == nil {
		c.t.Cleanup(func() { _ = conn.Close() })
		err = conn.SetDeadline(time.Now().Add(patience))
	}
	return conn, err
}

func (c *cluster) dial(host, network string, from netip.AddrPort, to string) net.Conn {
	c.t.Helper()
	conn, err := c.tryDial(host, network, from, to)
	if err != nil {
		c.t.Fatalf("%s from %s to %s: %v", network, host, to, err)
	}
	return conn
}

// ask sends a line or datagram and reads the server's answer.
func ask(conn net.Conn) (lab.Answer, error) {
	var a lab.Answer
	if _, err := conn.Write([]byte("who are you?\n")); err != nil {
		return a, err
	}
	return readAnswer(conn)
}

func readAnswer(conn net.Conn) (lab.Answer, error) {
	var a lab.Answer
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(line, &a)
}

func (c *cluster) ask(conn net.Conn) lab.Answer {
	c.t.Helper()
	a, err := ask(conn)
	if err != nil {
		c.t.Fatalf("%s > %s: %v", conn.LocalAddr(), conn.RemoteAddr(), err)
	}
	return a
}

// hostOf is the address of an "address:port".
func hostOf(addrPort string) string { return netip.MustParseAddrPort(addrPort).Addr().String() }

// families runs a test for IPv4 and IPv6. f gets an address of the cluster in the
// form of either family: at("10.96.0.20", "fd00:10:96::20", 80).
func families(t *testing.T, f func(t *testing.T, at func(v4, v6 string, port int) string)) {
	for i, name := range []string{"IPv4", "IPv6"} {
		t.Run(name, func(t *testing.T) {
			f(t, func(v4, v6 string, port int) string {
				a := netip.MustParseAddr([]string{v4, v6}[i])
				if port == 0 {
					return a.String()
				}
				return netip.AddrPortFrom(a, uint16(port)).String()
			})
		})
	}
}

func mustRead(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// listTables lists the nftables tables of the calling thread's network namespace.
func listTables() ([]string, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTables()
	var names []string
	for _, t := range tables {
		names = append(names, t.Name)
	}
	return names, err
}
