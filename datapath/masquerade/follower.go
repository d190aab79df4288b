package masquerade

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/nfqproxy/nfqproxy/datapath/netfilter"
)

// Source is where the rules of a host come from.
type Source interface {
	// Tables reads the tables, in the order in which packets meet them. What cannot be read
	// is in the error; the tables can be used all the same.
	Tables() ([]Table, error)
	// Watch calls changed after every change of the rules, and whenever one may have been
	// missed, until the context ends.
	Watch(ctx context.Context, changed func()) error
	// Host tells the host's addresses.
	Host() (*netfilter.Host, error)
}

// Follower keeps [Rules] as the host has them. It is safe for concurrent use; a nil
// Follower has no rules.
type Follower struct {
	source Source
	log    *slog.Logger
	rules  atomic.Pointer[Rules]

	named sync.Map // of the *iptables.Rule that were named

	mu   sync.Mutex      // held while rules are read
	said map[string]bool // what the log was told
}

// Follow reads the rules once, and makes a Follower of them.
func Follow(s Source, log *slog.Logger) *Follower {
	f := &Follower{source: s, log: log, said: make(map[string]bool)}
	f.Refresh()
	return f
}

// Rules are the rules as they are, which may be nil.
func (f *Follower) Rules() *Rules {
	if f == nil {
		return nil
	}
	return f.rules.Load()
}

// Refresh reads everything again: the host's addresses may have changed.
func (f *Follower) Refresh() {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	tables, err := f.source.Tables()
	if err != nil {
		f.once("the host's nat rules cannot all be read; sources that they would masquerade stay as they are", "error", err.Error())
	}
	host, err := f.source.Host()
	if err != nil {
		f.once("the host's addresses cannot be read, so its nat rules are not asked", "error", err.Error())
		return
	}
	rules, err := Compile(tables, host)
	if err != nil {
		f.once("some of the host's nat rules cannot be used; sources that they would masquerade stay as they are", "error", err.Error())
	}
	f.rules.Store(rules)
	f.named.Clear() // the rules are others, even if they say the same
}

// Run follows changes until the context ends.
func (f *Follower) Run(ctx context.Context) error {
	if f == nil {
		return nil
	}
	return f.source.Watch(ctx, f.Refresh)
}

// Unjudged notes that nothing could be told about a flow, because of a rule: each is named
// once.
func (f *Follower) Unjudged(a Answer) {
	if _, named := f.named.LoadOrStore(a.Rule, true); named {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.once("a nat rule of the host cannot be judged; sources of flows to services stay as they are where it is asked",
		"table", a.Table, "rule", a.Rule.String(), "why", a.Unjudged)
}

// once logs what was not logged before.
func (f *Follower) once(text string, args ...string) {
	key := text
	fields := make([]any, len(args))
	for i, a := range args {
		key += "\x00" + a
		fields[i] = a
	}
	const most = 1000 // a host that says something else every time is not to fill the memory
	if f.said[key] || len(f.said) >= most {
		return
	}
	f.said[key] = true
	f.log.Warn(text, fields...)
}
