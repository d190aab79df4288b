// Command scale measures nfqproxy with a large cluster: the time from its start
// until it serves, its memory and CPU time, and the time from a change at the API server
// to the first flow that obeys it. Everything runs in network namespaces of this
// process; "make bench-scale" runs it.
//
// The API server and etcd are real, on the same machine; nodes and pods are objects only.
// Each Service has one EndpointSlice. The latency of a change ends with a packet: while the
// slice changes, connections from fresh ports to the Service are tried continuously. The flow
// log has the first one with a new endpoint, and the time of its verdict.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/process"
)

// options are the flags.
type options struct {
	proxy     string
	services  []int
	endpoints int
	starts    int
	idle      time.Duration
	changes   int
	bursts    int
	burst     int
	interval  time.Duration
	csv       string
	profile   string
}

func main() {
	o := options{services: []int{10, 10_000}}
	flag.StringVar(&o.proxy, "proxy", "bin/nfqproxyd", "the program to measure")
	flag.Func("services", "number of Services; a list makes one run for each (default 10,10000)", o.setServices)
	flag.IntVar(&o.endpoints, "endpoints", 10, "number of endpoints of each Service")
	flag.IntVar(&o.starts, "starts", 5, "number of starts of the proxy, for medians")
	flag.DurationVar(&o.idle, "idle", time.Minute, "time before the second measurement of memory")
	flag.IntVar(&o.changes, "changes", 60, "number of slices to change, one after the other")
	flag.IntVar(&o.bursts, "bursts", 3, "number of bursts of changes")
	flag.IntVar(&o.burst, "burst", 1000, "number of slices in a burst, at most all")
	flag.DurationVar(&o.interval, "interval", 500*time.Microsecond, "time between two tried connections, the resolution of latencies")
	flag.StringVar(&o.csv, "csv", "", "also write the results to this file, as CSV")
	flag.StringVar(&o.profile, "profile", "", "write profiles of the proxy to this directory; the figures are then not comparable")
	flag.Parse()
	process.Isolated("scale", o.run)
}

// setServices reads numbers with commas between them.
func (o *options) setServices(text string) error {
	o.services = nil
	for s := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("%q: want numbers of Services, with commas between them", text)
		}
		o.services = append(o.services, n)
	}
	return nil
}

// run measures at each size and reports.
func (o *options) run(ctx context.Context) error {
	var results []*result
	for _, n := range o.services {
		r, err := o.measure(ctx, n)
		if err != nil {
			return fmt.Errorf("%d Services: %w", n, err)
		}
		results = append(results, r)
	}
	if err := writeTable(os.Stdout, results); err != nil {
		return err
	}
	if o.csv == "" {
		return nil
	}
	f, err := os.Create(o.csv)
	if err != nil {
		return err
	}
	return errors.Join(writeCSV(f, results), f.Close())
}

// measure does all measurements with so many Services.
func (o *options) measure(ctx context.Context, n int) (*result, error) {
	logf("starting a control plane")
	w, err := newWorld(ctx, o.endpoints)
	if err != nil {
		return nil, err
	}
	defer w.close()
	began := time.Now()
	if err := w.load(ctx, n); err != nil {
		return nil, err
	}
	logf("made %d Services with %d endpoints each in %.1f s", n, o.endpoints, time.Since(began).Seconds())
	r := &result{services: n, endpoints: o.endpoints}
	for i := range o.starts {
		d, err := w.start(ctx, o)
		if err != nil {
			return nil, err
		}
		r.starts = append(r.starts, d.atReady)
		logf("start %d: ready after %.2f s, CPU %.2f s, RSS %.1f MiB, at most %.1f MiB", i+1, d.atReady.after.Seconds(), d.atReady.cpu.Seconds(), d.atReady.rss, d.atReady.peak)
		if i == o.starts-1 {
			err = o.measureLast(ctx, w, d, r)
		}
		if err := d.stop(err); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// measureLast goes on with the last of the started proxies.
func (o *options) measureLast(ctx context.Context, w *world, d *daemon, r *result) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(o.idle):
	}
	var err error
	if r.idle, err = d.usage(); err != nil {
		return err
	}
	logf("after %s: RSS %.1f MiB", o.idle, r.idle.rss)
	p := &probe{world: w, daemon: d, interval: o.interval}
	for range o.changes {
		c, err := p.change(ctx)
		if err != nil {
			return err
		}
		r.changes = append(r.changes, c)
	}
	for range o.bursts {
		b, err := p.burst(ctx, min(o.burst, r.services))
		if err != nil {
			return err
		}
		logf("burst of %d: API %.2f s, obeyed %.1f ms after the last response, %d tables", b.slices, b.api.Seconds(), ms(b.obeyed), b.tables)
		r.bursts = append(r.bursts, b)
	}
	if r.end, err = d.usage(); err != nil {
		return err
	}
	return d.writeHeap(o.profile, "end")
}

func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
