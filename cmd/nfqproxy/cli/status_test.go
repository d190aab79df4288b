package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
)

// statusOf is an observer of nodes with these states.
type statusOf struct {
	observe.Observer // nil: no other query is made
	nodes            []observe.Status
	err              error
}

func (o statusOf) Status(context.Context) ([]observe.Status, error) { return o.nodes, o.err }

// runStatus executes nfqproxy status.
func runStatus(t *testing.T, o statusOf, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, messages bytes.Buffer
	root := newRootCommand(func(string, string) (observe.Observer, error) { return o, nil })
	code = execute(t.Context(), root, append([]string{"status"}, args...), strings.NewReader(""), &out, &messages)
	return code, out.String(), messages.String()
}

// TestStatusExitCodes: a problem of any node has the exit code 1, without a message; losses are no
// problem; errors have a message.
func TestStatusExitCodes(t *testing.T) {
	healthy, lossy := observetest.Status(), observetest.Status()
	lossy.Daemon.Losses = observe.Losses{Undecided: 1, TableFull: 2, Records: 3}
	tests := map[string]struct {
		of     statusOf
		code   int
		stdout string // contained in it; empty: there is none
		stderr string
	}{
		"all right": {statusOf{nodes: []observe.Status{healthy}}, 0, "node-a: healthy\n", ""},
		"losses":    {statusOf{nodes: []observe.Status{lossy}}, 0, "1 packet undecided", ""},
		"no server": {statusOf{err: errors.New("connection refused")}, 2, "", "nfqproxy: connection refused\n"},
		"no nodes":  {statusOf{}, 2, "", "nfqproxy: the flow API returned no nodes: not an nfqproxy of this version?\n"},
	}
	for _, code := range observetest.Problems() {
		sick := observetest.Status()
		sick.Node, sick.Problems = "node-b", []observe.Problem{{Code: code, Text: "it is broken"}}
		of := statusOf{nodes: []observe.Status{healthy, sick}}
		tests[code] = struct {
			of             statusOf
			code           int
			stdout, stderr string
		}{of, 1, "node-b: 1 problem\n  ! it is broken (" + code + ")\n", ""}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, format := range []string{"text", "json"} {
				code, stdout, stderr := runStatus(t, tt.of, "-o", format)
				if code != tt.code || stderr != tt.stderr {
					t.Errorf("-o %s: exit code %d, message %q; want %d, %q", format, code, stderr, tt.code, tt.stderr)
				}
				if format == "text" && !strings.Contains(stdout, tt.stdout) || (tt.stdout == "") != (stdout == "") {
					t.Errorf("-o %s prints\n%s\nwant %q in it", format, stdout, tt.stdout)
				}
			}
		})
	}
}

// TestStatusJSON: it is the flow API's response.
func TestStatusJSON(t *testing.T) {
	nodes := []observe.Status{observetest.Status(), {Node: "node-b", Problems: []observe.Problem{{Code: observe.ProblemUnreachable, Text: "no answer"}}}}
	_, stdout, _ := runStatus(t, statusOf{nodes: nodes}, "-o", "json")
	var got observe.StatusList
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(observe.StatusList{Nodes: nodes}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestStatusIsQuoted: the texts of a server do not control the terminal.
func TestStatusIsQuoted(t *testing.T) {
	s := observetest.Status()
	s.Node, s.Problems = evil, []observe.Problem{{Code: evil, Text: evil}}
	s.Daemon.Version, s.Daemon.HostNAT.Unknown, s.Daemon.Confinement.Missing = evil, []string{evil}, []string{evil}
	for _, format := range []string{"text", "json"} {
		_, stdout, _ := runStatus(t, statusOf{nodes: []observe.Status{s}}, "-o", format)
		if near, found := controlIn([]byte(stdout)); found || !strings.Contains(stdout, "owned") {
			t.Errorf("-o %s: %q is not quoted in\n%q", format, near, stdout)
		}
	}
}
