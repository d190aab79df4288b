package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// namespaceFlags are -n and -A, as kubectl has them.
type namespaceFlags struct {
	namespace string
	all       bool
}

// add adds both, to a command that lists objects; of is whose namespace it is.
func (f *namespaceFlags) add(cmd *cobra.Command, of, otherwise string) {
	namespaceFlag(cmd, &f.namespace, of, otherwise)
	cmd.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "all namespaces, whatever --namespace is")
}

// selected is the namespace; empty: all.
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

// inNamespace is a name with its namespace: NAMESPACE/NAME as it is, and NAME in the given namespace, if there is one.
func inNamespace(namespace, name string) string {
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return name
	}
	return namespace + "/" + name
}
