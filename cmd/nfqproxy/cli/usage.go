package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/usage"
)

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
	if c.HasAvailableInheritedFlags() {
		b.WriteString("\n\nGlobal Flags:\n" + strings.TrimRight(c.InheritedFlags().FlagUsages(), " \n"))
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
