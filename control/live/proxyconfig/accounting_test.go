package proxyconfig

import (
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	acct      = netfilterDir + "nf_conntrack_acct"
	timestamp = netfilterDir + "nf_conntrack_timestamp"
)

// TestFlowAccounting: a setting that is off is switched on; a failure does not keep the other
// from it, and the error names its effect.
func TestFlowAccounting(t *testing.T) {
	const (
		acctChange      = "nf_conntrack_acct from 0 to 1"
		timestampChange = "nf_conntrack_timestamp from 0 to 1"
	)
	readOnly := func(path string) map[string]error {
		return map[string]error{path: &fs.PathError{Op: "open", Path: path, Err: syscall.EROFS}}
	}
	for name, c := range map[string]struct {
		files   fakeFiles
		after   map[string]int
		changes []string
		err     string
	}{
		"both are off": {fakeFiles{values: map[string]int{acct: 0, timestamp: 0}}, map[string]int{acct: 1, timestamp: 1}, []string{acctChange, timestampChange}, ""},
		"one is on":    {fakeFiles{values: map[string]int{acct: 1, timestamp: 0}}, map[string]int{acct: 1, timestamp: 1}, []string{timestampChange}, ""},
		"on and read-only": {
			fakeFiles{values: map[string]int{acct: 1, timestamp: 1}, locked: readOnly(acct)}, map[string]int{acct: 1, timestamp: 1}, nil, "",
		},
		"no counting": {
			fakeFiles{values: map[string]int{acct: 0, timestamp: 0}, locked: readOnly(acct)}, map[string]int{acct: 0, timestamp: 1}, []string{timestampChange},
			"packets and bytes of flows are not counted: nf_conntrack_acct is 0, want 1: open " + acct + ": read-only file system; set it on the node: echo 1 > " + acct,
		},
		"no times": {
			fakeFiles{values: map[string]int{acct: 0}}, map[string]int{acct: 1}, []string{acctChange},
			"durations of flows are not known: nf_conntrack_timestamp: cannot set it to 1: " + timestamp + " not found: the module nf_conntrack is not loaded, or this kernel lacks the setting",
		},
	} {
		t.Run(name, func(t *testing.T) {
			changes, err := FlowAccounting(c.files)
			if !slices.Equal(changes, c.changes) || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
				t.Errorf("changes %q, want %q; error\n%v, want\n%s", changes, c.changes, err, c.err)
			}
			if diff := cmp.Diff(c.after, c.files.values); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	_, err := FlowAccounting(fakeFiles{})
	if err == nil || !strings.Contains(err.Error(), "not counted") || !strings.Contains(err.Error(), "not known") {
		t.Errorf("neither can be set: %v", err)
	}
}
