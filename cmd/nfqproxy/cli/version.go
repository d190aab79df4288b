package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build describes the build of the program.
type build struct {
	Version  string `json:"version"`
	Go       string `json:"go"`       // the compiler's version
	Platform string `json:"platform"` // linux/amd64
}

// unknownVersion is the version of a program that neither the linker nor the compiler gave one.
const unknownVersion = "unknown"

// builtVersion is the version of a program that a plain "go build" made: the commit, in the form of the Makefile's versions.
func builtVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unknownVersion
	}
	return versionOf(info.Settings)
}

// versionOf makes a version of what the compiler stamps into programs that it builds in a repository.
func versionOf(settings []debug.BuildSetting) string {
	const abbreviated = 12 // as in the Makefile
	revision, modified := "", ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), abbreviated)]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "-dirty"
		}
	}
	if revision == "" {
		return unknownVersion
	}
	return revision + modified
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
