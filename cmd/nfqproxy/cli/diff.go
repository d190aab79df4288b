package cli

import (
	"bufio"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
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
		Short: "Compare two dumps of a node's rules",
		Long: `Compare two dumps of a node's rules (iptables-save, or nft list ruleset). Print the changes
of services and endpoints first, then all other changed rules, chain by chain with line
numbers. Counters and comment lines are ignored.

The exit code is 0 if the dumps are equal, 1 if they differ, and 2 on an error.`,
		Example: `  iptables-save > before.rules; kubectl apply -f web.yaml; iptables-save | nfqproxy diff before.rules -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("diff takes two files, BEFORE and AFTER; got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			same, err := f.run(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], args[1])
			if err == nil && !same {
				return answerNo
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	outputFlag(cmd, &f.output)
	flags.BoolVar(&f.all, "all", false, "print every changed rule, including rules of the services above")
	return cmd
}

// run compares the files and reports whether they are equal.
func (f *diffFlags) run(stdin io.Reader, stdout, stderr io.Writer, before, after string) (bool, error) {
	if before == "-" && after == "-" {
		return false, fmt.Errorf("diff - -: only one file can be standard input")
	}
	c, err := f.compare(stdin, stderr, before, after)
	if err != nil {
		return false, err
	}
	out := bufio.NewWriter(stdout)
	if f.output != "text" {
		err = writeValue(out, f.output, c)
	} else {
		err = c.WriteText(out)
	}
	if err == nil {
		err = out.Flush()
	}
	return c.Same(), err
}

// compare compares two dumps of iptables, or two outputs of nft.
func (f *diffFlags) compare(stdin io.Reader, stderr io.Writer, before, after string) (*audit.Comparison, error) {
	files, others, stdin, err := readNFT(stdin, []string{before, after})
	switch {
	case err != nil:
		return nil, err
	case len(files) == 2:
		return audit.CompareNFTables(files[0].ruleset, files[1].ruleset, f.all), nil
	case len(files) == 1:
		return nil, fmt.Errorf("%s is the output of nft, and %s is not: give two files of one kind", files[0].name, rulesName(others[0]))
	}
	was, err := onlyDump(stdin, stderr, before, iptables.FamilyUnknown)
	if err != nil {
		return nil, err
	}
	is, err := onlyDump(stdin, stderr, after, was.Family)
	if err != nil {
		return nil, err
	}
	if was.Family != is.Family {
		return nil, fmt.Errorf("%s is of %s and %s of %s: give two dumps of one family", rulesName(before), was.Family, rulesName(after), is.Family)
	}
	return audit.Compare(was, is, f.all), nil
}
