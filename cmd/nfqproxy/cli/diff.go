package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/paper/savednode"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftrules"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
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

// compare compares two files or bundles.
func (f *diffFlags) compare(stdin io.Reader, stderr io.Writer, before, after string) (*audit.Comparison, error) {
	was, err := readHost(stdin, stderr, before, iptables.FamilyUnknown)
	if err != nil {
		return nil, err
	}
	family := iptables.FamilyUnknown // of a text that does not show it
	if len(was.Dumps) == 1 {
		family = was.Dumps[0].Family
	}
	is, err := readHost(stdin, stderr, after, family)
	if err != nil {
		return nil, err
	}
	c, compared := audit.CompareHosts(was, is, f.all)
	if !compared {
		return nil, fmt.Errorf("%s has %s, but %s has %s: give two of the same kind", was.Name, contents(was), is.Name, contents(is))
	}
	if savednode.IsBundle(before) && savednode.IsBundle(after) {
		c.Notes = append(c.Notes, "addresses, routes, sysctls and ipsets of the bundles")
	}
	return c, nil
}

// contents says what there is of a host.
func contents(h *audit.Host) string {
	var list []string
	for _, d := range h.Dumps {
		list = append(list, fmt.Sprintf("rules of iptables for %s", d.Family))
	}
	if h.Ruleset != nil {
		list = append(list, "rules of nftables")
	}
	if h.IPVS != nil {
		list = append(list, "virtual servers of IPVS")
	}
	return strings.Join(list, " and ")
}

// readHost reads what there is of a host: from a file, or from the bundle of a node.
func readHost(stdin io.Reader, stderr io.Writer, path string, family iptables.Family) (*audit.Host, error) {
	if savednode.IsBundle(path) {
		return readBundle(stderr, path)
	}
	h := &audit.Host{Name: rulesName(path)}
	in, err := openInput(stdin, path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text := bufio.NewReaderSize(in, peeked)
	begin, err := text.Peek(peeked)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", h.Name, withoutPath(err))
	}
	switch {
	case looksLikeRuleset(string(begin)):
		h.Ruleset, err = readRuleset(h.Name, text)
	case ipvs.Looks(pasted.Uncover(string(begin), ipvs.IsLine)):
		h.IPVS, err = readPasted(text, ipvs.Read, ipvs.IsLine)
	default:
		h.Dumps, err = readRules(stderr, []ruleFile{{name: h.Name, open: func() (io.ReadCloser, error) { return io.NopCloser(text), nil }}}, family)
		if err == nil {
			err = ofOneHost(h.Dumps)
		}
		return h, err
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	return h, nil
}

// ofOneHost is an error unless the dumps may be of one host.
func ofOneHost(dumps []*iptables.Dump) error {
	for _, family := range familiesOf(dumps) {
		if _, err := hostRulesOf(dumps, family); err != nil {
			return err
		}
	}
	return nil
}

// readBundle reads the bundle of a node.
func readBundle(stderr io.Writer, path string) (*audit.Host, error) {
	n, err := savednode.Open(path)
	if err != nil {
		return nil, err
	}
	h := &audit.Host{Name: path}
	var files []ruleFile
	for _, r := range n.IPTables(iptables.FamilyUnknown) {
		files = append(files, savedFile(r))
	}
	if h.Dumps, err = readRules(stderr, files, iptables.FamilyUnknown); err != nil {
		return nil, err
	}
	if r, ok := n.NFTables(); ok {
		all, err := readRuleset(r.File, bytes.NewReader(r.Text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.File, err)
		}
		h.Ruleset = nftrules.RulesetWithoutIPTables(all, h.Dumps)
	} else if n.Has("nftables.rules") {
		h.Ruleset = new(nftables.Ruleset)
	}
	if h.IPVS, err = n.IPVS(); err != nil {
		return nil, err
	}
	if len(h.Dumps) == 0 && h.Ruleset == nil && h.IPVS == nil {
		return nil, fmt.Errorf("%s: the bundle has no rules%s", path, (&ruleInput{node: n}).why())
	}
	return h, nil
}
