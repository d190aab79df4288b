package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	mdl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ReversePath holds the interfaces, by their indexes, on which the kernel validates the sources of
// IPv4 packets (rp_filter in Documentation/networking/ip-sysctl.rst).
type ReversePath struct {
	// Strict (1): the best route back to the source must leave through the same interface.
	Strict []uint32
	// Loose (2): there must be a route back to the source.
	Loose []uint32
	// Selective: a routing rule has a selector. The reverse path may then depend on more than the
	// source, and both lists are empty.
	Selective bool
}

// equal reports whether both are the same.
func (p ReversePath) equal(q ReversePath) bool {
	return p.Selective == q.Selective && slices.Equal(p.Strict, q.Strict) && slices.Equal(p.Loose, q.Loose)
}

// Indexes that are no interface (NETCONFA_IFINDEX_ALL and NETCONFA_IFINDEX_DEFAULT in
// linux/netconf.h).
const (
	allInterfaces     = -1
	defaultInterfaces = -2
)

// interfaceConf is the reverse path settings of an interface.
type interfaceConf struct {
	index    int32
	rpFilter int32
	// ignoreLinkDown: routes through interfaces whose link is down do not count.
	ignoreLinkDown bool
}

// reversePathOf computes the effective settings: the stricter of the interface's own value and
// that of all (IN_DEV_RPFILTER in linux/inetdevice.h).
//
// If routes without a link do not count, a rule's lookup may differ from the kernel's route,
// because it does count them (nft_fib4_eval). Then strict interfaces are treated as loose ones:
// without any route back the kernel drops the packet there, too.
func reversePathOf(confs []interfaceConf, selective bool) ReversePath {
	p := ReversePath{Selective: selective}
	if selective {
		return p
	}
	var all int32
	linkDown := false
	for _, c := range confs {
		if c.index == allInterfaces {
			all = c.rpFilter
		}
		linkDown = linkDown || c.ignoreLinkDown && c.index != defaultInterfaces
	}
	for _, c := range confs {
		switch value := max(all, c.rpFilter); {
		case c.index <= 0 || value == 0:
		case value == 1 && !linkDown:
			p.Strict = append(p.Strict, uint32(c.index))
		default:
			p.Loose = append(p.Loose, uint32(c.index))
		}
	}
	slices.Sort(p.Strict)
	slices.Sort(p.Loose)
	return p
}

// Attributes of RTM_NEWNETCONF (linux/netconf.h).
const (
	netconfIndex          = 1 // NETCONFA_IFINDEX
	netconfRPFilter       = 3 // NETCONFA_RP_FILTER
	netconfIgnoreLinkDown = 6 // NETCONFA_IGNORE_ROUTES_WITH_LINKDOWN
)

// ReversePathWatch follows the settings of one network namespace.
type ReversePathWatch struct {
	// Changes has the latest effective settings after each change; those at the start are the first.
	Changes chan ReversePath
	// Failed has an error that ended the watch early.
	Failed chan error

	events *mdl.Conn
	query  *mdl.Conn
	closed atomic.Bool
	done   chan struct{}
}

// WatchReversePath follows the settings of the calling thread's network namespace until
// [ReversePathWatch.Close].
func WatchReversePath() (_ *ReversePathWatch, err error) {
	w := &ReversePathWatch{Changes: make(chan ReversePath, 1), Failed: make(chan error, 1), done: make(chan struct{})}
	defer func() {
		if err != nil {
			err = fmt.Errorf("follow rp_filter: %w", errors.Join(err, w.closeSockets()))
		}
	}()
	if w.query, err = mdl.Dial(unix.NETLINK_ROUTE, nil); err != nil {
		return nil, err
	}
	if w.events, err = mdl.Dial(unix.NETLINK_ROUTE, nil); err != nil {
		return nil, err
	}
	for _, group := range []uint32{unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV4_RULE} {
		if err := w.events.JoinGroup(group); err != nil {
			return nil, err
		}
	}
	last, err := w.read()
	if err != nil {
		return nil, err
	}
	w.Changes <- last
	go func() {
		defer close(w.done)
		if err := w.follow(last); err != nil && !w.closed.Load() {
			w.Failed <- fmt.Errorf("follow rp_filter: %w", err)
		}
	}()
	return w, nil
}

// follow reads everything again after each event.
func (w *ReversePathWatch) follow(last ReversePath) error {
	for !w.closed.Load() {
		// ENOBUFS: events were lost, so the settings may have changed.
		if _, err := w.events.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
		now, err := w.read()
		if err != nil {
			return err
		}
		if !now.equal(last) {
			last = now
			select {
			case <-w.Changes: // it was not received yet
			default:
			}
			w.Changes <- now
		}
	}
	return nil
}

// Close ends the watch.
func (w *ReversePathWatch) Close() error {
	w.closed.Store(true)
	// Wakes Receive; closing the socket meanwhile would be a race for the file descriptor.
	err := w.events.SetReadDeadline(time.Unix(1, 0))
	<-w.done
	return errors.Join(err, w.closeSockets())
}

func (w *ReversePathWatch) closeSockets() (err error) {
	for _, c := range []*mdl.Conn{w.query, w.events} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

// read reads the effective settings.
func (w *ReversePathWatch) read() (ReversePath, error) {
	confs, err := w.confs()
	if err != nil {
		return ReversePath{}, fmt.Errorf("read the interfaces' settings: %w", err)
	}
	selective, err := w.selective()
	if err != nil {
		return ReversePath{}, fmt.Errorf("read the routing rules: %w", err)
	}
	return reversePathOf(confs, selective), nil
}

// dump sends a request with a header that has only the family IPv4. A dump during which the
// settings changed is repeated.
func (w *ReversePathWatch) dump(typ mdl.HeaderType, headerLen int) ([]mdl.Message, error) {
	header := make([]byte, headerLen)
	header[0] = unix.AF_INET
	for attempt := 1; ; attempt++ {
		m, err := w.query.Execute(mdl.Message{Header: mdl.Header{Type: typ, Flags: mdl.Request | mdl.Dump}, Data: header})
		interrupted := slices.ContainsFunc(m, func(m mdl.Message) bool { return m.Header.Flags&mdl.DumpInterrupted != 0 })
		if err != nil || !interrupted || attempt == maxAttempts {
			return m, err
		}
	}
}

func (w *ReversePathWatch) confs() ([]interfaceConf, error) {
	const headerLen = 4 // struct netconfmsg, filled up
	messages, err := w.dump(unix.RTM_GETNETCONF, headerLen)
	if err != nil {
		return nil, err
	}
	var confs []interfaceConf
	for _, m := range messages {
		if len(m.Data) < headerLen {
			continue
		}
		c, err := parseNetconf(m.Data[headerLen:])
		if err != nil {
			return nil, err
		}
		confs = append(confs, c)
	}
	return confs, nil
}

func parseNetconf(b []byte) (c interfaceConf, err error) {
	d, err := mdl.NewAttributeDecoder(b)
	if err != nil {
		return c, err
	}
	for d.Next() {
		switch d.Type() {
		case netconfIndex:
			c.index = d.Int32()
		case netconfRPFilter:
			c.rpFilter = d.Int32()
		case netconfIgnoreLinkDown:
			c.ignoreLinkDown = d.Int32() != 0
		}
	}
	return c, d.Err()
}

// selective reports whether a routing rule has a selector.
func (w *ReversePathWatch) selective() (bool, error) {
	const headerLen = 12 // struct fib_rule_hdr
	messages, err := w.dump(unix.RTM_GETRULE, headerLen)
	if err != nil {
		return false, err
	}
	for _, m := range messages {
		if len(m.Data) < headerLen || !plainRule(m.Data[:headerLen], m.Data[headerLen:]) {
			return true, nil
		}
	}
	return false, nil
}

// plainRule reports whether a rule sends all packets to a table, which may be another than the
// default ones.
func plainRule(header, attributes []byte) bool {
	// struct fib_rule_hdr: family, dst_len, src_len, tos, table, res1, res2, action, flags.
	dst, src, tos, action, flags := header[1], header[2], header[3], header[7], binary.NativeEndian.Uint32(header[8:])
	if dst != 0 || src != 0 || tos != 0 || action != unix.FR_ACT_TO_TBL || flags&unix.FIB_RULE_INVERT != 0 {
		return false
	}
	d, err := mdl.NewAttributeDecoder(attributes)
	if err != nil {
		return false
	}
	for d.Next() {
		switch d.Type() {
		case unix.FRA_TABLE, unix.FRA_PRIORITY, unix.FRA_PROTOCOL, unix.FRA_PAD:
		case unix.FRA_SUPPRESS_PREFIXLEN:
			if d.Int32() != -1 { // which the kernel reports for rules that have none
				return false
			}
		default:
			return false
		}
	}
	return d.Err() == nil
}
