package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
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
