package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/usage"
)

// Mistakes on the command line: each is one message on one line, as package usage makes them of those in flags.

// noArgs is for commands that take flags only.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no argument %q%s (see %[1]s --help)", cmd.CommandPath(), args[0], byFlag(cmd, args[0]))
	}
	return missingFlags(cmd)
}

// byFlag says by which flags a command takes what was given as an argument, a file or an address.
func byFlag(cmd *cobra.Command, argument string) string {
	what, names := "files", []string{"rules", "objects", "node"}
	if _, err := os.Stat(argument); err != nil {
		what, names = "addresses", []string{"source", "destination"}
	}
	names = slices.DeleteFunc(names, func(n string) bool { return cmd.Flags().Lookup(n) == nil })
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(": give %s with --%s", what, strings.Join(names, " or --"))
}

// atMost is for commands that take up to n arguments; what names them.
func atMost(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return fmt.Errorf("%s takes %s: unexpected argument %q", cmd.CommandPath(), what, args[n])
		}
		return missingFlags(cmd)
	}
}

// exactly is for commands that take n arguments; what names them.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return fmt.Errorf("%s requires %s (see %[1]s --help)", cmd.CommandPath(), what)
		}
		return atMost(n, what)(cmd, args)
	}
}

// missingFlags names the flags that a command needs and was not given. cobra looks for them
// only later.
func missingFlags(cmd *cobra.Command) error {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Annotations[cobra.BashCompOneRequiredFlag] != nil && !f.Changed {
			names = append(names, "--"+f.Name)
		}
	})
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%s needs %s (see %[1]s --help)", cmd.CommandPath(), strings.Join(names, " and "))
}

// flagError explains what is wrong with flags.
func flagError(cmd *cobra.Command, err error) error {
	if cmd.HasSubCommands() && cmd.Flags().NArg() > 0 {
		return unknownCommand(cmd, cmd.Flags().Arg(0)) // whose flag it is
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok && e.GetFlag().Value.Type() == "stringToString" {
		return fmt.Errorf("--%s %q: want KEY=VALUE", e.GetFlag().Name, e.GetValue())
	}
	return usage.Explain(cmd.CommandPath(), cmd.Flags(), err)
}

// group makes a parent command runnable. Without an argument it prints its help; an unknown
// subcommand is an error.
func group(cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true
	cmd.Args = cobra.ArbitraryArgs
	cmd.ValidArgsFunction = nothing
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return cmd.Help()
	}
}

// unknownCommand is the error for a command that does not exist. It lists those that do.
func unknownCommand(parent *cobra.Command, name string) error {
	var names []string
	for _, c := range parent.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return fmt.Errorf("unknown command %q%s; %s has the commands %s", parent.CommandPath()+" "+name, nearest.Hint(name, names), parent.CommandPath(), strings.Join(names, ", "))
}

// newHelpCommand is cobra's help command with an error for unknown commands.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Print the help of a command",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, c := range of.Commands() {
				if c.IsAvailableCommand() {
					names = append(names, c.Name()+"\t"+c.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 && of.HasSubCommands() {
				return unknownCommand(of, rest[0])
			}
			of.InitDefaultHelpFlag()
			of.InitDefaultVersionFlag()
			return of.Help()
		},
	}
}
