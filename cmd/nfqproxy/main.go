// The nfqproxy command: a Kubernetes service proxy in userspace that explains its decisions.
package main

import (
	"os"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
)

func main() { os.Exit(cli.Main()) }
