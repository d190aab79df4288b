package lab

import (
	"fmt"

	"github.com/nfqproxy/nfqproxy/control/labapi"
)

// Fault is something wrong in a running lab.
type Fault = labapi.Fault

// validate completes a fault of a lab and checks it. The error is an [*observe.Error].
func (s *Spec) validate(f *Fault) error {
	if err := f.Check(); err != nil {
		return err
	}
	host, err := s.Resolve(f.Host)
	if err != nil {
		return invalid("host", err)
	}
	f.Host = host
	if kind, _ := labapi.FaultKindOf(f.Kind); host == routerName || kind.NodesOnly && s.node(host) == nil {
		return invalid("host", fmt.Errorf("%s is not a node: the fault %s is only for nodes", host, f.Kind))
	}
	f.Text = f.String()
	return nil
}
