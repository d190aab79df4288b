package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/machine"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
)

// plan is what the command line gives.
type plan struct {
	fakes
	time   time.Duration
	query  observe.FlowQuery
	budget int
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == nodesSide {
		exit(serveNodes(os.Args[2]))
	}
	var p plan
	flag.IntVar(&p.Nodes, "nodes", 1000, "number of nodes")
	flag.IntVar(&p.Rate, "rate", 100, "records per second and node")
	flag.IntVar(&p.Services, "services", 100, "number of services")
	flag.IntVar(&p.Endpoints, "endpoints", 10, "endpoints of each service")
	flag.DurationVar(&p.time, "time", 30*time.Second, "how long flows are made")
	flag.IntVar(&p.budget, "records", 0, "records per second that the viewer requests of all nodes (default: its default)")
	flag.BoolVar(&p.query.Joined, "joined", false, "join what several nodes decide about one connection, as the web page does")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := p.run(ctx)
	stop()
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "viewer: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run measures, and prints what it measured.
func (p *plan) run(ctx context.Context) (err error) {
	if p.Nodes < 1 || p.Rate < 1 || p.Services < 1 || p.Endpoints < 1 {
		return fmt.Errorf("%d nodes, rate %d, %d services, %d endpoints: want 1 or more of each", p.Nodes, p.Rate, p.Services, p.Endpoints)
	}
	p.Streams = 1
	if p.query.Joined {
		p.Streams = 2
	}
	if p.Dir, err = os.MkdirTemp("", "nfqproxy-viewer-"); err != nil {
		return err
	}
	defer os.RemoveAll(p.Dir)
	nodes, err := p.startNodes()
	if err != nil {
		return err
	}
	defer nodes.stop()
	relay, err := p.relay()
	if err != nil {
		return err
	}
	defer relay.Close()
	fmt.Printf("- when: %s; load average before: %s\n", time.Now().UTC().Format(time.DateTime), machine.Load())
	fmt.Printf("- machine: %s\n- %d nodes with %d records/s each, %d services with %d endpoints; %v\n\n", machine.Hardware(), p.Nodes, p.Rate, p.Services, p.Endpoints, p.time)
	s, err := p.follow(ctx, relay, nodes)
	if err != nil {
		return err
	}
	s.print(p.time)
	return p.request(ctx, relay)
}

// nodesProcess is the process of the nodes.
type nodesProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func (p *plan) startNodes() (*nodesProcess, error) {
	description, err := json.Marshal(p.fakes)
	if err != nil {
		return nil, err
	}
	n := &nodesProcess{cmd: exec.Command("/proc/self/exe", nodesSide, string(description))}
	n.cmd.Stderr = os.Stderr
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if n.in, err = n.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	n.out = bufio.NewScanner(out)
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	if word, err := n.read(); err != nil || word != wordReady {
		n.stop()
		return nil, fmt.Errorf("the nodes' process wrote %q: %w", word, cmp.Or(err, io.ErrUnexpectedEOF))
	}
	return n, nil
}

func (n *nodesProcess) read() (string, error) {
	if !n.out.Scan() {
		return "", cmp.Or(n.out.Err(), io.ErrUnexpectedEOF)
	}
	return n.out.Text(), nil
}

func (n *nodesProcess) write(word string) error {
	_, err := fmt.Fprintln(n.in, word)
	return err
}

func (n *nodesProcess) stop() {
	_ = n.in.Close()
	_ = n.cmd.Wait()
}

func (p *plan) relay() (*remote.Relay, error) {
	var members []remote.Member
	for i := range p.Nodes {
		c, err := remote.NewClient("unix:"+socket(p.Dir, i), remote.ClientOptions{})
		if err != nil {
			return nil, err
		}
		members = append(members, remote.Member{Name: nodeName(i), Observer: c})
	}
	return remote.NewRelay(members, remote.RelayOptions{Records: p.budget})
}

// seen is what the viewer measured.
type seen struct {
	records, joined uint64
	missed          map[string]uint64
	made            uint64
	lags            []time.Duration // of the records
	cpu             time.Duration
	resident, peak  float64 // MiB
	heap            uint64  // bytes
}

// recordTimeout is how long the viewer waits for the last records, and for the reports of missed ones: nodes send these once
// a second.
const recordTimeout = 10 * time.Second

// follow follows the flows of all nodes while they are made.
func (p *plan) follow(ctx context.Context, relay *remote.Relay, nodes *nodesProcess) (*seen, error) {
	s := &seen{missed: make(map[string]uint64)}
	following, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	var mu sync.Mutex
	query := p.query
	query.Follow = true
	go func() {
		ended <- relay.Flows(following, query, func(i observe.Item) error {
			now := time.Now()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case i.Missed != nil:
				s.missed[i.Missed.Why] += i.Missed.Missed
			case i.Joined != nil:
				s.joined++
			default:
				s.records++
				s.lags = append(s.lags, now.Sub(*i.Record.Emitted))
			}
			return nil
		})
	}()
	before, err := machine.ProcessTime(os.Getpid())
	if err != nil {
		return nil, err
	}
	if err := nodes.write(wordStart); err != nil {
		return nil, err
	}
	select {
	case <-time.After(p.time):
	case err := <-ended:
		return nil, fmt.Errorf("the stream ended: %w", err)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	after, err := machine.ProcessTime(os.Getpid())
	if err != nil {
		return nil, err
	}
	s.cpu = after - before
	if err := nodes.write(wordStop); err != nil {
		return nil, err
	}
	made, err := nodes.read()
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Sscan(made, &s.made); err != nil {
		return nil, err
	}
	accounted := func() bool {
		mu.Lock()
		defer mu.Unlock()
		sum := s.records
		for _, n := range s.missed {
			sum += n
		}
		return sum >= s.made
	}
	for end := time.Now().Add(recordTimeout); !accounted() && time.Now().Before(end); {
		time.Sleep(tick)
	}
	stop()
	if err := <-ended; err != nil {
		return nil, err
	}
	if s.resident, s.peak, err = machine.Memory(os.Getpid()); err != nil {
		return nil, err
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	s.heap = memory.HeapInuse
	return s, nil
}

func (s *seen) print(d time.Duration) {
	slices.Sort(s.lags)
	share := func(n uint64) string { return fmt.Sprintf("%d (%.1f %%)", n, 100*float64(n)/float64(s.made)) }
	quantile := func(q float64) time.Duration {
		if len(s.lags) == 0 {
			return 0
		}
		return s.lags[min(int(q*float64(len(s.lags))), len(s.lags)-1)].Round(100 * time.Microsecond)
	}
	fmt.Println("| figure | value |\n|---|---|")
	fmt.Printf("| records made | %d |\n| shown | %s, %.0f/s |\n", s.made, share(s.records), float64(s.records)/d.Seconds())
	left := s.made - s.records
	for _, why := range slices.Sorted(maps.Keys(s.missed)) {
		fmt.Printf("| reported as missed: %s | %s |\n", why, share(s.missed[why]))
		left -= s.missed[why]
	}
	fmt.Printf("| not accounted for | %d |\n", int64(left))
	fmt.Printf("| lag p50, p99, max | %v, %v, %v |\n", quantile(0.5), quantile(0.99), quantile(1))
	fmt.Printf("| viewer's CPU | %.2f of one processor |\n", s.cpu.Seconds()/d.Seconds())
	fmt.Printf("| viewer's memory | %.0f MiB, at most %.0f MiB; heap %d MiB, of which %d MiB are this benchmark's |\n", s.resident, s.peak, s.heap>>20, cap(s.lags)*8>>20)
}

// request measures requests that are no streams.
func (p *plan) request(ctx context.Context, relay *remote.Relay) error {
	fmt.Println("\n| request | time | viewer's peak memory |\n|---|---|---|")
	var id string
	for _, r := range []struct {
		name string
		do   func() error
	}{
		{"flows --limit 100", func() error {
			return relay.Flows(ctx, observe.FlowQuery{}, func(i observe.Item) error {
				if i.Record != nil {
					id = i.Record.ID
				}
				return nil
			})
		}},
		{"flows ID", func() error { _, err := relay.Flow(ctx, id); return err }},
		{"flows --limit 0", func() error {
			n := 0
			err := relay.Flows(ctx, observe.FlowQuery{Limit: "0"}, func(observe.Item) error { n++; return nil })
			if n < p.Nodes {
				return fmt.Errorf("%d flows of %d nodes", n, p.Nodes)
			}
			return err
		}},
		{"services", func() error { _, err := relay.Services(ctx, observe.ServiceQuery{Active: true}); return err }},
		{"status", func() error { _, err := relay.Status(ctx); return err }},
	} {
		begun := time.Now()
		if err := r.do(); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		took := time.Since(begun)
		_, peak, err := machine.Memory(os.Getpid())
		if err != nil {
			return err
		}
		fmt.Printf("| %s | %v | %.0f MiB |\n", r.name, took.Round(time.Millisecond), peak)
	}
	return nil
}
