package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/machine"
	"github.com/nfqproxy/nfqproxy/bench/process"
	"github.com/nfqproxy/nfqproxy/bench/traffic"
)

// plan is what the command line gives.
type plan struct {
	nfqproxy string
	only     string
	time     time.Duration
	// options are for both proxies.
	options []string
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == echoSide {
		traffic.Tune(traffic.EchoThreads)
		process.Exit("attack", traffic.Echo(echoPort, func() { fmt.Println(wordReady) }))
	}
	p := plan{options: []string{"--objects", objectsFile, "--cluster-cidr", clusterRange}}
	flag.StringVar(&p.nfqproxy, "nfqproxy", "bin/nfqproxy", "path of nfqproxy")
	flag.StringVar(&p.only, "only", "", "run only attacks whose names contain this")
	flag.DurationVar(&p.time, "time", 12*time.Second, "duration of each attack on a service")
	masquerade := flag.Bool("masquerade-all", false, "masquerade the client's flows, too, as those from forged sources")
	flag.Parse()
	if *masquerade {
		p.options = append(p.options, "--masquerade-all")
	}
	process.Isolated("attack", p.run)
}

// run measures everything and prints the table.
func (p *plan) run(ctx context.Context) (err error) {
	if p.nfqproxy, err = filepath.Abs(p.nfqproxy); err != nil {
		return err
	}
	// /run is this program's own and goes with it.
	if err := os.WriteFile(objectsFile, []byte(objects), 0o644); err != nil {
		return err
	}
	fmt.Printf("- when: %s; load average before: %s\n", time.Now().UTC().Format(time.DateTime), machine.Load())
	fmt.Printf("- machine: %s\n- kernel: %s\n", machine.Hardware(), machine.Kernel())
	fmt.Printf("- nfqproxy: %s\n- kube-proxy's rules: nfqproxy render, loaded by %s\n", machine.Version(p.nfqproxy, "--version"), machine.Version("iptables-restore", "--version"))
	fmt.Printf("- connection tracking: nf_conntrack_max %s\n", machine.FirstLine(conntrackMax))
	fmt.Printf("- client: %d connections/s and %d UDP requests/s for %v; failed: no reply within %v; delayed: after more than %v; SYN sent again: after more than %v\n\n", connectRate, requestRate, p.time, requestTimeout, late, resent)
	fmt.Println(tableHead)
	for _, s := range p.scenarios() {
		for _, with := range []proxy{kubeProxy, nfqproxy} {
			if !strings.Contains(s.name, p.only) {
				continue
			}
			r := &row{attack: s.name, proxy: with}
			if s.flow == nil || with == nfqproxy {
				fmt.Fprintf(os.Stderr, "%s  %s: %s\n", time.Now().Format(time.TimeOnly), s.name, with)
				if err := errors.Join(p.measure(ctx, &s, r), ctx.Err()); err != nil {
					return fmt.Errorf("%s, %s: %w", s.name, with, err)
				}
			}
			fmt.Println(r)
		}
	}
	return nil
}

const tableHead = `| attack | node served by | attack's packets | connections | failed | delayed | SYN sent again | UDP requests lost | connection entries at the end | of the flow's datagrams queued |
|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|`

// clientResult is the result of a client.
type clientResult struct {
	attempts, failed int // connections
	delayed, resent  int // of those that did not fail
	requests, lost   int // of UDP
	errors           map[string]int
}

// add counts outcomes.
func (e *clientResult) add(outcomes []outcome) {
	e.attempts += len(outcomes)
	for _, o := range outcomes {
		if o.err != nil {
			e.failed++
			e.errors[o.err.Error()]++
			continue
		}
		if o.took > late {
			e.delayed++
		}
		if o.took > resent {
			e.resent++
		}
	}
}

// row is one line of the table.
type row struct {
	attack            string
	proxy             proxy
	packets           int
	client            *clientResult // nil: there was no client
	entries           int
	datagrams, queued int // of a flow; 0: there was none
}

// String is the line, in Markdown.
func (r *row) String() string {
	cells := []string{r.attack, string(r.proxy), "-", "-", "-", "-", "-", "-", "-", "-"}
	if r.client != nil || r.datagrams > 0 {
		cells[2], cells[8] = fmt.Sprint(r.packets), fmt.Sprint(r.entries)
	}
	if c := r.client; c != nil {
		cells[3], cells[4], cells[7] = fmt.Sprint(c.attempts), share(c.failed, c.attempts), share(c.lost, c.requests)
		cells[5], cells[6] = share(c.delayed, c.attempts), share(c.resent, c.attempts)
	}
	if r.datagrams > 0 {
		cells[9] = fmt.Sprintf("%d of %d", r.queued, r.datagrams)
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// share is a part in percent. A part greater than 0 is not printed as 0.
func share(part, of int) string {
	switch {
	case part == 0 || of == 0:
		return "0 %"
	case part*10000 < of:
		return "< 0.01 %"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(part)/float64(of))
}

// counter reads one sample of Prometheus' text format.
func counter(metrics io.Reader, sample string) (int, error) {
	lines := bufio.NewScanner(metrics)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), sample+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			return int(v), err
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("metrics: no %s", sample)
}
