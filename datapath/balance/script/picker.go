package script

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.starlark.net/starlark"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// picker has a policy select an endpoint of a set.
type picker struct {
	set        *balance.Set
	candidates *starlark.List
	*memory
}

// memory is what a policy keeps for a service port and a traffic policy: it goes from picker to picker
// when the set changes, while workers may still use the picker before.
type memory struct {
	script *Script

	mu     sync.Mutex // guards all below, and what Starlark does with it
	thread *starlark.Thread
	flow   *flow
	state  *starlark.Dict
	values int // of the state, when it was measured last
	since  int // steps since then: a state grows by one value in a step at most
	// off is a version whose state was too large; it is not called again.
	off     *program
	errors  uint64
	last    string   // error
	seen    []string // errors that Failed got
	printed []string
}

// maxSeen is how many different errors are handed to Failed.
const maxSeen = 16

// maxPrinted is how many lines of print are kept: the newest.
const maxPrinted = 16

// newPicker is the New of an [balance.Algorithm].
func (s *Script) newPicker(set *balance.Set, before balance.Picker) balance.Picker {
	p := &picker{set: set, candidates: candidates(set)}
	if b, ok := before.(*picker); ok && b.script == s {
		p.memory = b.memory
	} else {
		p.memory = &memory{script: s, flow: newFlow(), state: new(starlark.Dict)}
	}
	return p
}

// Pick implements [balance.Picker].
func (p *picker) Pick(f balance.Flow) decision.Pick {
	pick, err := p.pick(f)
	if err == "" {
		return pick
	}
	n := len(p.set.Candidates)
	pick = balance.Drawn(f.Rand, n)
	pick.Evidence = decision.Evidence{Kind: decision.Noted, Note: fmt.Sprintf("script failed: %s: drawn among %d", err, n)}
	return pick
}

func (p *picker) pick(f balance.Flow) (pick decision.Pick, failed string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flow.Flow, p.flow.drew = f, false
	defer func() { p.flow.Flow = balance.Flow{} }()
	program := p.script.program.Load()
	result, err := p.call(program, program.pick, p.candidates, p.flow, p.state)
	if err == nil {
		pick, err = p.read(result)
	}
	if err != nil {
		return pick, p.fail(p.set, err)
	}
	return pick, ""
}

// read reads what a policy returned.
func (p *picker) read(v starlark.Value) (decision.Pick, error) {
	pick := decision.Pick{Evidence: decision.Evidence{Kind: decision.Noted, Note: p.script.note}}
	if pair, ok := v.(starlark.Tuple); ok && len(pair) == 2 {
		note, ok := pair[1].(starlark.String)
		if !ok {
			return pick, fmt.Errorf("pick returned (%s, %s); want (index, string)", pair[0].Type(), pair[1].Type())
		}
		v, pick.Evidence.Note = pair[0], clean(string(note))
	}
	index, n := -1, len(p.set.Candidates)
	switch v := v.(type) {
	case starlark.Int:
		i, ok := v.Int64()
		if !ok || i < 0 || i >= int64(n) {
			return pick, fmt.Errorf("pick returned index %s of %d candidates", v, n)
		}
		index = int(i)
	case *candidate:
		index = v.index
	default:
		return pick, fmt.Errorf("pick returned %s; want the index of a candidate, or (index, string)", v.Type())
	}
	if pick.Position = uint32(index); !p.flow.drew {
		pick.Probability = 1
	}
	return pick, nil
}

// Observe implements [balance.Observer].
func (p *picker) Observe(e balance.Event) {
	program := p.script.program.Load()
	if program.observe == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.call(program, program.observe, &event{Event: e}, p.state); err != nil {
		p.fail(p.set, err)
	}
}

// errOff is the error of a version that is off.
var errOff = fmt.Errorf("the policy is off since its state was refused; save it anew")

// call calls a function of the policy; mu must be held.
func (m *memory) call(of *program, f *starlark.Function, args ...starlark.Value) (result starlark.Value, err error) {
	if m.off == of {
		return nil, errOff
	}
	if m.thread == nil {
		m.thread = newThread(m.print)
	}
	m.thread.Steps = 0
	m.thread.Uncancel()
	defer func() {
		if r := recover(); r != nil {
			m.thread = nil // whatever it was doing
			err = fmt.Errorf("the interpreter panicked: %v", r)
		}
	}()
	result, err = starlark.Call(m.thread, f, args, nil)
	if m.since += int(m.thread.Steps); m.since >= m.values {
		if e := m.measure(); e != nil {
			m.off, m.state = of, new(starlark.Dict)
			return nil, e
		}
	}
	return result, err
}

// measure measures the state.
func (m *memory) measure() error {
	s := size{maxValues: maxStateValues, maxBytes: maxStateBytes, stored: true}
	err := s.add(m.state)
	if m.values, m.since = s.values, 0; err != nil {
		return fmt.Errorf("state: %w; the policy is off until it is saved anew", err)
	}
	return nil
}

func (m *memory) print(line string) {
	if len(m.printed) == maxPrinted {
		m.printed = append(m.printed[:0], m.printed[1:]...)
	}
	m.printed = append(m.printed, clean(line))
}

func (m *memory) fail(of *balance.Set, err error) string {
	m.errors++
	m.script.failures.Add(1)
	text := failure(err)
	if m.script.Failed != nil && len(m.seen) < maxSeen && !slices.Contains(m.seen, text) {
		m.seen = append(m.seen, text)
		m.script.Failed(of.Service.Name, text)
	}
	if !errors.Is(err, errOff) || m.last == "" {
		m.last = text
	}
	return text
}

// report is the state of a picker for people.
type report struct {
	Script    string   `json:"script"`
	Errors    uint64   `json:"errors"`
	LastError string   `json:"lastError,omitempty"`
	Printed   []string `json:"printed,omitempty"`
	State     any      `json:"state,omitempty"`
}

// State implements [balance.Reporter].
func (p *picker) State() any {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := report{Script: p.script.name, Errors: p.errors, LastError: p.last, Printed: append([]string(nil), p.printed...)}
	if p.measure() == nil && p.state.Len() > 0 {
		r.State = data(p.state)
	}
	return r
}
