package hostmasq

import (
	"context"
	"errors"

	"github.com/nfqproxy/nfqproxy/datapath/live/hostmasq/hostrules"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/paper/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Kernel is the calling thread's network namespace as a Source; host must be of the same
// namespace.
func Kernel(host *hostnet.Host) Source { return kernel{host} }

type kernel struct{ host *hostnet.Host }

func (k kernel) Tables() ([]hostnat.Table, error) {
	rules, err := hostrules.Read()
	if err != nil {
		return nil, err
	}
	var tables []hostnat.Table
	var faults []error
	for _, f := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		for _, t := range rules.Of(f) {
			tables = append(tables, hostnat.Table{Name: t.String(), Dump: t.Dump})
		}
		if rules.OrderUnknown(f) {
			faults = append(faults, errors.New("both iptables back ends have nat rules and the kernel does not report their order: assuming that those of nftables come first"))
		}
	}
	return tables, errors.Join(faults...)
}

func (k kernel) Watch(ctx context.Context, changed func() error) error {
	return hostrules.Watch(ctx, changed)
}

func (k kernel) Host() (*netfilter.Host, error) {
	addresses, err := k.host.InterfaceAddresses()
	if err != nil {
		return nil, err
	}
	h := &netfilter.Host{}
	for _, a := range addresses {
		h.AddAddress(a.Interface, a.Address)
	}
	return h, nil
}
