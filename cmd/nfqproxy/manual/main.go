// Command manual writes the manual pages of nfqproxy's commands and its shell completions, which packages
// contain, into a directory:
//
//	go run ./cmd/nfqproxy/manual DIR
//
//	DIR/man1/nfqproxy-run.1, ...
//	DIR/completion/nfqproxy.bash, nfqproxy.zsh, nfqproxy.fish
//
// The pages have the date SOURCE_DATE_EPOCH. It is a program of its own, so that nfqproxy is not linked to what converts them.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manual DIR")
		os.Exit(2)
	}
	if err := run(cli.NewCommand(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

func run(nfqproxy *cobra.Command, dir string) error {
	pages, completion := filepath.Join(dir, "man1"), filepath.Join(dir, "completion")
	if err := errors.Join(os.MkdirAll(pages, 0o755), os.MkdirAll(completion, 0o755)); err != nil {
		return err
	}
	nfqproxy.DisableAutoGenTag = true // names cobra and a second date
	return errors.Join(
		doc.GenManTree(nfqproxy, &doc.GenManHeader{Section: "1", Source: "nfqproxy", Manual: "nfqproxy"}, pages),
		nfqproxy.GenBashCompletionFileV2(filepath.Join(completion, "nfqproxy.bash"), true),
		nfqproxy.GenZshCompletionFile(filepath.Join(completion, "nfqproxy.zsh")),
		nfqproxy.GenFishCompletionFile(filepath.Join(completion, "nfqproxy.fish"), true),
	)
}
