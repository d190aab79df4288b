package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"

	"github.com/nfqproxy/nfqproxy/deploy/release/licenses"
	"github.com/nfqproxy/nfqproxy/deploy/release/program"
)

const (
	repository  = "https://github.com/nfqproxy/nfqproxy"
	noAssertion = "NOASSERTION"
)

// writeBill writes the bill of materials of a platform's programs (SPDX 2.3, JSON): the modules that are linked into them, and
// the licences that they declare.
func (r *release) writeBill(p *program.Program, modules []licenses.Module, platform string) error {
	sum, err := sumOf(p.Path)
	if err != nil {
		return err
	}
	name := r.base(platform)
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: name,
		DocumentNamespace: repository + "/releases/" + name + ".spdx.json/" + sum, // unique, and without "#"
		CreationInfo:      &spdx.CreationInfo{Creators: []common.Creator{{CreatorType: "Tool", Creator: "nfqproxy-release"}}, Created: r.date.Format(time.RFC3339)},
		Packages:          []*spdx.Package{r.programPackage("nfqproxy", sum)},
		Relationships:     []*spdx.Relationship{relation("DOCUMENT", "DESCRIBES", "nfqproxy")},
	}
	if p.Daemon != "" { // its modules are all among those of nfqproxy
		sum, err := sumOf(p.Daemon)
		if err != nil {
			return err
		}
		doc.Packages = append(doc.Packages, r.programPackage("nfqproxyd", sum))
		doc.Relationships = append(doc.Relationships, relation("DOCUMENT", "DESCRIBES", "nfqproxyd"))
	}
	for _, m := range modules {
		id := common.ElementID(identifier(m.Path + "-" + m.Version))
		doc.Packages = append(doc.Packages, &spdx.Package{
			PackageName: m.Path, PackageSPDXIdentifier: id, PackageVersion: m.Version, PackageDownloadLocation: noAssertion,
			PackageLicenseConcluded: noAssertion, PackageLicenseDeclared: cmp.Or(m.Identifier(), noAssertion), PackageCopyrightText: noAssertion,
			PackageExternalReferences: references(m),
			PrimaryPackagePurpose:     "LIBRARY",
		})
		doc.Relationships = append(doc.Relationships, relation("nfqproxy", "DEPENDS_ON", id))
	}
	var text bytes.Buffer
	if err := spdxjson.Write(doc, &text, spdxjson.Indent("  ")); err != nil {
		return err
	}
	written, err := spdxjson.Read(bytes.NewReader(text.Bytes()))
	if err == nil {
		err = checkBill(written)
	}
	if err != nil {
		return fmt.Errorf("the bill of materials of %s is not valid: %w", platform, err)
	}
	return os.WriteFile(filepath.Join(r.out, name+".spdx.json"), text.Bytes(), 0o644)
}

// programPackage describes one of our programs.
func (r *release) programPackage(name, sum string) *spdx.Package {
	return &spdx.Package{
		PackageName: name, PackageSPDXIdentifier: common.ElementID(name), PackageVersion: r.version, PackageFileName: name,
		PackageChecksums:        []common.Checksum{{Algorithm: common.SHA256, Value: sum}},
		PackageDownloadLocation: "git+" + repository + "@" + r.version, PackageHomePage: repository,
		PackageSourceInfo:       "commit " + r.revision,
		PackageLicenseConcluded: "Apache-2.0", PackageLicenseDeclared: "Apache-2.0", PackageCopyrightText: noAssertion,
		PackageExternalReferences: references(licenses.Module{Path: "github.com/nfqproxy/nfqproxy", Version: r.version}),
		PrimaryPackagePurpose:     "APPLICATION",
	}
}

// references names a module for programs that look for vulnerabilities.
func references(m licenses.Module) []*spdx.PackageExternalReference {
	return []*spdx.PackageExternalReference{{
		Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL,
		Locator: m.URL(),
	}}
}

func relation(a common.ElementID, kind string, b common.ElementID) *spdx.Relationship {
	return &spdx.Relationship{RefA: common.MakeDocElementID("", string(a)), RefB: common.MakeDocElementID("", string(b)), Relationship: kind}
}

// identifier replaces what an SPDX identifier may not contain.
func identifier(name string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' {
			return c
		}
		return '-'
	}, name)
}
