package lab

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// DefaultPage is where a lab's page is, if nothing else is said.
const DefaultPage = "127.0.0.1:10253"

// RunOptions are what [RunUp] and [RunDemo] need.
type RunOptions struct {
	Lab string // a file, or the name of a built-in lab; not looked at with Objects
	// Objects are files and directories with Kubernetes objects to make the lab of; Derive
	// says of them what they do not.
	Objects []string
	Derive  DeriveOptions
	// Page is where the web page and the flow API of all nodes are served: a loopback address
	// and a port; empty: [DefaultPage] or, where that is taken, any port.
	Page   string
	Stdout io.Writer
	Stderr io.Writer
	All    bool // up: show flows that are for no service, too
	Walk   bool // up: show the walk through the chains below each decision
	Logs   bool // up: show the daemons' logs
	// NoHairpinMasquerade stands above the lab's own setting: see [Proxy].
	NoHairpinMasquerade bool
}

// name is how the command line names the lab.
func (o *RunOptions) name() string {
	if len(o.Objects) > 0 {
		return "--objects " + strings.Join(o.Objects, " --objects ")
	}
	return o.Lab
}

// program is how this program was called, for commands to copy.
func program() string {
	if strings.Contains(os.Args[0], "/") {
		return os.Args[0]
	}
	return "nfqproxy"
}

// load finds the lab or makes it.
func (o *RunOptions) load() (*File, error) {
	if len(o.Objects) > 0 {
		return FromObjects(o.Objects, "", o.Derive)
	}
	return Load(o.Lab)
}

// writeGuesses says what was guessed of a lab that was made of objects.
func writeGuesses(w io.Writer, f *File) {
	if len(f.Guesses) == 0 {
		return
	}
	fmt.Fprintf(w, "Lab %s is made of objects. What they do not say is guessed:\n", f.Spec.Name)
	for _, g := range f.Guesses {
		fmt.Fprintln(w, "  "+g)
	}
	fmt.Fprintln(w)
}
