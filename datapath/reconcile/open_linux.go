package reconcile

import (
	"errors"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/ruleset"
)

// Open makes a Reconciler for the calling thread's network namespace: Connections and Seen of the
// configuration are set. Close it when Loop has ended.
func Open(cfg Config) (*Reconciler, error) {
	connections, err := conntrack.Open(new(conntrack.Locks))
	if err != nil {
		return nil, err
	}
	seen, err := ruleset.OpenSeen()
	if err != nil {
		return nil, errors.Join(err, connections.Close())
	}
	cfg.Connections, cfg.Seen = connections, seen
	r := New(cfg)
	r.close = func() error { return errors.Join(seen.Close(), connections.Close()) }
	return r, nil
}
