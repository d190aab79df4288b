package ruleset

import (
	"sync/atomic"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/nft"
)

// watch notices changes of our table by other programs.
type watch struct {
	*nft.Watch
	// self is the netlink port of our own connection, whose changes do not count.
	self atomic.Uint32
	// dynamic are the sets whose elements the kernel's rules add, and package reconcile removes.
	dynamic map[string]bool
}

// watchTable watches our table in the calling thread's network namespace.
func watchTable(s *sets) (*watch, error) {
	w := &watch{dynamic: make(map[string]bool)}
	for _, set := range s.all() {
		if set.nft.Dynamic {
			w.dynamic[set.name] = true
		}
	}
	var err error
	w.Watch, err = nft.NewWatch(w.concerns)
	return w, err
}

// concerns reports whether a message is about a change of our table by another program. A message
// has the port of the connection that made the change (nf_tables_api.c, nft_ctx).
func (w *watch) concerns(m netlink.Message) bool {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || m.Header.Type == nft.MessageType(unix.NFT_MSG_NEWGEN) || m.Header.PID == w.self.Load() {
		return false
	}
	family, ad, err := nft.Body(m)
	if err != nil {
		return true
	}
	if family != unix.NFPROTO_INET {
		return false
	}
	elements := m.Header.Type == nft.MessageType(unix.NFT_MSG_NEWSETELEM) || m.Header.Type == nft.MessageType(unix.NFT_MSG_DELSETELEM)
	for ad.Next() {
		switch {
		case ad.Type() == unix.NFTA_TABLE_NAME: // of whatever kind: the first attribute is the table's name
			if ad.String() != TableName {
				return false
			}
			if !elements {
				return true
			}
		case elements && ad.Type() == unix.NFTA_SET_ELEM_LIST_SET:
			return !w.dynamic[ad.String()]
		}
	}
	return false
}
