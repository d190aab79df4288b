package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/machine"
	"github.com/nfqproxy/nfqproxy/bench/process"
	"github.com/nfqproxy/nfqproxy/bench/traffic"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

func main() {
	// The sides of the traffic are this program, too, started in their namespaces.
	if len(os.Args) > 2 && os.Args[1] == trafficArgument {
		process.Exit("compare", side(os.Args[2]))
	}
	p, err := parsePlan(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(2)
	}
	process.Isolated("compare", p.run)
}

// trafficArgument stands before the description of a side of the traffic.
const trafficArgument = "traffic"

// Words on the standard output of a side, one a line.
const (
	wordReady = "ready"
	wordBegan = "began"
	wordEnded = "ended"
)

// sideSpec is the task of a process. Exactly one field is set.
type sideSpec struct {
	Echo   uint16
	Load   *traffic.Load
	Stream *streamSpec
	Steady *traffic.Steady
}

// startSide starts a side of the traffic. One that serves does so when this returns.
func startSide(in *netns.Namespace, s sideSpec) (*process.Process, error) {
	p, err := process.StartSelf(in, trafficArgument, s)
	if err == nil && s.Echo != 0 {
		err = p.Await(wordReady)
	}
	return p, err
}

// side is one side of the traffic. Its result, in JSON, is the last line.
func side(text string) error {
	var s sideSpec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	printer := func(word string) func() { return func() { fmt.Println(word) } }
	var result any
	var err error
	switch {
	case s.Echo != 0:
		traffic.Tune(traffic.EchoThreads)
		return traffic.Echo(s.Echo, printer(wordReady))
	case s.Load != nil:
		traffic.Tune(s.Load.Workers)
		result, err = s.Load.Run(printer(wordBegan), printer(wordEnded))
	case s.Stream != nil:
		traffic.Tune(1)
		result, err = traffic.Stream(s.Stream.To, s.Stream.Time, printer(wordBegan), printer(wordEnded))
	case s.Steady != nil:
		result, err = s.Steady.Run(printer(wordBegan), printer(wordEnded))
	default:
		err = errors.New("nothing to do")
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// bench is a run in progress.
type bench struct {
	*plan
	objects *objects
	control *netns.Namespace
	samples *samples
	visits  int
	began   time.Time
}

// run measures everything and writes the results; those up to an error, too.
func (p *plan) run(ctx context.Context) (err error) {
	if err := machine.CheckProc(); err != nil {
		return err
	}
	contestants, err := p.contestants()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.out, 0o755); err != nil {
		return err
	}
	csv, err := os.Create(filepath.Join(p.out, "results.csv"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, csv.Close()) }()
	b := &bench{plan: p, samples: newSamples(csv), began: time.Now()}
	if b.control, err = newControl(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.control.Close()) }()
	if b.objects, err = startCluster(ctx, b.control, p.endpoints); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.objects.cluster.Close()) }()
	idle := "halt"
	if !p.halt {
		release, err := machine.KeepAwake()
		if err == nil {
			defer release()
			idle = "poll"
		} else {
			idle += ": " + err.Error()
		}
	}
	environment := describe(p, idle)
	fmt.Print(environment)
	for _, c := range contestants {
		if c.missing != "" {
			b.note("%s is omitted: %s", c.name, c.missing)
		}
	}
	err = b.visitAll(ctx, contestants)
	text := environment + b.samples.report(contestants)
	fmt.Print(text)
	return errors.Join(err, os.WriteFile(filepath.Join(p.out, "results.md"), []byte(text), 0o644))
}

// visitAll visits all contestants at each number of services.
func (b *bench) visitAll(ctx context.Context, contestants []contestant) error {
	for _, n := range b.sizes {
		b.note("making %d services with %d endpoints each", n, b.endpoints)
		if err := b.objects.grow(ctx, n); err != nil {
			return err
		}
		if err := b.takeTurns(ctx, contestants); err != nil {
			return err
		}
	}
	return nil
}

// takeTurns visits all contestants, in another order each time.
func (b *bench) takeTurns(ctx context.Context, contestants []contestant) error {
	gone := make(map[string]bool)
	for round := range b.rounds {
		for _, i := range rand.Perm(len(contestants)) {
			c := contestants[i]
			if c.missing != "" || gone[c.name] {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			b.note("%d services, round %d of %d: %s", b.objects.count, round+1, b.rounds, c.name)
			err := b.visit(ctx, &c, round)
			if errors.Is(err, errNotServing) && c.proxy && ctx.Err() == nil {
				b.note("%d services, %s: %v; it is not visited again", b.objects.count, c.name, err)
				b.samples.add(sample{b.objects.count, c.name, "start", gaveUp, "s", round, b.startTimeout.Seconds()})
				gone[c.name] = true
				continue
			}
			if err != nil {
				return fmt.Errorf("%d services, %s: %w", b.objects.count, c.name, err)
			}
		}
	}
	return nil
}

// note prints the progress of the run.
func (b *bench) note(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.0fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}
