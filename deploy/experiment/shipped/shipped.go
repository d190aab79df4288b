// Package shipped has the experiments of the program.
package shipped

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
)

//go:embed *.yaml
var files embed.FS

// Names are the names of the experiments, sorted.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // an embedded directory is always there
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	slices.Sort(names)
	return names
}

// File returns the file of an experiment.
func File(name string) ([]byte, error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("no shipped experiment %q%s; shipped experiments: %s", name, nearest.Hint(name, Names()), strings.Join(Names(), ", "))
	}
	return files.ReadFile(name + ".yaml")
}
