package licenses

import (
	"regexp"
	"slices"

	"github.com/github/go-spdx/v2/spdxexp"
	"github.com/google/licensecheck"
)

// enough is the share of a text, in percent, that has to be that of known licences; the rest is names and years.
const enough = 75

// stated is the licence in the form that SPDX recommends for files.
var stated = regexp.MustCompile(`(?m)SPDX-License-Identifier: *([A-Za-z0-9.+() -]*[A-Za-z0-9.+)])`)

// Identifier is the licence of a module as SPDX writes it. It is empty unless the module has one known licence, or
// states how several apply: texts alone leave open whether all apply or the user has the choice.
func (m Module) Identifier() string {
	found := m.found()
	if len(found) != 1 {
		return ""
	}
	// The library has names that SPDX has not.
	if known, _ := spdxexp.ValidateLicenses(found); !known {
		return ""
	}
	return found[0]
}

// found are the module's licences: what its files state, or the texts that are in them. There are none if a text is unknown.
func (m Module) found() (ids []string) {
	for _, f := range m.Files {
		if !f.grants() {
			continue
		}
		if s := stated.FindStringSubmatch(f.Text); s != nil {
			ids = append(ids, s[1])
			continue
		}
		text := licensecheck.Scan([]byte(f.Text))
		if text.Percent < enough {
			return nil
		}
		for _, match := range text.Match {
			if !match.IsURL {
				ids = append(ids, match.ID)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
