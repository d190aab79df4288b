package observe

import (
	"fmt"
	"strings"
)

// Capability is a capability that a process has, and its use.
type Capability struct {
	Name string `json:"name"` // CAP_NET_ADMIN
	Use  string `json:"use,omitempty"`
}

// Confinement describes the restrictions in force for all threads of a daemon.
type Confinement struct {
	// Capabilities are the effective ones; the process cannot get others if NoNewPrivs is set.
	Capabilities []Capability `json:"capabilities"`
	NoNewPrivs   bool         `json:"noNewPrivs"`
	// SystemCalls is how many system calls the filter allows. 0: there is no filter.
	SystemCalls int `json:"systemCalls"`
	// Program is the program that the process may start; empty: none, if there is a filter.
	Program string `json:"program,omitempty"`
	// LandlockABI is the version of Landlock; 0: it is not in force.
	LandlockABI int `json:"landlockABI"`
	// Changes are the file changes that Landlock allows, valid iff LandlockABI is not 0.
	Changes []string `json:"changes,omitempty"`
	// Missing are the parts that are not in force, each with the reason.
	Missing []string `json:"missing,omitempty"`
}

// String describes the state in one line.
func (c Confinement) String() string {
	var parts, names []string
	for _, k := range c.Capabilities {
		name := k.Name
		if k.Use != "" {
			name += " (" + k.Use + ")"
		}
		names = append(names, name)
	}
	if names == nil {
		names = []string{"none"}
	}
	parts = append(parts, "capabilities: "+strings.Join(names, " "))
	if c.NoNewPrivs {
		parts = append(parts, "no new privileges")
	}
	if c.SystemCalls > 0 {
		parts = append(parts, fmt.Sprintf("system calls: %d", c.SystemCalls))
	}
	if c.Program != "" {
		parts = append(parts, "may start "+c.Program)
	}
	if c.LandlockABI > 0 {
		changes := "none"
		if len(c.Changes) > 0 {
			changes = strings.Join(c.Changes, ", ")
		}
		parts = append(parts, fmt.Sprintf("changes of files (Landlock %d): %s", c.LandlockABI, changes))
	}
	for _, m := range c.Missing {
		parts = append(parts, "not in force: "+m)
	}
	return strings.Join(parts, "; ")
}
