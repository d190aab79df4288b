// Package confine takes from the running process what it does not need after its start: capabilities,
// new privileges, system calls (seccomp), and changes of files (Landlock).
package confine

import (
	"fmt"
	"strings"
)

// Capability is a capability that a process has, and its use.
type Capability struct {
	Name string `json:"name"` // CAP_NET_ADMIN
	Use  string `json:"use,omitempty"`
}

// Config is what the process does after its start. Files that it has opened before stay usable.
type Config struct {
	// Capabilities that stay, if the process has them.
	Capabilities []Capability
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

// State is what is in force for all threads of the process.
type State struct {
	// Capabilities are the effective ones; the process cannot get others if NoNewPrivs is set.
	Capabilities []Capability `json:"capabilities"`
	NoNewPrivs   bool         `json:"noNewPrivs"`
	// SystemCalls is how many system calls the filter allows. 0: [Apply] set no such filter.
	SystemCalls int `json:"systemCalls"`
	// Program is the program that the process may start; empty: none, if there is a filter.
	Program string `json:"program,omitempty"`
	// LandlockABI is the version of Landlock; 0: it is not in force.
	LandlockABI int `json:"landlockABI"`
	// Changes are the changes of files that Landlock allows, valid iff LandlockABI is not 0.
	Changes []string `json:"changes,omitempty"`
	// Missing are the parts that are not in force, each with the reason.
	Missing []string `json:"missing,omitempty"`
}

// String describes the state in one line.
func (s State) String() string {
	var parts, names []string
	for _, c := range s.Capabilities {
		name := c.Name
		if c.Use != "" {
			name += " (" + c.Use + ")"
		}
		names = append(names, name)
	}
	if names == nil {
		names = []string{"none"}
	}
	parts = append(parts, "capabilities: "+strings.Join(names, " "))
	if s.NoNewPrivs {
		parts = append(parts, "no new privileges")
	}
	if s.SystemCalls > 0 {
		parts = append(parts, fmt.Sprintf("system calls: %d", s.SystemCalls))
	}
	if s.Program != "" {
		parts = append(parts, "may start "+s.Program)
	}
	if s.LandlockABI > 0 {
		changes := "none"
		if len(s.Changes) > 0 {
			changes = strings.Join(s.Changes, ", ")
		}
		parts = append(parts, fmt.Sprintf("changes of files (Landlock %d): %s", s.LandlockABI, changes))
	}
	for _, m := range s.Missing {
		parts = append(parts, "not in force: "+m)
	}
	return strings.Join(parts, "; ")
}
