package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
	"github.com/nfqproxy/nfqproxy/datapath/live/takeover"
)

func newCleanupCommand() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove nfqproxy's rules from this node's kernel",
		Long: `Remove the kernel rules that remain after a crash or with --keep-rules-on-exit, and the
chains NFQPROXY-* in the iptables table "filter", which remain after every stop.
Translated connections continue, because they have entries in the kernel's connection
table, as long as other rules keep address translation enabled. nfqproxy must not be
running.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := awaitSuccessor(wait); err != nil {
				return err
			}
			removed, err := engine.Cleanup()
			for _, what := range removed {
				_, e := fmt.Fprintln(cmd.OutOrStdout(), "removed "+what)
				err = errors.Join(err, e)
			}
			if err == nil && len(removed) == 0 {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "no rules of nfqproxy found")
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&wait, "wait-for-kube-proxy", 0, "wait up to this long for kube-proxy (mode iptables or nftables) to write its service rules; remove nothing without them")
	return cmd
}

// successorInterval is the interval of the checks for kube-proxy's rules.
const successorInterval = 500 * time.Millisecond

// awaitSuccessor waits until kube-proxy's rules translate, if there is a time to wait. kube-proxy is healthy
// before it has written them: on a cluster with 10,000 services it takes 20 seconds.
func awaitSuccessor(wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	for end := time.Now().Add(wait); ; time.Sleep(successorInterval) {
		found, err := takeover.Find()
		if err == nil && found.Serve() {
			return nil
		}
		if time.Now().Before(end) {
			continue
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("kube-proxy has not written its service rules within %s: nothing was removed, so nfqproxy's rules continue to serve (check whether kube-proxy runs on this node)", wait)
	}
}
