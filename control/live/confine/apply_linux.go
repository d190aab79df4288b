package confine

import (
	"cmp"
	"os"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// Apply confines all threads of the process, for good. What the kernel, the container's runtime or the
// process's rights do not permit is left out, with the reason in [observe.Confinement.Missing].
func Apply(c Config) observe.Confinement {
	var missing []string
	note := func(part string, err error) {
		if err != nil {
			missing = append(missing, part+": "+err.Error())
		}
	}
	// The last part forbids the system calls of the others.
	kept, err := c.capabilities()
	note("capabilities", err)
	note("no new privileges", setNoNewPrivs())
	abi, changes, err := c.restrictFiles()
	note("Landlock", err)
	note("capabilities", dropCapabilities(kept))
	calls, err := c.filterCalls()
	note("seccomp", err)

	s := inForce(kept)
	s.SystemCalls, s.LandlockABI, s.Changes, s.Missing = calls, abi, changes, missing
	if calls > 0 {
		s.Program = c.Program
	}
	return s
}

// Unconfined is the state of a process that does not call Apply: what whoever started it has put into
// force.
func Unconfined(why string) observe.Confinement {
	s := inForce(nil)
	s.Missing = []string{"confinement: " + why}
	return s
}

// inForce reads the process's status.
func inForce(kept []observe.Capability) (s observe.Confinement) {
	text, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return s
	}
	uses := make(map[string]string)
	for _, k := range kept {
		uses[k.Name] = cmp.Or(uses[k.Name], k.Use)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); name {
		case "CapEff":
			for _, c := range parseSet(value).names() {
				s.Capabilities = append(s.Capabilities, observe.Capability{Name: c, Use: uses[c]})
			}
		case "NoNewPrivs":
			s.NoNewPrivs = value == "1"
		}
	}
	return s
}
