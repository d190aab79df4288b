package ruleset

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// watch notices changes of our tables by other programs.
type watch struct {
	*nft.Watch
	// self is our own connection, whose changes do not count.
	self *Connection
	// dynamic are the sets whose elements the kernel's rules add, and package reconcile removes.
	dynamic map[string]bool
}

// watchTables watches our tables in the calling thread's network namespace. self is our own connection.
func watchTables(t tables, self *Connection) (*watch, error) {
	w := &watch{self: self, dynamic: make(map[string]bool)}
	for _, set := range t.sets() {
		if set.dynamic {
			w.dynamic[set.name] = true
		}
	}
	var err error
	if w.Watch, err = nft.NewWatch(w.concerns); err != nil {
		return nil, err
	}
	// Each element is an event. Lost ones make an audit thorough.
	if err := w.SetReadBuffer(eventBuffer); err != nil {
		return nil, errors.Join(fmt.Errorf("enlarge the buffer for events of nftables: %w", err), w.Close())
	}
	return w, nil
}

// concerns reports whether an event is a change of our tables by another program.
func (w *watch) concerns(e nft.Event) bool {
	if e.Port == w.self.port.Load() || e.Family != unix.NFPROTO_IPV4 && e.Family != unix.NFPROTO_IPV6 || e.Table() != TableName {
		return false
	}
	elements := e.Kind == unix.NFT_MSG_NEWSETELEM || e.Kind == unix.NFT_MSG_DELSETELEM
	return !elements || !w.dynamic[e.Text(unix.NFTA_SET_ELEM_LIST_SET)]
}
