package cli

import (
	"bufio"
	"fmt"
	"io"

	"github.com/spf13/cobra"
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
		Short: "Compare two dumps or bundles of a node",
		Long: `Compare the rules of a node at two times, or of two nodes. BEFORE and AFTER are each a
dump (iptables-save, nft list ruleset), IPVS virtual servers (ipvsadm -Sn, ipvsadm -Ln),
or a node's bundle (nfqproxy collect: a directory or .tar.gz), which has all of these.

Changes of services and endpoints come first, then those of virtual servers, and then all
other changed rules, chain by chain with line numbers. Counters and comment lines are
ignored. If one side has kube-proxy's rules in iptables and the other in nftables, the
services are compared. The last lines list what only one side has, which is not compared.

The exit code is 0 if both are equal, 1 if they differ, and 2 on an error.`,
		Example: `  iptables-save > before.rules; kubectl apply -f web.yaml; iptables-save | nfqproxy diff before.rules -
  nfqproxy diff node-a.tar.gz node-b.tar.gz`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("diff takes two files or bundles, BEFORE and AFTER; got %d", len(args))
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
