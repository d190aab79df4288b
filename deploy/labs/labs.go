// Package labs has the built-in labs of the program.
package labs

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
)

//go:embed *.yaml
var files embed.FS

// Names are the names of the labs, sorted.
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

// File returns the file of a lab.
func File(name string) ([]byte, error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("no built-in lab %q%s; built-in labs: %s", name, nearest.Hint(name, Names()), strings.Join(Names(), ", "))
	}
	return files.ReadFile(name + ".yaml")
}
