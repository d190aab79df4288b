package main

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/journal"
	"github.com/nfqproxy/nfqproxy/control/thisnode"
	"github.com/nfqproxy/nfqproxy/datapath"
	"github.com/nfqproxy/nfqproxy/datapath/masquerade"
)

// flowAPIFlags are the flags of the flow API.
type flowAPIFlags struct {
	address   string
	tokenFile string
	tlsCert   string
	tlsKey    string
	buffer    int
}

func (f *flowAPIFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.address, "flow-api", "127.0.0.1:10253", `serve the flow API and the web page here: ADDRESS:PORT, or unix:PATH; off loopback addresses only with TLS and a token; "": nowhere`)
	flags.StringVar(&f.tokenFile, "flow-api-token-file", "", "file with the token that the flow API wants to see for whatever changes something and, off loopback addresses, for everything")
	flags.StringVar(&f.tlsCert, "flow-api-tls-cert", "", "file with the flow API's certificate")
	flags.StringVar(&f.tlsKey, "flow-api-tls-key", "", "file with the certificate's key")
	flags.IntVar(&f.buffer, "flow-buffer", 16384, "how many flows are remembered for the flow API; one takes about 1 KiB")
}

// check says what is wrong with them.
func (f *flowAPIFlags) check() error {
	if f.buffer < 1024 || f.buffer > 1<<20 {
		return errors.New("--flow-buffer: want 1024 to 1048576 flows")
	}
	return nil
}

// flowView is what is known of this node's flows, and who is told: nobody, the flow log,
// the flow API's readers.
type flowView struct {
	*journal.Journal
	log   *journal.Log     // nil: there is none
	file  *os.File         // the log's; nil: it is not ours to close
	table *conntrack.Table // of the kernel; nil: it cannot be asked
	ctx   context.Context  // of what goes on
	stop  context.CancelFunc
	done  sync.WaitGroup
}

// Lost counts the flows that there was no room for, and those the log did not take.
func (v *flowView) Lost() uint64 {
	n := v.Journal.Lost()
	if v.log != nil {
		n += v.log.Lost()
	}
	return n
}

// wantsFlows says whether anybody wants to see flows.
func (f *runFlags) wantsFlows() bool { return f.flowLog != "" || f.flowAPI.address != "" }

// watchFlows begins to remember flows. closeFlows has to follow.
func (p *proxy) watchFlows(stdout io.Writer) error {
	f := p.flags
	v := &flowView{Journal: journal.New(journal.Config{Flows: f.flowAPI.buffer})}
	v.ctx, v.stop = context.WithCancel(context.Background())
	p.flows, p.engineConfig.Sink = v, v
	v.done.Go(func() { v.Run(v.ctx) })
	if f.flowLog == "" {
		return nil
	}
	w := stdout
	if f.flowLog != "-" {
		var err error
		if v.file, err = os.OpenFile(f.flowLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640); err != nil {
			return wrap("--flow-log", err)
		}
		w = v.file
	}
	v.log = v.NewLog(w, journal.LogConfig{Names: p.node, Steps: f.flowLogSteps, Failed: func(err error) {
		p.log.Warn("the flow log cannot be written; no more records from here on", "error", err)
	}})
	return nil
}

// followKernel has the journal learn what becomes of flows. Without the kernel's events they
// are seen all the same, but not their lives.
func (p *proxy) followKernel() {
	v := p.flows
	events, err := conntrack.Watch(conntrack.WatchConfig{})
	if err == nil {
		if v.table, err = conntrack.Open(new(conntrack.Locks)); err != nil {
			err = errors.Join(err, events.Close())
		}
	}
	if err != nil {
		p.log.Warn("what becomes of flows after their decision cannot be told", "error", err)
		return
	}
	v.done.Go(func() {
		if err := v.Follow(v.ctx, journal.Kernel{Events: events, Connections: v.table}); err != nil {
			p.log.Error("what becomes of flows after their decision can no longer be told", "error", err)
		}
	})
}

// closeFlows ends what watchFlows and followKernel began, when no flow comes any more.
func (p *proxy) closeFlows() (err error) {
	v := p.flows
	v.stop()
	v.done.Wait()
	if v.log != nil {
		err = wrap("--flow-log", v.log.Close())
	}
	if v.file != nil {
		err = errors.Join(err, v.file.Close())
	}
	if v.table != nil {
		err = errors.Join(err, v.table.Close())
	}
	return err
}
