// Package labs has the built-in labs of the program, and the experiments that it ships.
package labs

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
)

//go:embed *.yaml experiments/*.yaml
var files embed.FS

// Names are the names of the labs, sorted.
func Names() []string { return names(".") }

// File returns the file of a lab.
func File(name string) ([]byte, error) { return file(".", "built-in lab", name) }

// Experiments are the names of the experiments, sorted.
func Experiments() []string { return names("experiments") }

// ExperimentFile returns the file of an experiment.
func ExperimentFile(name string) ([]byte, error) {
	return file("experiments", "shipped experiment", name)
}

func names(folder string) (all []string) {
	entries, err := files.ReadDir(folder)
	if err != nil {
		panic(err) // an embedded directory is always there
	}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".yaml"); ok {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

func file(folder, what, name string) ([]byte, error) {
	all := names(folder)
	if !slices.Contains(all, name) {
		return nil, fmt.Errorf("no %s %q%s; %[1]ss: %[4]s", what, name, nearest.Hint(name, all), strings.Join(all, ", "))
	}
	return files.ReadFile(path.Join(folder, name+".yaml"))
}
