// Package installtest installs the files of bin/release, as users do: "make release-test" runs it, as root.
// Each test has a machine of its own, which is a copy of this one in memory.
package installtest
