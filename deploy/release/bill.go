package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/github/go-spdx/v2/spdxexp"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdxlib"

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

// The syntax of SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3/), as far as bills use it.
var (
	elementID = regexp.MustCompile(`^[A-Za-z0-9.-]+$`)
	sha256Hex = regexp.MustCompile(`^[0-9a-f]{64}$`)
	purl      = regexp.MustCompile(`^pkg:(golang/|npm/%40)[A-Za-z0-9./_~-]+@[A-Za-z0-9.%_-]+$`)
	download  = regexp.MustCompile(`^(NOASSERTION|(git\+)?https://\S+)$`)
)

// checkBill finds what the specification forbids. The library itself checks the JSON types and the ends of the relationships.
// The numbers are the specification's sections.
func checkBill(doc *spdx.Document) error {
	var all []error
	require := func(ok bool, format string, args ...any) {
		if !ok {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	require(doc.SPDXVersion == "SPDX-2.3" && doc.DataLicense == "CC0-1.0", "6.1, 6.2: version %q, licence of the data %q", doc.SPDXVersion, doc.DataLicense)
	require(doc.SPDXIdentifier == "DOCUMENT" && doc.DocumentName != "", "6.3, 6.4: identifier %q, name %q", doc.SPDXIdentifier, doc.DocumentName)
	namespace, err := url.Parse(doc.DocumentNamespace)
	require(err == nil && namespace.IsAbs() && namespace.Fragment == "", "6.5: the namespace %q is not an absolute URI without a fragment", doc.DocumentNamespace)
	if created := doc.CreationInfo; created == nil {
		require(false, "6.8: no creation information")
	} else {
		_, err := time.Parse("2006-01-02T15:04:05Z", created.Created)
		require(err == nil && len(created.Creators) > 0, "6.8, 6.9: created at %q by %v", created.Created, created.Creators)
	}
	seen := make(map[common.ElementID]bool)
	for _, p := range doc.Packages {
		name := p.PackageName + " " + p.PackageVersion
		require(p.PackageName != "" && p.PackageVersion != "", "7.1, 7.3: %q has no name or no version", name)
		id := p.PackageSPDXIdentifier
		require(elementID.MatchString(string(id)) && !seen[id], "7.2: %s has the identifier %q, which is no identifier or another package's", name, id)
		seen[id] = true
		require(download.MatchString(p.PackageDownloadLocation), "7.7: the download location of %s is %q", name, p.PackageDownloadLocation)
		require(!p.FilesAnalyzed && p.PackageVerificationCode == nil && p.Files == nil, "7.8: %s lists files", name)
		for _, sum := range p.PackageChecksums {
			require(sum.Algorithm == common.SHA256 && sha256Hex.MatchString(sum.Value), "7.10: %s has the checksum %v", name, sum)
		}
		for _, licence := range []string{p.PackageLicenseConcluded, p.PackageLicenseDeclared} {
			known, _ := spdxexp.ValidateLicenses([]string{licence})
			require(known || licence == noAssertion, "7.13, 7.15: %s has the licence %q", name, licence)
		}
		require(p.PackageCopyrightText != "", "7.17: %s has no copyright text", name)
		for _, r := range p.PackageExternalReferences {
			require(r.Category == common.CategoryPackageManager && r.RefType == common.TypePackageManagerPURL && purl.MatchString(r.Locator),
				"7.21: %s has the reference %s %s %q", name, r.Category, r.RefType, r.Locator)
		}
		require(p.PrimaryPackagePurpose == "APPLICATION" || p.PrimaryPackagePurpose == "LIBRARY", "7.24: %s has the purpose %q", name, p.PrimaryPackagePurpose)
		require(slices.ContainsFunc(doc.Relationships, func(r *spdx.Relationship) bool { return r.RefB.ElementRefID == id }), "11: nothing is related to %s", name)
	}
	for _, r := range doc.Relationships {
		require(r.Relationship == "DESCRIBES" && r.RefA.ElementRefID == "DOCUMENT" || r.Relationship == "DEPENDS_ON", "11.1: relationship %q of %s", r.Relationship, r.RefA.ElementRefID)
	}
	require(seen["nfqproxy"], "the program is missing")
	return errors.Join(append(all, spdxlib.ValidateDocument(doc))...)
}
