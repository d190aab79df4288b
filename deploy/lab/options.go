package lab

import "io"

// RunOptions are what [RunUp] and [RunDemo] need.
type RunOptions struct {
	Lab    string // a file, or the name of a built-in lab
	Stdout io.Writer
	Stderr io.Writer
	All    bool // up: show flows that are for no service, too
	Walk   bool // up: show the walk through the chains below each decision
	Logs   bool // up: show the daemons' logs
	// NoHairpinMasquerade stands above the lab's own setting: see [Proxy].
	NoHairpinMasquerade bool
}
