//go:build !linux

package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

// These commands exist on every system, so that help does not differ; they require Linux.

func newRunCommand() *cobra.Command {
	return linuxOnly("run", "Run the service proxy of this node")
}

func newCleanupCommand() *cobra.Command {
	return linuxOnly("cleanup", "Remove nfqproxy's rules from this node's kernel")
}

func linuxOnly(name, short string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              short + " (Linux only)",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New(name + " requires Linux; on this system, commands that read files, such as explain and trace, and commands that connect to a daemon work")
		},
	}
}
