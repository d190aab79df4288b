package lab

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/control/view/viewapi"
)

// DefaultPage is the default address of a lab's page.
const DefaultPage = viewapi.DefaultPage

// RunOptions are the options of [RunUp] and [RunDemo].
type RunOptions struct {
	Lab string // a file, or the name of a built-in lab; ignored with Objects
	// Objects are files and directories with Kubernetes objects to derive the lab from, with
	// the options Derive.
	Objects []string
	Derive  DeriveOptions
	// Page is the address of the web page and of the flow API of all nodes: a loopback address
	// and a port; empty: [DefaultPage] or, if that is in use, any port.
	Page   string
	Stdout io.Writer
	Stderr io.Writer
	All    bool      // up: include flows for no service
	Walk   text.Walk // up: below each decision
	Logs   bool      // up: show the daemons' logs
	// KubeProxy is the program to run on nodes with proxy: kube-proxy; see [Options].
	KubeProxy string
	// Observe has kube-proxy serve all nodes that have nfqproxy in the file, and nfqproxyd only observe on every node.
	Observe bool
	// NoHairpinMasquerade overrides the lab's own setting: see [Proxy].
	NoHairpinMasquerade bool
}

// name is the lab as on the command line.
func (o *RunOptions) name() string {
	if len(o.Objects) > 0 {
		return "--objects " + strings.Join(o.Objects, " --objects ")
	}
	return o.Lab
}

// program is the name that this program was started by, for commands to copy.
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

// writeGuesses prints the guesses of a lab derived from objects.
func writeGuesses(w io.Writer, f *File) {
	if len(f.Guesses) == 0 {
		return
	}
	fmt.Fprintf(w, "Lab %s is derived from objects. Guesses for what the objects lack:\n", f.Spec.Name)
	for _, g := range f.Guesses {
		fmt.Fprintln(w, "  "+g)
	}
	fmt.Fprintln(w)
}
