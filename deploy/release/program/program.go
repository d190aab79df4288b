// Package program reads what a built nfqproxy says about itself: all that is made of it follows
// from the file, not from the machine that packs it.
package program

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"time"
)

// Program is an executable file that Go has built.
type Program struct {
	Path     string
	OS, Arch string           // Go's names
	Revision string           // the commit; empty if the source was not a checkout
	Time     time.Time        // of the commit; SOURCE_DATE_EPOCH replaces it. The Unix epoch if neither is known
	Info     *debug.BuildInfo // its modules and settings
}

// Read reads a program's build information. Programs that are linked to libraries are refused,
// because neither the image nor a package contains any.
func Read(path string) (*Program, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s is not a program that Go has built: %w", path, err)
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	p := &Program{Path: path, OS: settings["GOOS"], Arch: settings["GOARCH"], Revision: settings["vcs.revision"], Info: info, Time: time.Unix(0, 0).UTC()}
	if p.OS == "" || p.Arch == "" {
		return nil, fmt.Errorf("%s does not name its platform", path)
	}
	if settings["CGO_ENABLED"] != "0" {
		return nil, fmt.Errorf("%s may need libraries: build it with CGO_ENABLED=0", path)
	}
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("SOURCE_DATE_EPOCH is %q: set it to seconds since 1970", epoch)
		}
		p.Time = time.Unix(seconds, 0).UTC()
	} else if committed := settings["vcs.time"]; committed != "" {
		if p.Time, err = time.Parse(time.RFC3339, committed); err != nil {
			return nil, fmt.Errorf("%s: vcs.time: %w", path, err)
		}
	}
	return p, nil
}
