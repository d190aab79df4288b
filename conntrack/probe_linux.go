package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
)

// Probe checks whether the kernel can create entries with translation, by creating one between
// documentation addresses (RFC 5737) and deleting it. It works on the calling thread's network
// namespace. The error names what is missing.
func Probe() error {
	t, err := Open(new(Locks))
	if err != nil {
		return err
	}
	defer t.Close()
	e := Entry{
		Tuple: Tuple{
			Source:      netip.MustParseAddrPort("192.0.2.1:9"),
			Destination: netip.MustParseAddrPort("192.0.2.2:9"),
			Protocol:    protoUDP,
		},
		Mark:        DefaultMark,
		Destination: netip.MustParseAddrPort("192.0.2.3:10"),
	}
	if err := t.create([]Entry{e}); err != nil {
		return fmt.Errorf("write to the connection tracking table: %w", err)
	}
	switch errno := t.errnos[0]; {
	case errno == 0 || errno == syscall.EEXIST: // of a probe that was killed
	case errors.Is(errno, syscall.ENOMEM):
		return &OpError{"create", e.Tuple, errno}
	default:
		return fmt.Errorf("the kernel cannot create connection entries (%w): it needs CONFIG_NF_CT_NETLINK and CONFIG_NF_CONNTRACK_MARK", errno)
	}
	s, err := t.Lookup(e.Tuple, 0)
	if err != nil {
		return err
	}
	var errs [1]error
	if t.Delete([]State{s}, errs[:]); errs[0] != nil && !IsNotFound(errs[0]) {
		return errs[0]
	}
	if s.Status&StatusDestinationNAT == 0 || s.Endpoint() != e.Destination {
		return errors.New("the kernel ignores the translation of created connection entries: it needs CONFIG_NF_NAT")
	}
	return nil
}
