package cli

import (
	"errors"
	"fmt"
	"io"
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

// namespaceFlags holds -n and -A, which mean what they mean in kubectl.
type namespaceFlags struct {
	namespace string
	all       bool
}

// add adds both flags to a command that lists objects; of says whose namespace it is.
func (f *namespaceFlags) add(cmd *cobra.Command, of, otherwise string) {
	namespaceFlag(cmd, &f.namespace, of, otherwise)
	cmd.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "all namespaces; overrides --namespace")
}

// selected returns the namespace; empty: all of them.
func (f *namespaceFlags) selected() string {
	if f.all {
		return ""
	}
	return f.namespace
}

// namespaceFlag adds -n alone, to a command that takes names.
func namespaceFlag(cmd *cobra.Command, namespace *string, of, otherwise string) {
	cmd.Flags().StringVarP(namespace, "namespace", "n", "", "namespace of "+of+" (default: "+otherwise+")")
}

// inNamespace adds the namespace, if there is one, to a name that has none.
func inNamespace(namespace, name string) string {
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return name
	}
	return namespace + "/" + name
}

// writeUsage writes the usage of a command as cobra does by default, with the flags below their headings. cobra's templates
// would do the same, but with text/template the linker keeps all methods of all types: 85 MB instead of 55.
func writeUsage(c *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:")
	if c.Runnable() {
		b.WriteString("\n  " + c.UseLine())
	}
	if c.HasAvailableSubCommands() {
		b.WriteString("\n  " + c.CommandPath() + " [command]")
	}
	if c.HasExample() {
		b.WriteString("\n\nExamples:\n" + c.Example)
	}
	if c.HasAvailableSubCommands() {
		if len(c.Groups()) == 0 {
			writeCommands(&b, c, "", "Available Commands:")
		} else {
			for _, g := range c.Groups() {
				writeCommands(&b, c, g.ID, g.Title)
			}
			if !c.AllChildCommandsHaveGroup() {
				writeCommands(&b, c, "", "Additional Commands:")
			}
		}
	}
	if c.HasAvailableLocalFlags() {
		b.WriteString("\n\nFlags:\n" + strings.TrimRight(usage.Flags(c.LocalFlags()), " \n"))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\nUse \"%s [command] --help\" for more information about a command.", c.CommandPath())
	}
	_, err := fmt.Fprintln(c.OutOrStderr(), b.String())
	return err
}

// writeCommands lists the commands of a group.
func writeCommands(w io.Writer, c *cobra.Command, group, title string) {
	fmt.Fprintf(w, "\n\n%s", title)
	for _, sub := range c.Commands() {
		if sub.GroupID == group && (sub.IsAvailableCommand() || sub.Name() == "help") {
			fmt.Fprintf(w, "\n  %-*s %s", sub.NamePadding(), sub.Name(), sub.Short)
		}
	}
}
