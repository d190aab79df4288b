package main

import (
	"bufio"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/datapath/sim/audit"
	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// The exit codes of nfqproxy diff are those of diff(1).
const (
	exitDiffer  = 1
	exitTrouble = 2
)

// diffFlags are the flags of nfqproxy diff.
type diffFlags struct {
	output string
	all    bool
}

func newDiffCommand() *cobra.Command {
	var f diffFlags
	cmd := &cobra.Command{
		Use:   "diff BEFORE AFTER",
		Short: "Show what changed between two dumps of iptables rules",
		Long: `Show what changed between two dumps of a node's rules, as iptables-save prints them: first
services and their endpoints, then the rules that these do not tell, chain by chain with
the numbers of the lines. Counters and comment lines of the files do not count.

The exit code is 0 if the dumps are the same, 1 if they differ, and 2 if there is trouble.`,
		Example: `  iptables-save > before.rules; kubectl apply -f web.yaml; iptables-save | nfqproxy diff before.rules -`,
		// Whatever is wrong with the command line is trouble.
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return trouble(cmd, fmt.Errorf("diff: want two files, BEFORE and AFTER; there are %d", len(args)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			same, err := f.run(cmd.InOrStdin(), cmd.OutOrStdout(), args[0], args[1])
			switch {
			case err != nil:
				return trouble(cmd, err)
			case !same:
				return exitCode(exitDiffer)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.output, "output", "o", "text", "text or json")
	flags.BoolVar(&f.all, "all", false, "all differences of rules, also those that the services show already")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return trouble(cmd, flagError(cmd, err)) })
	return cmd
}

// trouble says what is wrong, and makes it the exit code of trouble.
func trouble(cmd *cobra.Command, err error) error {
	fmt.Fprintln(cmd.ErrOrStderr(), "nfqproxy:", err)
	return exitCode(exitTrouble)
}

// run compares the files, and says whether they are the same.
func (f *diffFlags) run(stdin io.Reader, stdout io.Writer, before, after string) (bool, error) {
	if f.output != "text" && f.output != "json" {
		return false, fmt.Errorf("--output %q: want text or json", f.output)
	}
	if before == "-" && after == "-" {
		return false, fmt.Errorf("diff - -: only one of the two can be standard input")
	}
	was, err := readRules(stdin, before, iptables.FamilyUnknown)
	if err != nil {
		return false, err
	}
	is, err := readRules(stdin, after, was.Family)
	if err != nil {
		return false, err
	}
	if was.Family != is.Family {
		return false, fmt.Errorf("%s is of %s and %s of %s: give two dumps of one family", rulesName(before), was.Family, rulesName(after), is.Family)
	}
	c := audit.Compare(was, is, f.all)
	out := bufio.NewWriter(stdout)
	if f.output == "json" {
		err = writeIndented(out, c)
	} else {
		err = c.WriteText(out)
	}
	if err == nil {
		err = out.Flush()
	}
	return c.Same(), err
}
