// Command nfqproxy explains and shows what the service proxy nfqproxyd decides, simulates it, and runs it in labs.
package main

import (
	"os"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
)

func main() { os.Exit(cli.Main()) }
