// Package hostmasq follows the nat rules of other programs in a host's kernel, and applies those
// of POSTROUTING to the flows that the datapath translates: such flows bypass the rules, because
// our connection entry fixes both sides of the translation. Package hostnat computes their effect.
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
	"github.com/nfqproxy/nfqproxy/datapath/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// Source is a source of a host's rules.
type Source interface {
	// Rules reads the rules of tables that may translate, without the host. nil with an error: they could not be read at all;
	// rules that come with an error can be used.
	Rules() (*hostnat.Ruleset, error)
	// Watch calls changed after every change of the rules, and whenever one may have been missed,
	// until the context ends; then its error is nil. The first call comes at once. A failed call
	// is repeated some time later.
	Watch(ctx context.Context, changed func() error) error
	// Out returns the output device of packets to an address.
	Out(to netip.Addr) (string, error)
	// Host returns the host's addresses.
	Host() (*hostnat.Host, error)
}

// retryAfter is the time without changes after Watch has failed.
const retryAfter = 5 * time.Second

// Follower keeps a [hostnat.Ruleset] up to date with the host. It is safe for concurrent use; a nil
// Follower has no rules. Rules that cannot be read stay as they were read last.
type Follower struct {
	source Source
	log    *slog.Logger
	rules  atomic.Pointer[hostnat.Ruleset]

	named sync.Map // the text of each *rules.Rule that was logged

	mu   sync.Mutex       // held while the source is read
	read *hostnat.Ruleset // as read last; nil: never
	host *hostnat.Host

	logMu  sync.Mutex
	logged map[string]bool   // what was logged
	faults map[string]string // the last error of each step that fails at present
}

// Follow reads the rules once, and returns a Follower of them.
func Follow(s Source, log *slog.Logger) *Follower {
	f := &Follower{source: s, log: log, logged: make(map[string]bool), faults: make(map[string]string)}
	_ = f.readAll() // Run repeats it
	return f
}

// Rules returns the current rules, which may be nil.
func (f *Follower) Rules() *hostnat.Ruleset {
	if f == nil {
		return nil
	}
	return f.rules.Load()
}

// Translator makes a Translator; a nil Follower's has no rules.
func (f *Follower) Translator() Translator { return Translator{follower: f} }

// Translator applies a Follower's rules to the flows of one worker of the datapath. It is not safe for concurrent use;
// the zero value has no rules.
type Translator struct {
	follower  *Follower
	evaluator hostnat.Evaluator
}

// Any reports whether there are rules that may translate the source of a flow of the family.
func (t *Translator) Any(f decision.Family) bool { return t.follower.Rules().Any(f) }

// Translate returns the effect of the rules on a flow from p that is sent to the endpoint through the interface out.
// p.InInterface must be set unless p is Local; mark is the packet's. It allocates nothing, unless the effect is unknown.
func (t *Translator) Translate(p *decision.Packet, endpoint netip.AddrPort, out string, mark uint32) hostnat.Result {
	r := t.evaluator.Evaluate(t.follower.Rules(), hostnat.Packet{Packet: *p, Endpoint: endpoint, Out: out, Mark: mark})
	if r.Unknown != "" {
		t.follower.logUnknown(r)
	}
	return r
}

// Translate returns the effect of the rules on a flow that nothing is done with; nil has none. It is
// not for the packets of a queue: it asks the kernel for the route.
func (f *Follower) Translate(p *decision.Packet, endpoint netip.AddrPort) hostnat.Result {
	inForce := f.Rules()
	if !inForce.Any(decision.FamilyOf(endpoint.Addr())) {
		return hostnat.Result{}
	}
	out, err := f.source.Out(endpoint.Addr())
	if err != nil {
		return hostnat.Result{Rule: &rules.Rule{Chain: "POSTROUTING"}, Unknown: err.Error()}
	}
	return new(hostnat.Evaluator).Evaluate(inForce, hostnat.Packet{Packet: *p, Endpoint: endpoint, Out: out})
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
			return f.readAll()
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

// readAll reads everything. Its error was logged.
func (f *Follower) readAll() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	rules, err := f.source.Rules()
	var partly error
	if rules != nil {
		partly, err = err, nil
	}
	f.fault("cannot read the host's nat rules; using the rules read last", err)
	f.fault("the host's nat rules are only partly known", partly)
	if err == nil {
		f.read = rules
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
	if f.host == nil || f.read == nil {
		return // the rules' effect is unknown
	}
	f.rules.Store(&hostnat.Ruleset{Tables: f.read.Tables, Host: f.host})
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
func (f *Follower) once(text string, args ...any) {
	key := fmt.Sprint(append([]any{text}, args...))
	const most = 1000 // a host with ever new messages must not fill the memory
	f.logMu.Lock()
	defer f.logMu.Unlock()
	if f.logged[key] || len(f.logged) >= most {
		return
	}
	f.logged[key] = true
	f.log.Warn(text, args...)
}
