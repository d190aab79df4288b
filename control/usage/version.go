package usage

import "runtime/debug"

// unknown is the version of a program that neither the linker nor the compiler gave one.
const unknown = "unknown"

// Version is the version of this program: the one that the Makefile gives the linker or, if a plain "go build" made the program,
// the commit in the form of the Makefile's versions.
func Version(linked string) string {
	if linked != "" && linked != unknown {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return versionOf(info.Settings)
	}
	return unknown
}

// versionOf makes a version of what the compiler stamps into programs that it builds in a repository.
func versionOf(settings []debug.BuildSetting) string {
	const abbreviated = 12 // as in the Makefile
	version, modified := unknown, ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision" && s.Value != "":
			version = s.Value[:min(len(s.Value), abbreviated)]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "-dirty"
		}
	}
	if version == unknown {
		return unknown
	}
	return version + modified
}
