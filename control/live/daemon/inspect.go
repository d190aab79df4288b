package daemon

import (
	"context"
	"errors"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

// inspected is the daemon for its status.
type inspected struct{ *process }

func (p inspected) Source() observe.Source {
	var s observe.Source
	if source := p.apiServer.Load(); source != nil {
		s.Saved = source.Saved()
	}
	s.WaitingFor, s.Late = p.health.Pending()
	return s
}

func (p inspected) CheckRules(ctx context.Context) (engine.RuleCheck, error) {
	e := p.running.Load()
	if e == nil {
		return engine.RuleCheck{}, errors.New("the datapath has not started")
	}
	return e.CheckRules(ctx)
}

func (p inspected) Faults() (rules, firewall string) {
	if e := p.running.Load(); e != nil {
		rules = e.Fault()
	}
	return rules, p.filter.Fault()
}

// HostNAT reads the rules only after the datapath has started, which sets them.
func (p inspected) HostNAT() observe.HostNAT {
	n := observe.HostNAT{Applied: p.flags.hostMasq == hostMasqueradeAuto}
	if p.running.Load() != nil {
		n.Unknown = p.hostRules.Unknown()
	}
	return n
}

func (p inspected) Observed() string { return p.observed() }

func (p inspected) Confinement() observe.Confinement { return p.confinement }
