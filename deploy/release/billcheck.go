package main

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"time"

	"github.com/github/go-spdx/v2/spdxexp"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdxlib"
)

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
