// Package program reads what built programs record about themselves.
package program

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"time"
)

// Program is an executable file that Go has built.
type Program struct {
	Path     string
	OS, Arch string           // Go's names
	Info     *debug.BuildInfo // its modules and settings
	Daemon   string           // the path of nfqproxyd, which is for Linux only; empty: there is none
}

// ReadTool reads the build information of nfqproxy and, for Linux, of nfqproxyd beside it, which must be of the same
// platform and have no module that nfqproxy lacks: licences and bills of materials are of both.
func ReadTool(path string) (*Program, error) {
	p, err := Read(path)
	if err != nil || p.OS != "linux" {
		return p, err
	}
	d, err := Read(filepath.Join(filepath.Dir(path), "nfqproxyd"))
	if err != nil {
		return nil, err
	}
	if d.OS != p.OS || d.Arch != p.Arch {
		return nil, fmt.Errorf("%s is for %s-%s, and %s for %s-%s", p.Path, p.OS, p.Arch, d.Path, d.OS, d.Arch)
	}
	for _, m := range d.Info.Deps {
		if !slices.ContainsFunc(p.Info.Deps, func(o *debug.Module) bool { return o.Path == m.Path && o.Version == m.Version }) {
			return nil, fmt.Errorf("%s has module %s %s, which %s has not: build both from the same sources", d.Path, m.Path, m.Version, p.Path)
		}
	}
	p.Daemon = d.Path
	return p, nil
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
