package hostfilter

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

const (
	// pollInterval is how often the tables of the legacy back end are checked: the kernel sends no
	// events of their changes.
	pollInterval = time.Second
	// auditInterval is how often all tables are checked without an event.
	auditInterval = 30 * time.Second
	// quiet is how long the tables must stay unchanged before a check, and maxWait the longest
	// wait for that: programs add their rules one by one.
	quiet, maxWait = 50 * time.Millisecond, time.Second
)

// Keeper keeps our rules in the host's tables. Any goroutine may call its methods.
type Keeper struct {
	log *slog.Logger

	wake chan struct{} // holds one: the spec has changed

	writing sync.Mutex // held while tables are read and written

	mu       sync.Mutex
	tables   follower        // with the spec
	version  int             // of the spec; 0: there is none yet
	inPlace  map[place]int   // the version of a table at its last check
	faults   map[place]error // of tables with differences
	repaired uint64
}

// New makes a Keeper that does nothing before [Keeper.Follow].
func New(log *slog.Logger) *Keeper {
	return &Keeper{log: log, wake: make(chan struct{}, 1), inPlace: make(map[place]int), faults: make(map[place]error)}
}

// Follow makes the host's firewall accept the flows of a service table. It does not wait for that:
// see [Keeper.Run].
func (k *Keeper) Follow(t *decision.Table) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tables.follow(t) {
		k.changed()
	}
}

// changed has Run apply the spec. k.mu is held.
func (k *Keeper) changed() {
	k.version++
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Fault describes the tables with missing or wrong rules; empty: none is known.
func (k *Keeper) Fault() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []string
	for _, p := range places {
		if err := k.faults[p]; err != nil {
			all = append(all, err.Error())
		}
	}
	return strings.Join(all, "; ")
}

// Repaired counts how often another program had removed or changed rules of ours.
func (k *Keeper) Repaired() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.repaired
}

// Sync corrects all tables at once, in the calling thread's network namespace. A failure is a
// [Keeper.Fault], which Run retries.
func (k *Keeper) Sync() {
	for _, p := range places {
		k.sync(p)
	}
}

func (k *Keeper) sync(p place) {
	k.writing.Lock()
	defer k.writing.Unlock()
	k.mu.Lock()
	spec, version := k.tables.spec, k.version
	k.mu.Unlock()
	if version == 0 {
		return
	}
	changed, absent, err := p.sync(spec, false)

	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.inPlace[p]
	switch {
	case errors.Is(err, nft.ErrChanged): // so the state of the rules is unknown
		return
	case err != nil:
		if k.faults[p] == nil {
			k.log.Error("the host's firewall may drop flows to services: cannot add the rules that accept them; retrying", "error", err)
		}
		k.faults[p] = err
		return
	}
	delete(k.faults, p)
	if k.inPlace[p] = version; absent {
		k.inPlace[p] = 0
	}
	switch {
	case len(changed) == 0:
	case before == version:
		k.repaired++
		k.log.Warn("another program changed our rules in the host's firewall; repaired them", "table", p, "found", strings.Join(changed, ", "))
	case before == 0:
		k.log.Info("the host's firewall accepts flows to services", "table", p)
	}
}

// Run keeps the rules in the calling thread's network namespace until the context ends, or until
// nftables' events end with an error. The calling goroutine may have locked its thread to a
// namespace. Run does not remove the rules: see [Remove].
func (k *Keeper) Run(ctx context.Context) error {
	events, err := nft.NewWatch(concerns)
	if err != nil {
		return err
	}
	defer events.Close() // nothing was written
	poll, audit := time.NewTicker(pollInterval), time.NewTicker(auditInterval)
	defer poll.Stop()
	defer audit.Stop()
	legacy := xtables.NewPoll(filterTable)
	legacy.Changed()
	k.Sync()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-events.Failed():
			return err
		case <-k.wake:
			k.Sync()
		case <-audit.C:
			k.Sync()
		case <-events.Changed():
			nft.Settle(ctx, events.Changed(), quiet, maxWait, time.After)
			k.of(xtables.NFT)
		case <-poll.C:
			if legacy.Changed() {
				k.of(xtables.Legacy)
			}
			if k.Fault() != "" {
				k.Sync()
			}
		}
	}
}

// of checks the tables of a back end.
func (k *Keeper) of(b xtables.Backend) {
	for _, p := range places {
		if p.Backend == b {
			k.sync(p)
		}
	}
}

// concerns selects changes of the tables "filter" of iptables-nft.
func concerns(e nft.Event) bool {
	return (e.Family == unix.NFPROTO_IPV4 || e.Family == unix.NFPROTO_IPV6) && e.Table() == filterTable
}
