//go:build !linux

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// These are there on every system, so that help does not differ; they need Linux.

func newRunCommand() *cobra.Command {
	return linuxOnly("run", "Serve as the service proxy of this node")
}

func newCleanupCommand() *cobra.Command {
	return linuxOnly("cleanup", "Remove everything that nfqproxy left in this node's kernel")
}

func linuxOnly(name, short string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              short + " (Linux only)",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New(name + " needs the Linux kernel; explain and render work here")
		},
	}
}
