package cli

import (
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/executable"
	"github.com/nfqproxy/nfqproxy/control/live/daemon"
)

// newRunCommand makes the command that becomes the daemon: its flags are the daemon's, so that mistakes,
// completion and help are as for other commands.
func newRunCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run [--kubeconfig FILE | --objects PATH...]",
		Short: "Run the service proxy of this node",
		Long:  daemon.Help + "\n\nThis command executes nfqproxyd, the daemon, which takes the same flags.",
		Example: `  nfqproxy run --kubeconfig /etc/nfqproxy/kubeconfig --cluster-cidr 10.244.0.0/16
  nfqproxy run --config /var/lib/kube-proxy/config.conf --takeover
  nfqproxy run --objects ./manifests --cluster-cidr 10.244.0.0/16 --flow-log -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := executable.FindDaemon()
			if err != nil {
				return err
			}
			// The flags as they were given: cobra has parsed them only to find mistakes.
			err = syscall.Exec(path, append([]string{executable.Daemon}, os.Args[2:]...), os.Environ())
			return fmt.Errorf("execute %s: %w", path, err)
		},
	}
	new(daemon.Flags).Add(cmd.Flags())
	return cmd
}
