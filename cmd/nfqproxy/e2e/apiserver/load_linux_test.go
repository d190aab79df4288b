package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// load is workers that open connections all the time.
type load struct {
	c       *apiCluster
	stopped atomic.Bool
	workers sync.WaitGroup
	made    []atomic.Int64 // connections, by worker
	ports   atomic.Uint32  // source ports of UDP used so far
	// lossy: a datagram may be lost, and is sent again, as resolvers do.
	lossy bool

	mu   sync.Mutex
	errs []error
}

// workerPause bounds the load, so that on a busy machine the control plane works and no record is lost.
const workerPause = 200 * time.Millisecond

// resendAfter is when a datagram is sent again (resolv.conf: timeout).
const resendAfter = 5 * time.Second

// newLoad starts one worker for each vantage and front. Every connection has to be
// answered; lossy: a datagram may need a second try. stop ends it.
func (c *apiCluster) newLoad(lossy bool, list ...front) *load {
	c.T.Helper()
	n := 0
	for _, f := range list {
		n += len(f.vantages)
	}
	l := &load{c: c, made: make([]atomic.Int64, n), lossy: lossy}
	for _, f := range list {
		for _, from := range f.vantages {
			n--
			ns, made, source := c.Host(from), &l.made[n], netip.IPv4Unspecified()
			if f.at.Addr().Is6() {
				source = netip.IPv6Unspecified()
			}
			l.workers.Go(func() {
				tick := time.NewTicker(workerPause)
				defer tick.Stop()
				for ; !l.stopped.Load(); <-tick.C {
					began := time.Now()
					try := func(timeout time.Duration) error {
						ctx, cancel := context.WithTimeout(context.Background(), timeout)
						defer cancel()
						a, err := exchange(ctx, func() (net.Conn, error) {
							var port uint16 // the kernel's choice
							if f.network == "udp" {
								port = firstLoadPort + uint16(l.ports.Add(1)%loadPorts)
							}
							return ns.Dial(ctx, f.network, netip.AddrPortFrom(source, port), f.at)
						})
						if err == nil && a.Pod == "" {
							err = errors.New("answered by no pod")
						}
						return err
					}
					var err error
					if !l.lossy || f.network != "udp" || try(resendAfter) != nil {
						err = try(e2etest.Timeout)
					}
					if err != nil {
						l.fail(fmt.Errorf("%s: %s from %s to %s: %w", began.Format(time.StampMicro), f.network, from, f.at, err))
					}
					made.Add(1)
				}
			})
		}
	}
	c.T.Cleanup(l.end)
	return l
}

func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
}

func (l *load) end() {
	l.stopped.Store(true)
	l.workers.Wait()
}

// turn waits until every connection that is open now has ended, and as many have been
// made after.
func (l *load) turn() {
	l.c.T.Helper()
	want := make([]int64, len(l.made))
	for i := range l.made {
		want[i] = l.made[i].Load() + 2
	}
	l.c.await("the load to go on", func(context.Context) error {
		for i := range l.made {
			if n := l.made[i].Load(); n < want[i] {
				return fmt.Errorf("worker %d is at %d, want %d", i, n, want[i])
			}
		}
		return nil
	})
}

// stop ends the load and tells of what failed.
func (l *load) stop() {
	l.c.T.Helper()
	l.end()
	total := int64(0)
	for i := range l.made {
		total += l.made[i].Load()
	}
	l.c.T.Logf("%d connections", total)
	for i, err := range l.errs {
		if i == 10 {
			l.c.T.Errorf("and %d more", len(l.errs)-i)
			break
		}
		l.c.T.Errorf("failed connection: %v", err)
	}
}

// exchange is one question and its answer.
func exchange(ctx context.Context, dial func() (net.Conn, error)) (lab.Answer, error) {
	conn, err := dial()
	if err != nil {
		return lab.Answer{}, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return lab.Answer{}, err
	}
	return e2etest.Ask(conn)
}
