// Command nfqproxyd is the daemon: it serves the Services of one node, as kube-proxy does. The tool to see what it does
// is nfqproxy.
package main

import (
	"os"

	"github.com/nfqproxy/nfqproxy/control/live/daemon"
)

// version is set by the linker; see the Makefile.
var version = "unknown"

func main() { os.Exit(daemon.Main(version)) }
