package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/bench/machine"
	"github.com/nfqproxy/nfqproxy/bench/process"
	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// scenario is an attack while a client uses the service.
type scenario struct {
	name string
	// before is done to the node before the proxy starts, after when the service works.
	before, after func(*topology) error
	attack        *flood // nil: none
	// flow is sent to a pod instead of a client's traffic to the service.
	flow *flood
	// settle is how long the attack goes on before anything is measured.
	settle time.Duration
}

const (
	synRate, trickleRate   = 15000, 2000
	floodRate              = 50000
	forgedPort, fillerPort = 20000, 10000
	settle                 = time.Second
	// A flow of two datagrams is in the set of UDP flows for 20 s, its replies for 2 s: with so
	// many of them each second, the set's 262,144 places are taken within settleSet, if the machine keeps up.
	udpFlows, settleSet = 15000, 17 * time.Second
)

func (p *plan) scenarios() []scenario {
	syns := func(rate int) *flood { return &flood{to: theService, rate: rate, time: p.time + 2*settle} }
	elsewhere := &flood{to: netip.AddrPortFrom(podAddress.Addr(), 9), rate: floodRate, time: p.time + 2*settle}
	flow := &flood{udp: true, to: podAddress, from: netip.AddrPortFrom(clientAddress.Addr(), forgedPort), rate: 10000, time: 10 * time.Second}
	datagrams := func(each int) *flood {
		return &flood{udp: true, to: theService, rate: each * udpFlows, twice: each == 2, time: settleSet + flow.time + settle}
	}
	return []scenario{
		{name: "none"},
		{name: fmt.Sprintf("%d SYNs/s, dropped by rp_filter=1", synRate), attack: syns(synRate), settle: settle, before: func(t *topology) error {
			return t.node.SetSysctl("net.ipv4.conf.clients.rp_filter", "1")
		}},
		{name: fmt.Sprintf("%d SYNs/s, dropped in mangle PREROUTING", synRate), attack: syns(synRate), settle: settle, before: func(t *topology) error {
			_, err := t.node.Run("", "iptables", "-t", "mangle", "-A", "PREROUTING", "-s", forged.String(), "-j", "DROP")
			return err
		}},
		{name: fmt.Sprintf("%d SYNs/s, table full of entries of the service", trickleRate), attack: syns(trickleRate), settle: settle, before: func(t *topology) error {
			return t.fill(conntrack.Entry{Tuple: conntrack.Tuple{Destination: theService}, Destination: podAddress, Mark: conntrack.DefaultMark})
		}},
		{name: fmt.Sprintf("%d SYNs/s, table full of other entries", trickleRate), attack: syns(trickleRate), settle: settle, after: func(t *topology) error {
			return t.fill(conntrack.Entry{Tuple: conntrack.Tuple{Destination: podAddress}})
		}},
		{name: fmt.Sprintf("%d SYNs/s to no service", floodRate), attack: elsewhere, settle: settle},
		{name: "a UDP flow to a pod; no attack", flow: flow},
		{name: fmt.Sprintf("a UDP flow to a pod; %d others/s of one datagram", udpFlows), flow: flow, attack: datagrams(1), settle: settleSet},
		{name: fmt.Sprintf("a UDP flow to a pod; %d others/s of two datagrams", udpFlows), flow: flow, attack: datagrams(2), settle: settleSet},
	}
}

// proxy is what serves the node.
type proxy string

const (
	kubeProxy proxy = "kube-proxy's rules"
	nfqproxy  proxy = "nfqproxy"
)

// measure goes through a scenario on a topology of its own.
func (p *plan) measure(ctx context.Context, s *scenario, r *row) (err error) {
	t, err := newTopology()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	serve := func(t *topology) error { return t.serve(ctx, p, r.proxy) }
	for _, step := range []func(*topology) error{s.before, serve, s.after} {
		if step == nil {
			continue
		}
		if err := step(t); err != nil {
			return err
		}
	}
	attacked := make(chan error, 1)
	go func() {
		var err error
		if s.attack != nil {
			r.packets, err = t.send(s.attack)
		}
		attacked <- err
	}()
	time.Sleep(s.settle)
	if s.flow != nil {
		err = t.sendFlow(ctx, s.flow, r)
	} else {
		var entries error
		r.client, err = t.useService(ctx, p.time, func() { r.entries, entries = t.entries() })
		err = errors.Join(err, entries)
	}
	err = errors.Join(err, <-attacked)
	if r.client != nil {
		for _, what := range slices.Sorted(maps.Keys(r.client.errors)) {
			fmt.Fprintf(os.Stderr, "          %d connections failed: %s\n", r.client.errors[what], what)
		}
	}
	return err
}

// serve starts the proxy and waits until the service answers.
func (t *topology) serve(ctx context.Context, p *plan, with proxy) (err error) {
	if with == nfqproxy {
		args := append([]string{"run", "--hostname-override", "node"}, p.options...)
		t.daemon, err = process.Start(t.node, exec.Command(p.nfqproxy, args...))
	} else {
		var rules string
		if rules, err = t.node.Run("", p.nfqproxy, append([]string{"render", "--node", "node"}, p.options...)...); err == nil {
			_, err = t.node.Run(rules, "iptables-restore", "--noflush") // as kube-proxy does
		}
	}
	if err != nil {
		return err
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err = t.request(time.Second); err == nil {
			return nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("the service does not reply before the attack: %w", errors.Join(err, ctx.Err()))
		}
	}
}

const conntrackMax = "/proc/sys/net/netfilter/nf_conntrack_max"

// fill fills the node's connection table with entries without a reply: the given one, from
// forged sources.
func (t *topology) fill(e conntrack.Entry) error {
	const most = 1 << 19
	limit, err := strconv.Atoi(machine.FirstLine(conntrackMax))
	if err == nil && (limit == 0 || limit > most) {
		err = fmt.Errorf("%s is %d: a table can be filled up to %d", conntrackMax, limit, most)
	}
	if err != nil {
		return err
	}
	return t.node.Do(func() error {
		table, err := conntrack.Open(new(conntrack.Locks))
		if err != nil {
			return err
		}
		defer table.Close()
		e.Tuple.Protocol = unix.IPPROTO_TCP
		entries, results := slices.Repeat([]conntrack.Entry{e}, 64), make([]conntrack.Result, 64)
		var refused error
		for n := 0; n < limit; n += len(entries) {
			for i := range entries {
				entries[i].Tuple.Source = forgedSource(n+i, fillerPort)
			}
			table.Establish(entries, results)
			for _, r := range results {
				refused = errors.Join(r.Err) // the last few are, for some entries were there
			}
		}
		if n, err := t.entries(); err != nil || n < limit*9/10 {
			return fmt.Errorf("fill the connection table: %d entries of %d: %w", n, limit, errors.Join(err, refused))
		}
		return nil
	})
}

// sendFlow sends a flow to a pod and counts the datagrams that were queued.
func (t *topology) sendFlow(ctx context.Context, f *flood, r *row) error {
	before, err := t.withoutService(ctx)
	if err != nil {
		return err
	}
	if r.datagrams, err = t.send(f); err != nil {
		return err
	}
	if r.entries, err = t.entries(); err != nil {
		return err
	}
	after, err := t.withoutService(ctx)
	r.queued = after - before
	return err
}

var metricsAddress = netip.MustParseAddrPort("127.0.0.1:10249")

// withoutService counts the packets that were queued and were for no service. The attacks'
// are for one.
func (t *topology) withoutService(ctx context.Context) (int, error) {
	metrics, err := process.Get(ctx, t.node, metricsAddress, "/metrics")
	if err != nil {
		return 0, err
	}
	return counter(bytes.NewReader(metrics), fmt.Sprintf("nfqproxy_flows_total{entry=%q,reason=%q,verdict=%q}", decision.EntryNone, decision.NotAService, decision.Accept))
}
