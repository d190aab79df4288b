package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/datapath"
	"github.com/nfqproxy/nfqproxy/datapath/takeover"
)

// predecessor is what kube-proxy left on this node.
type predecessor struct {
	found *takeover.Rules // nil: nothing is to be removed
}

// look says what kube-proxy left and, if it is wanted, what will be removed of it.
func (p *predecessor) look(wanted bool, log *slog.Logger) error {
	found, err := takeover.Find()
	if err != nil {
		if wanted {
			return fmt.Errorf("--takeover: %w", err)
		}
		log.Debug("cannot tell whether kube-proxy left something", "error", err)
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
		log.Warn("kube-proxy's rules are still in the kernel: new flows are decided by us before they count, but packets pass them for nothing; --takeover removes them", "tables", len(found.Lines()))
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
	log.Info("takeover: what kube-proxy left is removed; if it appears again, kube-proxy still runs on this node")
	return nil
}

func newCleanupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that nfqproxy left in this node's kernel",
		Long: `Remove the kernel rules that nfqproxy left, as it does after a crash and with
--keep-rules-on-exit, and its chains NFQPROXY-* in the table "filter" of iptables, which it
leaves whenever it stops. Connections that it translated go on, for the kernel's connection
table remembers them, as long as somebody else's rules keep address translation on.
nfqproxy must not be running.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			removed, err := datapath.Cleanup()
			for _, what := range removed {
				_, e := fmt.Fprintln(cmd.OutOrStdout(), "removed "+what)
				err = errors.Join(err, e)
			}
			if err == nil && len(removed) == 0 {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "nothing of nfqproxy's is here")
			}
			return err
		},
	}
}
