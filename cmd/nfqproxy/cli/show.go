package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/bundle"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

func newShowCommand() *cobra.Command {
	var file, extract string
	var zone zoneFlags
	cmd := &cobra.Command{
		Use:   "show BUNDLE",
		Short: "Show a bundle from collect or watch-for",
		Long: `Show a bundle from nfqproxy collect or watch-for, a file or directory: for watch-for the
flow with its decision, service, connection entries and packets; and a list of the
bundle's files. --file prints one of them; --extract writes all of them to a directory,
which is a bundle, too. It needs neither root nor a kernel.`,
		Example: `  nfqproxy show nfqproxy-node-a-1f.tgz
  nfqproxy show nfqproxy-node-a-1f.tgz --file conntrack4.txt
  nfqproxy trace --node nfqproxy-node-a-1f.tgz --protocol tcp --source 10.244.1.9 --destination 10.96.0.20:80
  nfqproxy show nfqproxy-node-a-1f.tgz --extract bundle && tcpdump -r bundle/packets.pcapng`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("show takes one BUNDLE, or - for standard input; got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := openBundle(args[0], cmd.InOrStdin())
			switch {
			case err != nil:
				return err
			case file != "" && extract != "":
				return errors.New("--file and --extract cannot be used together: give one of them")
			case extract != "":
				return extractBundle(b, extract)
			case file != "":
				return printFile(cmd.OutOrStdout(), b, file)
			}
			o := text.Options{Style: text.StyleFor(cmd.OutOrStdout())}
			if o.Zone, err = zone.location(); err != nil {
				return err
			}
			text, err := text.Bundle(b, o)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&file, "file", "", "print this file of the bundle")
	flags.StringVar(&extract, "extract", "", "write all files into this directory, which must not exist")
	zone.add(flags)
	return cmd
}

func openBundle(name string, stdin io.Reader) (*bundle.Bundle, error) {
	if name != "-" {
		return bundle.Open(name)
	}
	b, err := bundle.Read(stdin)
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	return b, nil
}

func printFile(w io.Writer, b *bundle.Bundle, name string) error {
	if !slices.ContainsFunc(b.Files, func(f bundle.File) bool { return f.Name == name }) {
		var names []string
		for _, f := range b.Files {
			names = append(names, f.Name)
		}
		return fmt.Errorf("--file %s: the bundle has %v", name, names)
	}
	if name == bundle.PacketsFile {
		return fmt.Errorf("--file %s is binary: write it with --extract", name)
	}
	_, err := w.Write(b.File(name))
	return err
}

func extractBundle(b *bundle.Bundle, dir string) error {
	if err := b.Extract(dir); err != nil {
		return fmt.Errorf("--extract: %w", err)
	}
	return nil
}
