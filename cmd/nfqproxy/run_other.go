//go:build !linux

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// newRunCommand is there on every system, so that help does not differ; it needs Linux.
func newRunCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "run",
		Short:              "Serve as the service proxy of this node (Linux only)",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("run needs the Linux kernel; explain and render work here")
		},
	}
}
