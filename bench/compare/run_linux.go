package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/machine"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

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
	environment := describe(p)
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
