package lab

import (
	"fmt"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/deploy/lab/desired"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// validateFault completes a fault of a lab and checks it. The error is an [*observe.Error].
func validateFault(s *Spec, f *Fault) error {
	if err := f.Check(); err != nil {
		return err
	}
	host, err := s.Resolve(f.Host)
	if err != nil {
		return desired.Invalid("host", err)
	}
	f.Host = host
	if kind, _ := labapi.FaultKindOf(f.Kind); host == labfile.Router || kind.NodesOnly && s.Node(host) == nil {
		return desired.Invalid("host", fmt.Errorf("%s is not a node: the fault %s is only for nodes", host, f.Kind))
	}
	f.Text = f.String()
	return nil
}
