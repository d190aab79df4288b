package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/control/source/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// FilesStatus is the state of a lab's files since its start. The zero value: all of them are
// in force.
type FilesStatus struct {
	// Problems are the mistakes in the files, as "FILE:LINE: text". The last good state stays
	// in force.
	Problems []string `json:"problems,omitempty"`
	// NotApplied are changes that require a restart of the lab: of nodes, pods, clients and
	// networks. Everything else in the files is in force.
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

// filesWatch compares the files with the lab that runs.
type filesWatch struct {
	file *File // as it was at the start of the lab
	// unanswered are the endpoints that no host of the lab had at its start.
	unanswered map[netip.AddrPort]bool
}

// watchFiles calls report whenever the state of the files changes, until the context ends.
// The file must have a path.
func watchFiles(ctx context.Context, file *File, report func(FilesStatus)) error {
	// The spec of the running lab may differ by flags.
	spec, err := Parse(file.Path, file.Data)
	if err != nil {
		return err
	}
	w := &filesWatch{file: &File{Path: file.Path, Data: file.Data, Spec: spec}}
	var last FilesStatus
	return manifest.NewSource(file.ObjectPaths()...).Run(ctx, func(o *manifest.Objects, err error) {
		s := w.state(o, err)
		if !reflect.DeepEqual(s, last) {
			report(s)
		}
		last = s
	})
}

// state evaluates the files; it is called for each change.
func (w *filesWatch) state(o *manifest.Objects, err error) (s FilesStatus) {
	now, faulty := Load(w.file.Path)
	if errs, ok := errors.AsType[manifest.Errors](err); ok && faulty != nil {
		// Those in the lab itself are in the other error.
		err = slices.DeleteFunc(slices.Clone(errs), func(e *manifest.Error) bool { return e.File == w.file.Path && e.Document <= 1 })
	}
	if problems := append(located(err), located(faulty)...); len(problems) > 0 {
		return FilesStatus{Problems: most(problems)}
	}
	services, warnings := control.Build(o, control.NodeConfig{})
	s.NotApplied = most(append(w.file.Spec.changes(now.Spec), w.newlyUnanswered(services)...))
	s.Warnings = most(warnings)
	return s
}

// located lists the mistakes in an error, with file and, if known, line.
func located(err error) (lines []string) {
	errs, ok := errors.AsType[manifest.Errors](err)
	if !ok && err != nil {
		return []string{err.Error()}
	}
	for _, e := range errs {
		at := e.File
		if n := lineOf(e); n > 0 {
			at = fmt.Sprintf("%s:%d", e.File, n)
		}
		lines = append(lines, at+": "+strings.TrimPrefix(e.Error(), e.File+": "))
	}
	return lines
}

// lineOf is the line of an error in its file; 0: not known.
func lineOf(e *manifest.Error) int {
	const readable = 8 << 20
	info, err := os.Stat(e.File)
	if err != nil || !info.Mode().IsRegular() || info.Size() > readable {
		return 0
	}
	data, err := os.ReadFile(e.File)
	if err != nil {
		return 0
	}
	return e.Line(data)
}

// most returns the first lines of many.
func most(lines []string) []string {
	if n := len(lines) - maxShown; n > 0 {
		return append(slices.Clone(lines[:maxShown]), fmt.Sprintf("and %d more", n))
	}
	return lines
}

// changes are the differences to another spec, which a running lab does not apply.
func (s *Spec) changes(to *Spec) (all []string) {
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	compare(add, "node", s.Nodes, to.Nodes, func(n *Node) string { return n.Name })
	compare(add, "pod", s.Pods, to.Pods, (*Pod).FullName)
	compare(add, "client", s.Clients, to.Clients, func(c *Client) string { return c.Name })
	for _, f := range []struct {
		field  string
		differ bool
	}{
		{"metadata.name", s.Name != to.Name}, {"networks", !reflect.DeepEqual(s.Networks, to.Networks)},
		{"clusterCIDRs", !reflect.DeepEqual(s.ClusterCIDRs, to.ClusterCIDRs)}, {"proxy", !reflect.DeepEqual(s.Proxy, to.Proxy)},
	} {
		if f.differ {
			add("%s is changed in the file: unchanged in the running lab", f.field)
		}
	}
	return all
}

// compare finds new, changed and removed hosts.
func compare[T any](add func(string, ...any), kind string, from, to []T, name func(*T) string) {
	before := make(map[string]*T)
	for i := range from {
		before[name(&from[i])] = &from[i]
	}
	for i := range to {
		n := name(&to[i])
		switch old, ok := before[n]; {
		case !ok:
			add("%s %s is new in the file: not in the running lab", kind, n)
		case !reflect.DeepEqual(*old, to[i]):
			add("%s %s is changed in the file: unchanged in the running lab", kind, n)
		}
		delete(before, n)
	}
	for i := range from {
		if n := name(&from[i]); before[n] != nil {
			add("%s %s is removed from the file: still in the running lab", kind, n)
		}
	}
}

// newlyUnanswered finds endpoints without a host in the running lab, except for those that
// had none at its start.
func (w *filesWatch) newlyUnanswered(services []*decision.ServicePort) (lines []string) {
	first := w.unanswered == nil
	if first {
		w.unanswered = make(map[netip.AddrPort]bool)
	}
	for _, svc := range services {
		for _, e := range svc.UsableEndpoints(decision.Cluster) {
			switch {
			case w.file.Spec.has(e.AddrPort.Addr()) || w.unanswered[e.AddrPort]:
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

// has reports whether a host of the lab has the address.
func (s *Spec) has(a netip.Addr) bool {
	return slices.ContainsFunc(s.machines(), func(m machine) bool { return slices.Contains(m.addresses, a) })
}
