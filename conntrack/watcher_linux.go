package conntrack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack/netlinkio"
)

// Multicast groups of linux/netfilter/nfnetlink.h.
const (
	groupNew     = 1 // NFNLGRP_CONNTRACK_NEW
	groupUpdate  = 2 // NFNLGRP_CONNTRACK_UPDATE
	groupDestroy = 3 // NFNLGRP_CONNTRACK_DESTROY
)

// WatchConfig is how events are received.
type WatchConfig struct {
	// Buffer is how many bytes may wait to be received (SO_RCVBUF); an event takes about 640
	// bytes. Without CAP_NET_ADMIN over the whole machine the kernel silently grants at most
	// net.core.rmem_max.
	Buffer int
	// New: also events of new entries ([Began]).
	New bool
}

// Watch starts receiving the events of the calling thread's network namespace: all those after its return. It needs
// CAP_NET_ADMIN in the user namespace that owns it.
func Watch(cfg WatchConfig) (*Watcher, error) {
	if err := eventsEnabled(os.ReadFile); err != nil {
		return nil, fmt.Errorf("conntrack: %w", err)
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("conntrack: open netlink socket for events: %w", err)
	}
	if err := conn.SetReadBuffer(cfg.Buffer); err != nil {
		return nil, errors.Join(fmt.Errorf("conntrack: set receive buffer for events to %d bytes: %w", cfg.Buffer, err), conn.Close())
	}
	own, err := netlinkio.Take(conn)
	if err != nil {
		return nil, fmt.Errorf("conntrack: %w", err)
	}
	k := &kernelEvents{Socket: own, Buffers: netlinkio.NewBuffers(maxEvents, maxEventLen), groups: []int{groupDestroy, groupUpdate}}
	if cfg.New {
		k.groups = append(k.groups, groupNew)
	}
	for _, group := range k.groups {
		if err := k.SetMember(group, true); err != nil {
			if errors.Is(err, unix.EPERM) {
				err = fmt.Errorf("%w (CAP_NET_ADMIN is needed)", err)
			}
			return nil, errors.Join(fmt.Errorf("conntrack: listen to events (group %d): %w", group, err), own.Close())
		}
	}
	return NewWatcher(k), nil
}

const (
	eventsSetting = "/proc/sys/net/netfilter/nf_conntrack_events"
	// acctSetting exists in every kernel that shows its settings.
	acctSetting = "/proc/sys/net/netfilter/nf_conntrack_acct"
)

// eventsEnabled returns an error if the kernel sends no events.
func eventsEnabled(readFile func(string) ([]byte, error)) error {
	text, err := readFile(eventsSetting)
	switch {
	case err == nil && strings.TrimSpace(string(text)) == "0":
		return errors.New("connection tracking events are off: set net.netfilter.nf_conntrack_events to 2 (sysctl -w net.netfilter.nf_conntrack_events=2)")
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("check whether the kernel sends events: %w", err)
	}
	// Before Linux 5.7 user namespaces did not show either setting.
	if _, err := readFile(acctSetting); err == nil {
		return fmt.Errorf("the kernel sends no connection tracking events (%s is missing): it needs CONFIG_NF_CONNTRACK_EVENTS", eventsSetting)
	}
	return nil
}

// kernelEvents are the events of the kernel. Go's poller does not know the socket: it would wake a
// thread for each event, even before the events are read.
type kernelEvents struct {
	*netlinkio.Socket
	*netlinkio.Buffers
	groups []int
	closed atomic.Bool
}

func (k *kernelEvents) Receive(wait bool) (n int, err error) {
	if wait && !k.closed.Load() {
		n, err = k.Wait(k.Buffers, maxEvents)
	} else {
		n, err = k.Poll(k.Buffers, maxEvents)
	}
	if k.closed.Load() {
		return 0, os.ErrClosed
	}
	return n, err
}

func (k *kernelEvents) Listen(on bool) (err error) {
	for _, group := range k.groups {
		err = errors.Join(err, k.SetMember(group, on))
	}
	return err
}

// Close makes the kernel send a reply, which wakes a waiting receive.
func (k *kernelEvents) Close() error {
	k.closed.Store(true)
	b, start := beginMessage(nil, unix.NLMSG_NOOP, unix.NLM_F_ACK, 0, 0)
	b = endMessage(b, start)
	return k.CloseWaiting(func() error { return k.Write(b) })
}
