package results

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Named is a run with the name of its service proxy.
type Named struct {
	Name string
	Run
}

// Page is the page of documentation about runs, of which the first is that of nfqproxy. Runs whose names begin with
// its name are of nfqproxy with other settings, the others are controls. Everything in the page is from the results.
func Page(runs []Named) string {
	var b strings.Builder
	b.WriteString(`# Kubernetes' own tests

This page lists which of Kubernetes' own tests of Services pass with nfqproxy, and with kube-proxy on the same cluster of real nodes. It is
written by a program, from the results in [conformance](conformance), which list each test: see [bench/e2e](../../bench/e2e/README.md) for the cluster, the commands, and the tests that are left out.
Names with -helm, -ipv6 and -nftables: nfqproxy installed by its Helm chart, a cluster with IPv6 only, kube-proxy's mode nftables.

`)
	for _, r := range runs {
		fmt.Fprintf(&b, "- **%s**: %s. %s.\n", r.Name, strings.Join(r.About, ", "), r.Summary())
	}
	b.WriteString("\n## Passed tests by subject\n\n")
	writeCounts(&b, runs)
	for _, control := range runs[1:] {
		if strings.HasPrefix(control.Name, runs[0].Name) {
			continue // itself, with other settings: a column of the tables
		}
		fmt.Fprintf(&b, "\n## Differences to %s\n\n", control.Name)
		writeDifferences(&b, control, runs[0])
	}
	return b.String()
}

func writeCounts(b *strings.Builder, runs []Named) {
	row(b, "Subject", runs, func(r Named) string { return r.Name })
	row(b, "---", runs, func(Named) string { return "---:" })
	for _, s := range Subjects {
		if slices.ContainsFunc(runs, func(r Named) bool { return len(r.of(s)) > 0 }) {
			row(b, s, runs, func(r Named) string { return fmt.Sprint(r.of(s).Count(Passed)) })
		}
	}
	row(b, "**all**", runs, func(r Named) string { return fmt.Sprintf("**%d**", r.Count(Passed)) })
	row(b, "conformance tests among them", runs, func(r Named) string { return fmt.Sprint(r.conformance().Count(Passed)) })
}

func row(b *strings.Builder, first string, runs []Named, cell func(Named) string) {
	fmt.Fprintf(b, "| %s |", first)
	for _, r := range runs {
		fmt.Fprintf(b, " %s |", cell(r))
	}
	b.WriteString("\n")
}

func writeDifferences(b *strings.Builder, control, own Named) {
	lost, gained := Compare(control.List, own.List)
	if len(lost)+len(gained) == 0 {
		b.WriteString("None: the same tests pass.\n")
	}
	for _, d := range lost {
		fmt.Fprintf(b, "- passes with %s only: %s (%s)\n", control.Name, d.Name, d.Outcome(d.Other))
	}
	for _, d := range gained {
		fmt.Fprintf(b, "- passes with %s only: %s (%s)\n", own.Name, d.Name, d.Outcome(d.Control))
	}
}

// PageFile is the page in the directory of documentation, and publishedDir that of its results: a
// file for each proxy.
const (
	PageFile     = "conformance.md"
	publishedDir = "conformance"
)

// Publish writes a run into the directory of documentation, as that of a proxy.
func Publish(docs string, run Named) error {
	dir := filepath.Join(docs, publishedDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return run.Write(filepath.Join(dir, run.Name+".tsv"))
}

// ReadPublished reads the results in the directory of documentation: nfqproxy's first.
func ReadPublished(docs string) ([]Named, error) {
	files, err := filepath.Glob(filepath.Join(docs, publishedDir, "*.tsv"))
	if err != nil {
		return nil, err
	}
	var runs []Named
	for _, file := range files {
		run, err := Read(file)
		if err != nil {
			return nil, err
		}
		runs = append(runs, Named{strings.TrimSuffix(filepath.Base(file), ".tsv"), run})
	}
	i := slices.IndexFunc(runs, func(r Named) bool { return r.Name == "nfqproxy" })
	if i < 0 {
		return nil, fmt.Errorf("%s has no results of nfqproxy", filepath.Join(docs, publishedDir))
	}
	own := runs[i]
	return slices.Insert(slices.Delete(runs, i, i+1), 0, own), nil
}

// WritePage writes the page about the results in the directory of documentation.
func WritePage(docs string) error {
	runs, err := ReadPublished(docs)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(docs, PageFile), []byte(Page(runs)), 0o644)
}
