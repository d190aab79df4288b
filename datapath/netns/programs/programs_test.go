package programs

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	of := parse("# a comment: x\nbash: bash\nlibc6-dev:\niproute2: ip ss\n")
	if len(of) != 3 || of["ip"] != "iproute2" || of["ss"] != "iproute2" || of["bash"] != "bash" {
		t.Errorf("%v", of)
	}
}

// TestList: every line has a package, in alphabetical order, and no program stands in two.
func TestList(t *testing.T) {
	last, seen := "", make(map[string]bool)
	for line := range strings.Lines(debian) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, list, ok := strings.Cut(line, ":")
		if !ok || name <= last {
			t.Errorf("%q: want PACKAGE: PROGRAM ..., after %s", line, last)
		}
		last = name
		for _, program := range strings.Fields(list) {
			if seen[program] {
				t.Errorf("%s stands in the list twice", program)
			}
			seen[program] = true
		}
	}
	if len(Known()) != len(seen) || len(seen) < 30 {
		t.Errorf("%d programs known, %d in the list", len(Known()), len(seen))
	}
}

func TestMissing(t *testing.T) {
	if got := Missing("sh", "no-such-program"); len(got) != 1 || got[0] != "no-such-program" {
		t.Errorf("missing: %v", got)
	}
}

func TestInstall(t *testing.T) {
	if got, want := Install("dig", "nslookup", "no-such-program", "ping"), "Debian: apt install bind9-dnsutils iputils-ping"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Install("no-such-program"); got != "" {
		t.Errorf("%q, want nothing", got)
	}
}
