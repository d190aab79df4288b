package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// build describes the build of the program.
type build struct {
	Version  string `json:"version"`
	Go       string `json:"go"`       // the compiler's version
	Platform string `json:"platform"` // linux/amd64
}

func newVersionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := build{version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			if output != "text" {
				return writeValue(cmd.OutOrStdout(), output, b)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "nfqproxy %s (%s, %s)\n", b.Version, b.Go, b.Platform)
			return err
		},
	}
	outputFlag(cmd, &output)
	return cmd
}
