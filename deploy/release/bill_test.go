package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
)

// TestBill: the bill of materials is valid, and names the program, and what it is built of with its licences.
func TestBill(t *testing.T) {
	r := built(t)
	if err := r.run(false); err != nil {
		t.Fatal(err)
	}
	const name = "nfqproxy-v1.2.3-linux-amd64.spdx.json"
	text := read(t, r.source, "bin/release", name)
	doc := parsed(t, text)
	if err := checkBill(doc); err != nil {
		t.Error(err)
	}
	sum, err := sumOf(filepath.Join(r.source, "bin/linux-amd64/nfqproxy"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(doc.DocumentNamespace, sum) {
		t.Errorf("namespace %s: the specification requires a unique one", doc.DocumentNamespace)
	}
	var packages []string
	for _, p := range doc.Packages {
		version := p.PackageVersion
		if !strings.HasPrefix(p.PackageName, "nfqproxy") {
			version, _, _ = strings.Cut(version, ".")
		}
		packages = append(packages, p.PackageName+" "+version+" "+p.PackageLicenseDeclared)
	}
	if diff := cmp.Diff([]string{"nfqproxy v1.2.3 Apache-2.0", "nfqproxyd v1.2.3 Apache-2.0", "stdlib 1 BSD-3-Clause", "k8s.io/client-go v0 Apache-2.0"}, packages); diff != "" {
		t.Error(diff)
	}
	for _, want := range []string{sum, `"spdxVersion": "SPDX-2.3"`, `"commit 0123abc"`, `"pkg:golang/stdlib@1.`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", name, want)
		}
	}
}

func parsed(t *testing.T, text string) *spdx.Document {
	t.Helper()
	doc, err := spdxjson.Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// TestCheckBill: each violation of the specification is found.
func TestCheckBill(t *testing.T) {
	r := built(t)
	if err := r.run(false); err != nil {
		t.Fatal(err)
	}
	text := read(t, r.bin("release", "nfqproxy-v1.2.3-darwin-arm64.spdx.json"))
	for want, violate := range map[string]func(doc *spdx.Document, app, lib *spdx.Package){
		"6.1":                  func(doc *spdx.Document, _, _ *spdx.Package) { doc.DataLicense = "MIT" },
		"6.4":                  func(doc *spdx.Document, _, _ *spdx.Package) { doc.DocumentName = "" },
		"6.5":                  func(doc *spdx.Document, _, _ *spdx.Package) { doc.DocumentNamespace += "#x" },
		"6.8: no":              func(doc *spdx.Document, _, _ *spdx.Package) { doc.CreationInfo = nil },
		"6.8, 6.9":             func(doc *spdx.Document, _, _ *spdx.Package) { doc.CreationInfo.Creators = nil },
		`created at "today"`:   func(doc *spdx.Document, _, _ *spdx.Package) { doc.CreationInfo.Created = "today" },
		"7.1":                  func(_ *spdx.Document, _, lib *spdx.Package) { lib.PackageVersion = "" },
		`identifier "a/b"`:     func(_ *spdx.Document, _, lib *spdx.Package) { lib.PackageSPDXIdentifier = "a/b" },
		"or another package's": func(_ *spdx.Document, app, lib *spdx.Package) { lib.PackageSPDXIdentifier = app.PackageSPDXIdentifier },
		"7.7":                  func(_ *spdx.Document, app, _ *spdx.Package) { app.PackageDownloadLocation = "" },
		"7.8":                  func(_ *spdx.Document, app, _ *spdx.Package) { app.FilesAnalyzed = true },
		"7.10":                 func(_ *spdx.Document, app, _ *spdx.Package) { app.PackageChecksums[0].Value = "1" },
		`licence "Apache-2"`:   func(_ *spdx.Document, _, lib *spdx.Package) { lib.PackageLicenseDeclared = "Apache-2" },
		`licence ""`:           func(_ *spdx.Document, _, lib *spdx.Package) { lib.PackageLicenseConcluded = "" },
		"7.17":                 func(_ *spdx.Document, _, lib *spdx.Package) { lib.PackageCopyrightText = "" },
		"7.21": func(_ *spdx.Document, _, lib *spdx.Package) {
			lib.PackageExternalReferences[0].Locator = "pkg:golang/x@v1+y"
		},
		"7.24":               func(_ *spdx.Document, app, _ *spdx.Package) { app.PrimaryPackagePurpose = "PROGRAM" },
		"11: nothing":        func(doc *spdx.Document, _, _ *spdx.Package) { doc.Relationships = doc.Relationships[:1] },
		"11.1":               func(doc *spdx.Document, _, _ *spdx.Package) { doc.Relationships[0].Relationship = "HAS" },
		"no such package":    func(doc *spdx.Document, _, _ *spdx.Package) { doc.Relationships[1].RefB.ElementRefID = "none" },
		"program is missing": func(doc *spdx.Document, _, _ *spdx.Package) { doc.Packages = doc.Packages[1:] },
	} {
		doc := parsed(t, text)
		violate(doc, doc.Packages[0], doc.Packages[1])
		if err := checkBill(doc); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
