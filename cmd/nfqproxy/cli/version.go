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
			switch output {
			case "text":
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "nfqproxy %s (%s, %s)\n", b.Version, b.Go, b.Platform)
				return err
			case "json":
				return writeIndented(cmd.OutOrStdout(), b)
			}
			return fmt.Errorf("--output %q: want text or json", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	complete(cmd, "output", []string{"text", "json"})
	return cmd
}
