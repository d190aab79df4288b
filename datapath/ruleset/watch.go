package ruleset

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// watch waits for somebody to remove a table.
type watch struct {
	conn   *netlink.Conn
	lost   chan struct{} // closed when the table is gone, or may be
	closed atomic.Bool
	done   chan struct{} // closed when nobody waits any more
}

// watchTable watches a table of family inet in the calling thread's network namespace.
func watchTable(name string) (*watch, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err == nil {
		err = conn.JoinGroup(unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	w := &watch{conn: conn, lost: make(chan struct{}), done: make(chan struct{})}
	go w.run(name)
	return w, nil
}

func (w *watch) run(name string) {
	defer close(w.done)
	for {
		msgs, err := w.conn.Receive()
		if err != nil {
			// Closed, or events were lost (ENOBUFS): our own changes of large sets are
			// events, too, and come faster than a busy machine reads them.
			if !w.closed.Load() {
				close(w.lost)
			}
			return
		}
		for _, m := range msgs {
			if removes(m, name) {
				close(w.lost)
				return
			}
		}
	}
}

// removes says whether a message tells of the removal of the table.
func removes(m netlink.Message, name string) bool {
	const nfgenmsgLen = 4
	if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE || len(m.Data) < nfgenmsgLen || m.Data[0] != unix.NFPROTO_INET {
		return false
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[nfgenmsgLen:])
	if err != nil {
		return false
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		if ad.Type() == unix.NFTA_TABLE_NAME && ad.String() == name {
			return true
		}
	}
	return false
}

// Close ends the watch.
func (w *watch) Close() error {
	w.closed.Store(true)
	// Wakes Receive; closing under it would be a race for the file descriptor.
	_ = w.conn.SetReadDeadline(time.Unix(1, 0))
	<-w.done
	return w.conn.Close()
}
