package daemon

import (
	"fmt"
	"log/slog"

	"github.com/nfqproxy/nfqproxy/datapath/live/takeover"
)

// predecessor is kube-proxy, by the rules that it left in this node's kernel.
type predecessor struct {
	found *takeover.Rules // nil: nothing to remove
}

// look looks for kube-proxy's rules and logs them; if wanted, finish removes them.
func (p *predecessor) look(wanted bool, log *slog.Logger) error {
	found, err := takeover.Find()
	if err != nil {
		if wanted {
			return fmt.Errorf("--takeover: %w", err)
		}
		log.Debug("cannot look for kube-proxy's rules", "error", err)
		return nil
	}
	switch {
	case wanted:
		for _, line := range found.Lines() {
			log.Info("takeover: will remove " + line)
		}
		for _, line := range found.Notes() {
			log.Warn("takeover: " + line)
		}
		p.found = found
	case !found.Empty():
		log.Warn("kube-proxy's rules are still in the kernel: nfqproxy decides new flows before they apply, but packets still traverse them; --takeover removes them", "tables", len(found.Lines()))
	}
	return nil
}

// finish removes what was found, now that our own rules are in place.
func (p *predecessor) finish(log *slog.Logger) error {
	if p.found == nil || p.found.Empty() {
		return nil
	}
	if err := p.found.Remove(); err != nil {
		return err
	}
	log.Info("takeover: removed kube-proxy's rules; if they appear again, kube-proxy still runs on this node")
	return nil
}
