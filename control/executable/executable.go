// Package executable finds nfqproxyd, the daemon, for programs that start it.
//
// It is a ground package.
package executable

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Daemon is the name of the daemon's program.
const Daemon = "nfqproxyd"

// Variable is the environment variable with the path of the daemon's program, if it is neither beside this
// one nor in PATH.
const Variable = "NFQPROXYD"

// FindDaemon returns the path of the daemon's program: the path in the environment, the one beside this program, or
// the first in PATH. The two are of one version where they are installed together, so the one beside has precedence.
func FindDaemon() (string, error) {
	if path := os.Getenv(Variable); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w", Variable, err)
		}
		return path, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if resolved, err := filepath.EvalSymlinks(self); err == nil {
		self = resolved // a link in PATH, or a plugin's name
	}
	beside := filepath.Join(filepath.Dir(self), Daemon)
	if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
		return beside, nil
	}
	path, err := exec.LookPath(Daemon)
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("the daemon %s is neither in %s nor in PATH: install it beside nfqproxy (\"make build\" makes both), or set %s to its path", Daemon, filepath.Dir(self), Variable)
	}
	return path, err
}
