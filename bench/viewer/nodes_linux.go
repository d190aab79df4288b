package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/journal"
	"github.com/nfqproxy/nfqproxy/control/live/localnode"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

// fakes describes the nodes. It is the argument of their process.
type fakes struct {
	Dir       string // of the sockets
	Nodes     int
	Rate      int // records per second and node
	Services  int // each with one port
	Endpoints int // of each service
	Streams   int // that the viewer opens to each node
}

// nodesSide is the first argument of the process of the nodes.
const nodesSide = "nodes"

// What the process of the nodes and the viewer write to each other, one on a line.
const (
	wordReady = "ready" // the nodes listen
	wordStart = "start" // the viewer follows: make flows
	wordStop  = "stop"  // no more
)

// kept is the number of flows that a journal keeps.
const kept = 1024

// tick is the interval in which flows are made.
const tick = 10 * time.Millisecond

func nodeName(i int) string                { return fmt.Sprintf("node-%04d", i) }
func socket(dir string, i int) string      { return filepath.Join(dir, nodeName(i)) }
func (f *fakes) endpointNode(i int) string { return nodeName(i % f.Nodes) }

// serveNodes is the process of the nodes: it serves them until its standard input ends, and prints how many records
// they made.
func serveNodes(description string) error {
	var f fakes
	if err := json.Unmarshal([]byte(description), &f); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ports := f.ports()
	var following atomic.Int64
	var serving sync.WaitGroup
	failed := make(chan error, f.Nodes)
	var journals []*journal.Journal
	var tables []*decision.Table
	for i := range f.Nodes {
		j := journal.New(journal.Config{Flows: kept})
		table := decision.NewTable(1, time.Now(), decision.Node{Name: nodeName(i), Addresses: []netip.Addr{address(172, i)}}, ports)
		j.SetTable(journal.Published{Table: table})
		journals, tables = append(journals, j), append(tables, table)
		node := localnode.New(localnode.Config{
			Name: nodeName(i), Version: "fake", Journal: j, Owners: noOwners{}, Daemon: fakeDaemon{},
			Table: func() *decision.Table { return table }, Stats: func() *engine.Stats { return nil },
		})
		l, err := flowapi.Listen(flowapi.Address{Address: "unix:" + socket(f.Dir, i)})
		if err != nil {
			return err
		}
		serving.Go(func() { j.Run(ctx) })
		serving.Go(func() {
			if err := flowapi.New(flowapi.Config{Observer: watched{node, &following}}).Serve(ctx, l); err != nil {
				failed <- err
			}
		})
	}
	fmt.Println(wordReady)
	if err := expect(os.Stdin, wordStart); err != nil {
		return err
	}
	for following.Load() < int64(f.Nodes*f.Streams) {
		select {
		case err := <-failed:
			return err
		case <-time.After(tick):
		}
	}
	made := make(chan uint64)
	making, enough := context.WithCancel(ctx)
	go func() { made <- f.makeFlows(making, journals, tables, ports) }()
	if err := expect(os.Stdin, wordStop); err != nil {
		enough()
		return err
	}
	enough()
	fmt.Println(<-made)
	_ = expect(os.Stdin, "") // its end
	cancel()
	serving.Wait()
	return nil
}

// expect reads a line.
func expect(from *os.File, word string) error {
	var got string
	if _, err := fmt.Fscanln(from, &got); err != nil || got != word {
		return errors.Join(fmt.Errorf("want the word %q, got %q", word, got), err)
	}
	return nil
}

// address is an address of 10.i or 172.i.
func address(first byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{first, byte(i >> 16), byte(i >> 8), byte(i)})
}

func (f *fakes) ports() (ports []*decision.ServicePort) {
	for i := range f.Services {
		s := &decision.ServicePort{
			Name:     decision.ServicePortName{Namespace: "shop", Name: "service-" + strconv.Itoa(i), Port: "http"},
			Protocol: decision.TCP, Family: decision.IPv4, ClusterIP: address(10, i+1), Port: 80, HasEndpoints: true,
		}
		for e := range f.Endpoints {
			n := i*f.Endpoints + e
			s.Endpoints = append(s.Endpoints, decision.Endpoint{
				AddrPort: netip.AddrPortFrom(address(10, 1<<20+n), 8080), Pod: "shop/pod-" + strconv.Itoa(n), NodeName: f.endpointNode(n), Ready: true,
			})
			for policy := range s.Usable {
				s.Usable[policy] = append(s.Usable[policy], uint32(e))
			}
		}
		ports = append(ports, s)
	}
	return ports
}

// makeFlows makes flows at the rate until the context ends, and returns their number. Each has a source of its own.
func (f *fakes) makeFlows(ctx context.Context, journals []*journal.Journal, tables []*decision.Table, ports []*decision.ServicePort) (made uint64) {
	begun := time.Now()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	var batch []flow.Flow
	for each := 0; ; { // flows of each node so far
		select {
		case <-ctx.Done():
			return made
		case <-ticks.C:
		}
		due := int(time.Since(begun).Seconds() * float64(f.Rate))
		for i, j := range journals {
			batch = batch[:0]
			for n := each; n < due; n++ {
				batch = append(batch, f.flow(tables[i], ports[(i+n)%len(ports)], i, n))
			}
			j.Flows(batch)
			made += uint64(len(batch))
		}
		each = due
	}
}

// flow is the n-th flow of a node.
func (f *fakes) flow(table *decision.Table, s *decision.ServicePort, node, n int) flow.Flow {
	return flow.Flow{
		Packet: decision.Packet{
			Protocol: decision.TCP, Source: netip.AddrPortFrom(address(11, node<<8+n>>15), uint16(n&0x7fff+1024)), Destination: netip.AddrPortFrom(s.ClusterIP, s.Port),
		},
		Decision: decision.Decision{
			Verdict: decision.DNAT, Entry: decision.EntryClusterIP, Branch: decision.BranchInternal, Reason: decision.Balanced,
			ServicePort: s, Index: uint32(n % f.Endpoints), Drawn: true, Draw: 0.5, Generation: 1,
		},
		Table: table, Node: table.Node(), Time: time.Now(), Waited: 20 * time.Microsecond, Outcome: conntrack.Created,
	}
}

// watched counts the readers that follow a node.
type watched struct {
	*localnode.Node
	following *atomic.Int64
}

func (w watched) Flows(ctx context.Context, q observe.FlowQuery, each func(observe.Item) error) error {
	if q.Follow {
		w.following.Add(1)
	}
	return w.Node.Flows(ctx, q, each)
}

// noOwners knows no owner of an address.
type noOwners struct{}

func (noOwners) Owner(netip.Addr) flow.Owner             { return flow.Owner{} }
func (noOwners) Pods(func(string, string, []netip.Addr)) {}
func (noOwners) Nodes(func(string, []netip.Addr))        {}

// fakeDaemon is a daemon without faults.
type fakeDaemon struct{}

func (fakeDaemon) Describe(*observe.Daemon) {}
func (fakeDaemon) CheckRules(context.Context) (engine.RuleCheck, error) {
	return engine.RuleCheck{}, nil
}
