package cli

import (
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// pluginName is the name by which kubectl starts this program as a plugin.
const pluginName = "kubectl-nfqproxy"

// isPlugin reports whether the program was started by that name.
func isPlugin(program string) bool {
	return strings.TrimSuffix(filepath.Base(program), ".exe") == pluginName
}

// exampleCommand is a command in an example.
var exampleCommand = regexp.MustCompile(`(?m)(^ *|[(|;] *)nfqproxy `)

// asPlugin makes a plugin of kubectl of the commands: those that observe show the whole cluster by default,
// and help has the plugin's name.
func asPlugin(root *cobra.Command) {
	root.Use = pluginName
	if root.Annotations == nil {
		root.Annotations = make(map[string]string)
	}
	root.Annotations[cobra.CommandDisplayNameAnnotation] = "kubectl nfqproxy"
	for _, cmd := range root.Commands() {
		cmd.Example = exampleCommand.ReplaceAllString(cmd.Example, "${1}kubectl nfqproxy ")
		if f := cmd.Flags().Lookup("cluster"); f != nil {
			_ = f.Value.Set("true") // which a bool takes
			f.DefValue = "true"
		}
	}
}
