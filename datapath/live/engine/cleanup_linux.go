package engine

import (
	"errors"

	"github.com/nfqproxy/nfqproxy/datapath/live/hostfilter"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// Cleanup removes the kernel rules that an earlier datapath left in the calling thread's network namespace, those in
// the host's firewall included, and returns what it removed, one line for each. It fails while a datapath runs there.
func Cleanup() (removed []string, err error) {
	if _, err := Preflight(); err != nil {
		return nil, err
	}
	lock, err := lockNamespace()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	tables, err := ruleset.Cleanup()
	for _, t := range tables {
		removed = append(removed, "nftables table "+t)
	}
	// After our tables, so that no flow is still translated and then dropped by a firewall.
	lines, e := hostfilter.Remove()
	return append(removed, lines...), errors.Join(err, e)
}
