// Package confine takes from the running process what it does not need after its start: capabilities,
// new privileges, system calls (seccomp), and changes of files (Landlock).
package confine

import "github.com/nfqproxy/nfqproxy/control/observe"

// Config lists what the process does after its start. Files that it has opened before stay usable.
type Config struct {
	// Capabilities that stay, if the process has them.
	Capabilities []observe.Capability
	// Reads are files, and directories with files, that the process opens for reading. They select
	// CAP_DAC_READ_SEARCH, where a file is not readable without it; other files stay readable.
	Reads []string
	// Writes are files that exist, and directories of such files, that the process writes.
	Writes []string
	// Locks are directories in which the process makes empty files.
	Locks []string
	// Files are directories in which the process makes, writes, renames and removes files.
	Files []string
	// Sockets are directories in which the process makes and removes Unix sockets.
	Sockets []string
	// Program is a program that the process starts; empty: none. A program may write any file and needs
	// system calls of its own, so with one there is no Landlock, and only dangerous calls are forbidden.
	Program string
}
