// Package program reads what a built nfqproxy records about itself.
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
	Info     *debug.BuildInfo // its modules and settings
}

// Read reads a program's build information. Programs that may be linked to libraries are refused,
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
	if settings["GOOS"] == "" || settings["GOARCH"] == "" {
		return nil, fmt.Errorf("%s does not name its platform", path)
	}
	if settings["CGO_ENABLED"] != "0" {
		return nil, fmt.Errorf("%s may need libraries: build it with CGO_ENABLED=0", path)
	}
	return &Program{Path: path, OS: settings["GOOS"], Arch: settings["GOARCH"], Info: info}, nil
}

// SourceDate is SOURCE_DATE_EPOCH, the time of the sources in seconds since 1970, which reproducible
// files contain in place of the time of the build; without it, 1970.
func SourceDate() (time.Time, error) {
	var seconds int64
	if v := os.Getenv("SOURCE_DATE_EPOCH"); v != "" {
		var err error
		if seconds, err = strconv.ParseInt(v, 10, 64); err != nil || seconds < 0 {
			return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q: set it to seconds since 1970", v)
		}
	}
	return time.Unix(seconds, 0).UTC(), nil
}
