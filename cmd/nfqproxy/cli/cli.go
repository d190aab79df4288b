// Package cli is the nfqproxy command: it reads the command line and connects the other packages.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/view/terminal"
)

// version is set by the linker; see the Makefile.
var version = unknownVersion

// Main executes the command line of this process and returns its exit code: see package usage.
func Main() int {
	if version == unknownVersion {
		version = builtVersion()
	}
	return runProcess(connect)
}

func runProcess(connect connector) int {
	// A closed reader of the flow log or of the messages must not end the proxy.
	signal.Ignore(syscall.SIGPIPE)
	root := newRootCommand(connect)
	if isPlugin(os.Args[0]) {
		asPlugin(root)
	}
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		// SIGINT and SIGTERM end the context of commands that watch it. For all others they
		// end the process, unless a command handles them itself: a signal that is caught and
		// not handled would be lost.
		if cmd.Annotations[endsByContext] == "" {
			return
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		context.AfterFunc(ctx, stop) // a second signal ends the process at once
		cmd.SetContext(ctx)
	}
	return execute(context.Background(), root, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// endsByContext is the annotation of commands that end when their context does.
const endsByContext = "nfqproxy.ends-by-context"

// ending returns the annotations of such a command.
func ending() map[string]string { return map[string]string{endsByContext: "true"} }

// execute runs a command. All output goes through writers that make control characters
// visible, whatever their origin: see package visible.
func execute(ctx context.Context, root *cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	out, messages := terminal.NewWriter(listener{stdout}), terminal.NewWriter(stderr)
	defer func() { _, _ = out.Flush(), messages.Flush() }()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(out)
	root.SetErr(messages)
	err := root.ExecuteContext(ctx)
	code, message := exitCodeOf(err)
	if message {
		fmt.Fprintln(messages, "nfqproxy:", withoutCall(err))
	}
	return code
}

// withoutCall is an error's text without the name of the system call that did not find a file, or could not read or make it.
func withoutCall(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*fs.PathError](err); ok && slices.Contains([]string{"open", "stat", "lstat", "read", "mkdir"}, e.Op) {
		text = strings.Replace(text, e.Error(), e.Path+": "+e.Err.Error(), 1)
	}
	return text
}

// NewCommand returns the nfqproxy command with all subcommands and flags, for tests of the
// documentation.
func NewCommand() *cobra.Command { return newRootCommand(connect) }

// newRootCommand makes the command. Clients of a flow API connect with connect.
func newRootCommand(connect connector) *cobra.Command {
	root := &cobra.Command{
		Use:   "nfqproxy",
		Short: "Serve Kubernetes Services in userspace and explain each decision",
		Long: `nfqproxy shows which way a connection to a Kubernetes Service takes, and why: on nodes, in
labs, and from files. Its daemon, nfqproxyd, replaces kube-proxy on a node: a rule with a
netfilter queue (NFQUEUE) passes it the first packet of each new flow. It selects the
endpoint as kube-proxy's chains would, and writes the translation to the kernel's
connection table. From then on, the kernel alone translates the flow's packets.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	addGroup(root, "look", "Look at nodes, clusters and labs:", newFlowsCommand(connect), newTopCommand(connect), newWebCommand(connect), newWhyCommand(connect), newDoctorCommand(connect),
		newTimelineCommand(connect), newObjectsCommand(connect), newStatusCommand(connect), newStepCommand(connect), newWatchForCommand(connect), newRecordCommand(connect), newShowCommand(), newCollectCommand())
	addGroup(root, "explain", "Explain files:", newExplainCommand(), newRenderCommand(), newTraceCommand(), newServicesCommand(), newDiffCommand(), newReplayCommand())
	addGroup(root, "learn", "Learn and experiment:", newLabCommand(), newLearnCommand(), newExperimentCommand())
	addGroup(root, "operate", "Operate nodes and clusters:", newRunCommand(), newExportCommand(connect), newBalanceCommand(connect), newCleanupCommand(), newInstallCommand(), newUninstallCommand())
	root.AddCommand(newVersionCommand())
	completeNames(root, connect)
	root.SetHelpCommand(newHelpCommand())
	root.SetFlagErrorFunc(flagError)
	root.InitDefaultCompletionCmd("completion")
	root.SetUsageFunc(writeUsage)
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "node-name" { // as many notes and scripts have it
			name = "node"
		}
		return pflag.NormalizedName(name)
	})
	group(root)
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			group(c)
		}
	}
	useConfig(root)
	return root
}

// addGroup adds commands, which help lists together.
func addGroup(root *cobra.Command, id, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: id, Title: title})
	for _, c := range commands {
		c.GroupID = id
	}
	root.AddCommand(commands...)
}
