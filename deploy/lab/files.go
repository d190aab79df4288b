package lab

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// FilesStatus is the state of a lab's files since its start. The zero value: all of them are
// in force.
type FilesStatus struct {
	// Problems are the mistakes in the files, as "FILE:LINE: text". The last good state stays
	// in force.
	Problems []string `json:"problems,omitempty"`
	// NotApplied are changes that require a restart of the lab: of nodes, networks and
	// proxies. Everything else in the files is in force.
	NotApplied []string `json:"notApplied,omitempty"`
	// Warnings are about objects that are in force, but probably wrong.
	Warnings []string `json:"warnings,omitempty"`
}

// String has one line for each entry below a title; empty: all is in force.
func (s FilesStatus) String() string {
	var b strings.Builder
	write := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&b, "%s\n  %s\n", title, strings.Join(lines, "\n  "))
		}
	}
	write("NOT IN FORCE: the files have mistakes, and the last good state stays in force:", s.Problems)
	write("NOT APPLIED: these changes require a restart of the lab:", s.NotApplied)
	write("WARNING:", s.Warnings)
	return b.String()
}

const maxShown = 20 // lines of one kind

// filesWatch checks the files of a lab that runs.
type filesWatch struct {
	// unanswered are the endpoints that no host of the lab had at its start; nil before the first check.
	unanswered map[netip.AddrPort]bool
}

// problems are the mistakes in the files, which have been read with a result: objects or an error.
func problems(file *File, o *manifest.Objects, err error) []string {
	switch {
	case err != nil:
		return strings.Split(labfile.FirstDocument(file.Path, err).Error(), "\n")
	case o.Lab == nil:
		return []string{file.Path + ": the Lab is missing"}
	}
	return nil
}

// most returns the first lines of many.
func most(lines []string) []string {
	if n := len(lines) - maxShown; n > 0 {
		return append(slices.Clone(lines[:maxShown]), fmt.Sprintf("and %d more", n))
	}
	return lines
}

// newlyUnanswered finds endpoints without a host in the running lab, except for those that
// had none at the first call.
func (w *filesWatch) newlyUnanswered(services []*decision.ServicePort, running *Spec) (lines []string) {
	hosts, first := running.Owners(), w.unanswered == nil
	if first {
		w.unanswered = make(map[netip.AddrPort]bool)
	}
	for _, svc := range services {
		for _, e := range svc.UsableEndpoints(decision.Cluster) {
			switch {
			case hosts[e.AddrPort.Addr()] != "" || w.unanswered[e.AddrPort]:
			case first:
				w.unanswered[e.AddrPort] = true
			default:
				lines = append(lines, fmt.Sprintf("endpoint %s of Service %s%s: no host of the running lab has this address, so there is no reply", e.AddrPort, svc.Name.Service(), of(e.Pod)))
			}
		}
	}
	slices.SortFunc(lines, cmp.Compare[string])
	return slices.Compact(lines)
}

// of names the pod of an endpoint, if it is one.
func of(pod string) string {
	if pod == "" {
		return ""
	}
	return ", pod " + pod
}
