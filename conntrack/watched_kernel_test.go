package conntrack_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// testTimeout is more than anything here takes.
const testTimeout = time.Minute

// watched is a host whose connections are watched, between a client and a server.
type watched struct {
	t                    *testing.T
	client, host, server *netns.Namespace
	table                *conntrack.Table
	watcher              *conntrack.Watcher
	events               map[conntrack.Tuple][]conntrack.Event // that were received
}

const (
	clientV4, serverV4, serviceV4 = "10.244.1.9", "10.244.2.2", "10.96.0.10"
	clientV6, serverV6, serviceV6 = "fd44:1::9", "fd44:2::2", "fd96::a"
)

// watch makes a host and watches it, with so many bytes of buffer.
func watch(t *testing.T, buffer int) *watched {
	t.Helper()
	netnstest.Require(t)
	w := &watched{t: t, events: make(map[conntrack.Tuple][]conntrack.Event)}
	for name, ns := range map[string]**netns.Namespace{"client": &w.client, "host": &w.host, "server": &w.server} {
		n, err := netns.New(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Close() })
		*ns = n
	}
	for _, setting := range []string{"ipv4.ip_forward", "ipv6.conf.all.forwarding", "netfilter.nf_conntrack_acct", "netfilter.nf_conntrack_timestamp"} {
		w.set(setting, "1")
	}
	for i, end := range []*netns.Namespace{w.client, w.server} {
		link := fmt.Sprintf("veth%d", i)
		if err := w.host.AddVeth(link, end, "eth0"); err != nil {
			t.Fatal(err)
		}
		for _, p := range [][3]string{
			{"10.244.1.1/24", clientV4 + "/24", "0.0.0.0/0"}, {"fd44:1::1/64", clientV6 + "/64", "::/0"},
			{"10.244.2.1/24", serverV4 + "/24", "0.0.0.0/0"}, {"fd44:2::1/64", serverV6 + "/64", "::/0"},
		}[2*i : 2*i+2] {
			at := netip.MustParsePrefix(p[0])
			if err := errors.Join(w.host.AddAddress(link, at), end.AddAddress("eth0", netip.MustParsePrefix(p[1])),
				end.AddRoute(netns.Route{Destination: netip.MustParsePrefix(p[2]), Via: at.Addr(), Link: "eth0"})); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.host.Do(func() (err error) {
		if err = addNATHooks(); err != nil {
			return err
		}
		if w.table, err = conntrack.Open(new(conntrack.Locks)); err != nil {
			return err
		}
		w.watcher, err = conntrack.Watch(conntrack.WatchConfig{Buffer: buffer})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.table.Close(); _ = w.watcher.Close() })
	return w
}

// set writes a setting of the host's, under net.
func (w *watched) set(name, value string) {
	w.t.Helper()
	if err := w.host.SetSysctl("net."+name, value); err != nil {
		w.t.Fatal(err)
	}
}

// addNATHooks makes chains for their hooks: they translate what has an entry. The rule has
// connections tracked.
func addNATHooks() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: "t", Family: nftables.TableFamilyINet})
	pre := c.AddChain(&nftables.Chain{Name: "pre", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	c.AddChain(&nftables.Chain{Name: "post", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	c.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}}})
	return c.Flush()
}

// establish makes an entry of a flow from the client to the service, or fails the test.
func (w *watched) establish(e conntrack.Entry) conntrack.Outcome {
	w.t.Helper()
	var r [1]conntrack.Result
	if w.table.Establish([]conntrack.Entry{e}, r[:]); r[0].Err != nil {
		w.t.Fatal(r[0].Err)
	}
	return r[0].Outcome
}

// lookup finds an entry that is there.
func (w *watched) lookup(t conntrack.Tuple) conntrack.State {
	w.t.Helper()
	s, err := w.table.Lookup(t, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// remove removes an entry that is there.
func (w *watched) remove(t conntrack.Tuple) {
	w.t.Helper()
	var errs [1]error
	if w.table.Delete([]conntrack.State{w.lookup(t)}, errs[:]); errs[0] != nil {
		w.t.Fatal(errs[0])
	}
}

// until receives events until the last one of the tuple is described like one of these, and gives
// all of the tuple.
func (w *watched) until(t conntrack.Tuple, last ...string) []conntrack.Event {
	w.t.Helper()
	giveUp := time.AfterFunc(testTimeout, func() { _ = w.watcher.Close() })
	defer giveUp.Stop()
	for into := make([]conntrack.Event, 8); ; {
		if have := w.events[t]; len(have) > 0 && slices.Contains(last, describe(&have[len(have)-1])) {
			return have
		}
		n, err := w.watcher.Receive(into)
		if err != nil {
			w.t.Fatalf("waiting for %q of %v, after %q: %v", last, t, describeAll(w.events[t]), err)
		}
		for _, e := range into[:n] {
			w.events[e.State.Original] = append(w.events[e.State.Original], e)
		}
	}
}

// describe returns the contents of an event: its kind if it is the end, the states, whether there
// was time left, and whether a program requested it.
func describe(e *conntrack.Event) string {
	var words []string
	add := func(is bool, word string) {
		if is {
			words = append(words, word)
		}
	}
	end := e.Kind == conntrack.Destroyed
	add(end, "DESTROY")
	add(e.State.Original.Protocol == 6, e.State.TCP.String())
	add(e.State.Original.Protocol == 132, e.State.SCTP.String())
	add(e.State.Status&conntrack.StatusSeenReply != 0, "replied")
	add(e.State.Status&conntrack.StatusAssured != 0, "assured")
	add(end && e.State.Timeout > 0, "early")
	add(e.PortID != 0, "requested")
	return strings.Join(words, " ")
}

func describeAll(events []conntrack.Event) string {
	var all []string
	for i := range events {
		all = append(all, describe(&events[i]))
	}
	return strings.Join(all, ", ")
}
