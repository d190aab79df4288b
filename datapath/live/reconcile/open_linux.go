package reconcile

import (
	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// Open makes a Reconciler for the calling thread's network namespace: Connections and Seen of the
// configuration are set. It changes the tables by rules, which stays open. Close it when Loop has ended.
func Open(cfg Config, rules *ruleset.Connection) (*Reconciler, error) {
	connections, err := conntrack.Open(new(conntrack.Locks))
	if err != nil {
		return nil, err
	}
	cfg.Connections, cfg.Seen = connections, rules.Seen()
	r := New(cfg)
	r.close = connections.Close
	return r, nil
}
