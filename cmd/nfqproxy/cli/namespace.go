package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

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
