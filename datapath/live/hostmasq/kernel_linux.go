package hostmasq

import (
	"context"
	"errors"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostmasq/hostrules"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
)

// Kernel is the calling thread's network namespace as a Source; host must be of the same
// namespace.
func Kernel(host *hostnet.Host) Source { return &kernel{host: host} }

type kernel struct {
	host    *hostnet.Host
	devices map[string]uint32 // as read with the rules
}

func (k *kernel) Rules() (*hostnat.Ruleset, error) {
	rules, err := hostrules.Read()
	if err != nil {
		return nil, err
	}
	k.devices = rules.Devices
	set := &hostnat.Ruleset{Tables: make(map[decision.Family][]*hostnat.Table)}
	var faults []error
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		for _, t := range rules.Of(f) {
			if t.Base.Translates() {
				set.Tables[f] = append(set.Tables[f], &hostnat.Table{Name: t.String(), Base: t.Base})
			}
		}
		if rules.OrderUnknown(f) {
			faults = append(faults, errors.New("both iptables back ends have nat rules and the kernel does not report their order: assuming that those of nftables come first"))
		}
	}
	return set, errors.Join(faults...)
}

func (k *kernel) Watch(ctx context.Context, changed func() error) error {
	return hostrules.Watch(ctx, changed)
}

func (k *kernel) Out(to netip.Addr) (string, error) { return k.host.NewCache().OutInterface(to) }

func (k *kernel) Host() (*hostnat.Host, error) {
	addresses, err := k.host.InterfaceAddresses()
	if err != nil {
		return nil, err
	}
	h := new(hostnat.Host)
	for _, a := range addresses {
		h.AddAddress(a.Interface, a.Address)
	}
	for name, index := range k.devices {
		h.AddDevice(name, index)
	}
	return h, nil
}
