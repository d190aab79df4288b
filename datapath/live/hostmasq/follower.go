// Package hostmasq follows the nat rules of other programs in a host's kernel, and applies those
// of POSTROUTING to the flows that the datapath translates: such flows bypass the rules, because
// our connection entry fixes both sides of the translation. It is the one live package that uses
// the simulator: package hostnat computes the effect of the rules.
package hostmasq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/paper/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Source is a source of a host's rules.
type Source interface {
	// Tables reads the tables, in the order in which packets meet them. With an error and no
	// table, they could not be read at all; tables that come with an error can be used.
	Tables() ([]hostnat.Table, error)
	// Watch calls changed after every change of the rules, and whenever one may have been missed,
	// until the context ends; then its error is nil. The first call comes at once. A failed call
	// is repeated some time later.
	Watch(ctx context.Context, changed func() error) error
	// Host returns the host's addresses.
	Host() (*netfilter.Host, error)
}

// retryAfter is the time without changes after Watch has failed.
const retryAfter = 5 * time.Second

// Follower keeps [hostnat.Rules] up to date with the host. It is safe for concurrent use; a nil
// Follower has no rules. Rules that cannot be read stay as they were read last.
type Follower struct {
	source Source
	log    *slog.Logger
	rules  atomic.Pointer[hostnat.Rules]

	named sync.Map // the text of each *iptables.Rule that was logged

	mu     sync.Mutex      // held while the source is read
	tables []hostnat.Table // as read last
	host   *netfilter.Host

	logMu  sync.Mutex
	logged map[string]bool   // what was logged
	faults map[string]string // the last error of each step that fails at present
}

// Follow reads the rules once, and returns a Follower of them.
func Follow(s Source, log *slog.Logger) *Follower {
	f := &Follower{source: s, log: log, logged: make(map[string]bool), faults: make(map[string]string)}
	_ = f.read() // Run repeats it
	return f
}

// Rules returns the current rules, which may be nil.
func (f *Follower) Rules() *hostnat.Rules {
	if f == nil {
		return nil
	}
	return f.rules.Load()
}

// Translator makes a translator for one worker of the datapath.
func (f *Follower) Translator() hostnet.SourceTranslator { return &translator{follower: f} }

type translator struct {
	follower  *Follower
	evaluator hostnat.Evaluator
}

func (t *translator) Any(f decision.Family) bool { return t.follower.Rules().Any(f) }

func (t *translator) Translate(p *decision.Packet, endpoint netip.AddrPort, out string, mark uint32) hostnet.SourceTranslation {
	a := t.evaluator.Evaluate(t.follower.Rules(), p, endpoint, out, mark)
	switch {
	case a.Unknown != "":
		t.follower.logUnknown(a)
		return hostnet.SourceTranslation{Unknown: true}
	case a.Rule == nil:
		return hostnet.SourceTranslation{}
	}
	return hostnet.SourceTranslation{Rule: a.Rule, Masquerade: a.Masquerade, Source: a.Source, FirstPort: a.Ports.First, LastPort: a.Ports.Last}
}

// Unknown describes the rules that cannot be evaluated, of those that flows have reached, and the
// rules that cannot be read. Flows that meet them keep their source.
func (f *Follower) Unknown() []string {
	if f == nil {
		return nil
	}
	f.logMu.Lock()
	list := slices.Collect(maps.Values(f.faults))
	f.logMu.Unlock()
	f.named.Range(func(_, text any) bool {
		list = append(list, text.(string))
		return true
	})
	slices.Sort(list)
	return list
}

// HostChanged reads the host's addresses again.
func (f *Follower) HostChanged() {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readHost() == nil {
		f.compile()
	}
}

// Run follows changes until the context ends.
func (f *Follower) Run(ctx context.Context) {
	if f == nil {
		return
	}
	for {
		const failure = "cannot follow changes of the host's nat rules; using the rules read last"
		err := f.source.Watch(ctx, func() error {
			f.fault(failure, nil)
			return f.read()
		})
		if ctx.Err() != nil {
			return
		}
		f.fault(failure, cmp.Or(err, errEnded))
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryAfter):
		}
	}
}

var errEnded = errors.New("it ended unexpectedly")

// read reads everything. Its error was logged.
func (f *Follower) read() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	tables, err := f.source.Tables()
	var partly error
	if len(tables) > 0 {
		partly, err = err, nil
	}
	f.fault("cannot read the host's nat rules; using the rules read last", err)
	f.fault("the host's nat rules are only partly known", partly)
	if err == nil {
		f.tables = tables
	}
	err = errors.Join(err, f.readHost())
	f.compile()
	return err
}

func (f *Follower) readHost() error {
	host, err := f.source.Host()
	if errors.Is(err, os.ErrClosed) {
		return err // all ends
	}
	f.fault("cannot read the host's addresses; evaluating its nat rules with the addresses read last", err)
	if err != nil {
		return err
	}
	f.host = host
	return nil
}

// compile puts the rules that were read into force.
func (f *Follower) compile() {
	if f.host == nil {
		return // the rules' effect is unknown
	}
	rules, err := hostnat.Compile(f.tables, f.host)
	f.fault("cannot use some of the host's nat rules; the sources that they would masquerade stay unchanged", err)
	f.rules.Store(rules)
	f.named.Clear() // the rules are new objects, even if their text is the same
}

// logUnknown logs that a rule's effect on a flow is unknown: once for each rule. It does not wait
// for rules that are being read.
func (f *Follower) logUnknown(a hostnat.Result) {
	if _, named := f.named.Load(a.Rule); named {
		return
	}
	f.named.Store(a.Rule, fmt.Sprintf("table %s: %s: %s", a.Table, a.Rule, a.Unknown))
	f.once("cannot evaluate a nat rule of the host; flows to services that reach it keep their source",
		"table", a.Table, "rule", a.Rule.String(), "why", a.Unknown)
}

// fault logs the error of a step, and keeps it as long as the step fails; nil: it has succeeded.
func (f *Follower) fault(text string, err error) {
	if err != nil {
		f.once(text, "error", err.Error())
	}
	f.logMu.Lock()
	defer f.logMu.Unlock()
	if err != nil {
		f.faults[text] = text + ": " + err.Error()
	} else {
		delete(f.faults, text)
	}
}

// once logs a message that was not logged before.
func (f *Follower) once(text string, args ...string) {
	key := text
	fields := make([]any, len(args))
	for i, a := range args {
		key += "\x00" + a
		fields[i] = a
	}
	const most = 1000 // a host with ever new messages must not fill the memory
	f.logMu.Lock()
	defer f.logMu.Unlock()
	if f.logged[key] || len(f.logged) >= most {
		return
	}
	f.logged[key] = true
	f.log.Warn(text, fields...)
}
