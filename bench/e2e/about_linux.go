package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/e2e/results"
)

// about describes what the tests ran against.
func (s *settings) about(ctx context.Context) ([]string, error) {
	paths, err := programs(cluster.Kubelet)
	if err != nil {
		return nil, err
	}
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return nil, err
	}
	versions := make([]string, 0, 3)
	for _, command := range [][]string{{paths[0], "--version"}, {"containerd", "--version"}, {"iptables", "--version"}} {
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(command, " "), err)
		}
		versions = append(versions, strings.TrimSpace(string(out)))
	}
	// "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3"
	containerd := strings.Fields(versions[1])
	families := "IPv4 and IPv6"
	if s.IPv6Only {
		families = "IPv6 only"
	}
	return []string{
		versions[0],
		fmt.Sprintf("%d nodes", s.Nodes),
		families,
		"containerd " + containerd[min(2, len(containerd)-1)],
		versions[2],
		"Linux " + unix.ByteSliceToString(kernel.Release[:]),
		time.Now().UTC().Format("2 January 2006"),
	}, nil
}

// compare prints how the results of two runs differ. It is an error if a test passed with the
// control, and failed or did not run with the other; a test may skip itself.
func (t *tests) compare(args []string) error {
	if len(args) == 0 {
		args = []string{"kube-proxy", "nfqproxy"}
	}
	if len(args) != 2 {
		return errors.New("compare: want the names of the control's results and of others")
	}
	var runs [2]results.Run
	for i, name := range args {
		var err error
		if runs[i], err = results.Read(t.file(name)); err != nil {
			return err
		}
		fmt.Printf("%s: %s\n", name, runs[i].Summary())
	}
	lost, gained := results.Compare(runs[0].List, runs[1].List)
	for _, d := range lost {
		fmt.Printf("passes with %s only: %s (%s)\n", args[0], d.Name, d.Outcome(d.Other))
	}
	for _, d := range gained {
		fmt.Printf("passes with %s only: %s (%s)\n", args[1], d.Name, d.Outcome(d.Control))
	}
	if n := len(slices.DeleteFunc(lost, func(d results.Difference) bool { return d.Other == results.Skipped })); n > 0 {
		return fmt.Errorf("%d tests pass with %s and not with %s", n, args[0], args[1])
	}
	return nil
}

// publish writes results into the documentation: those with the names, and the page about all.
func (t *tests) publish(args []string) error {
	root, err := repository()
	if err != nil {
		return err
	}
	docs := filepath.Join(root, "docs", "reference")
	for _, name := range args {
		run, err := results.Read(t.file(name))
		if err != nil {
			return err
		}
		if err := results.Publish(docs, results.Named{Name: name, Run: run}); err != nil {
			return err
		}
	}
	return results.WritePage(docs)
}

// merge writes the results of several runs, in other directories of results, as those of one.
func (t *tests) merge(args []string) error {
	if len(args) < 2 {
		return errors.New("merge: want a name and files of results")
	}
	var runs []results.Run
	for _, file := range args[1:] {
		run, err := results.Read(file)
		if err != nil {
			return err
		}
		runs = append(runs, run)
	}
	all := results.Merge(runs...)
	fmt.Printf("%s: %s\n", args[0], all.Summary())
	if err := os.MkdirAll(filepath.Dir(t.file(args[0])), 0o755); err != nil {
		return err
	}
	return all.Write(t.file(args[0]))
}

// file is that of results with a name.
func (t *tests) file(name string) string { return filepath.Join(t.out, name, results.File) }
