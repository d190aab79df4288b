package experiment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Report writes the page, the tables and the plots of a directory of results again, without a run, and returns the table as text. The
// directory may be that of a simulation with live runs.
func Report(dir string) (string, error) {
	if _, err := os.Stat(filepath.Join(dir, FileRun)); err == nil || !hasBoth(dir) {
		r, err := again(dir)
		if err != nil {
			return "", err
		}
		return r.Text(), nil
	}
	simulated, err1 := again(filepath.Join(dir, DirSimulated))
	live, err2 := again(filepath.Join(dir, DirLive))
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	both := Both{simulated, live}
	return both.Table().Text(), both.Write(dir)
}

// hasBoth reports whether a directory has the results of a simulation and of live runs.
func hasBoth(dir string) bool {
	for _, one := range []string{DirSimulated, DirLive} {
		if _, err := os.Stat(filepath.Join(dir, one, FileRun)); err != nil {
			return false
		}
	}
	return true
}

// again writes what is made of the runs in a directory.
func again(dir string) (*Results, error) {
	r, err := Open(dir)
	if err != nil {
		return nil, err
	}
	if len(r.Cells) == 0 {
		return nil, fmt.Errorf("%s has no finished run", dir)
	}
	// If a file lacks, because it was too large to be kept, it is not known whether the others are those of the runs.
	x, err := loadSealed(dir, "")
	r.edited = err == nil && x.Digest != r.Run.Digest
	return r, r.Write(dir)
}
