// Package programs knows which Debian package has a program that labs, the course or tests call.
//
// It is a ground package.
package programs

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed debian.txt
var debian string

// packages are the Debian packages by program.
var packages = parse(debian)

// parse reads lines "PACKAGE: PROGRAM ...". Lines that begin with # are comments.
func parse(text string) map[string]string {
	of := make(map[string]string)
	for line := range strings.Lines(text) {
		name, list, _ := strings.Cut(line, ":")
		if strings.HasPrefix(line, "#") {
			continue
		}
		for _, program := range strings.Fields(list) {
			of[program] = name
		}
	}
	return of
}

// Package returns the Debian package that has a program; false: the list does not know it.
func Package(program string) (string, bool) {
	name, ok := packages[program]
	return name, ok
}

// Known are all programs of the list, in alphabetical order.
func Known() []string {
	var all []string
	for program := range packages {
		all = append(all, program)
	}
	slices.Sort(all)
	return all
}

// AdminPath are the directories of programs such as tcpdump that Debian leaves out of the PATH of ordinary users.
var AdminPath = []string{"/usr/local/sbin", "/usr/sbin", "/sbin"}

// Missing returns those of the programs that this machine lacks, in the given order.
func Missing(names ...string) (missing []string) {
	for _, name := range names {
		if _, err := exec.LookPath(name); err == nil {
			continue
		}
		if !slices.ContainsFunc(AdminPath, func(dir string) bool {
			_, err := os.Stat(filepath.Join(dir, name))
			return err == nil
		}) {
			missing = append(missing, name)
		}
	}
	return missing
}

// Install says how to install programs on Debian; empty: the list knows none of them.
func Install(names ...string) string {
	var list []string
	for _, name := range names {
		if p, ok := packages[name]; ok && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "Debian: apt install " + strings.Join(list, " ")
}
