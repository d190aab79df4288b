package learn

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// UnitSeed is the seed of a unit for a student's seed. Those of two units, or of two students, have nothing in common.
func UnitSeed(seed uint64, id string) uint64 {
	sum := sha256.Sum256(append(binary.BigEndian.AppendUint64(nil, seed), id...))
	return binary.BigEndian.Uint64(sum[:]) >> 11 // a number that JSON has exactly
}

var variableName = regexp.MustCompile(`^[a-z][A-Za-z0-9]*$`)

// draw draws the values of a unit's variables, and its variant. Consecutive seeds take the variants in turn.
func draw(file string, data []byte, seed uint64) (values map[string]string, variant string, _ error) {
	var written struct {
		Variables []Variable `json:"variables"`
		Variants  []Variant  `json:"variants"`
	}
	p := newParser(file)
	value := p.Read(data)
	p.advise()                                    // a file that cannot be parsed ends here
	if fields, ok := value.(map[string]any); ok { // the others may have types that the values make
		p.Into(map[string]any{"variables": fields["variables"], "variants": fields["variants"]}, &written)
	}
	r := rand.New(rand.NewPCG(seed, 0))
	values = make(map[string]string)
	for i, v := range written.Variables {
		at := "variables[" + strconv.Itoa(i) + "]"
		p.Want(at+".name", variableName.MatchString(v.Name), "%q: want a letter, followed by letters and digits", v.Name)
		p.Want(at+".name", values[v.Name] == "", "duplicate variable %q", v.Name)
		switch {
		case len(v.OneOf) > 0 && (v.From != 0 || v.To != 0):
			p.Fail(at, "want oneOf, or from and to")
		case len(v.OneOf) > 0:
			values[v.Name] = v.OneOf[r.IntN(len(v.OneOf))]
		case v.From > v.To || v.From == 0 && v.To == 0:
			p.Fail(at, "want oneOf, or from and to, with to at least as large as from")
		case v.To-v.From < 0 || v.To-v.From == math.MaxInt:
			p.Fail(at, "too many numbers between from and to")
		default:
			values[v.Name] = strconv.Itoa(v.From + r.IntN(v.To-v.From+1))
		}
	}
	if n := uint64(len(written.Variants)); n > 0 && len(p.Mistakes) == 0 {
		names := make(map[string]bool)
		for i, v := range written.Variants {
			at := "variants[" + strconv.Itoa(i) + "]"
			p.Want(at+".name", v.Name != "" && !names[v.Name], "want a name that differs from all other variants")
			names[v.Name] = true
			for name, value := range v.Values {
				p.Want(at+".values", variableName.MatchString(name), "%q: want a letter, followed by letters and digits", name)
				p.Want(at+".values", !strings.Contains(value, "\n"), "%s: want one line", name)
				first := written.Variants[0].Values
				_, has := first[name]
				p.Want(at+".values", has || values[name] != "", "%s: the first variant does not have it, and it is not a variable", name)
			}
		}
		chosen := written.Variants[seed%n]
		variant = chosen.Name
		for name := range written.Variants[0].Values {
			if _, has := chosen.Values[name]; !has && values[name] == "" {
				p.Fail("variants["+strconv.Itoa(int(seed%n))+"].values", "%s is missing: the first variant has it", name)
			}
		}
		drawn := maps.Clone(values)
		for name, value := range chosen.Values {
			values[name] = string(substitute([]byte(value), drawn))
		}
	}
	return values, variant, p.Err()
}

// substitute replaces ${name}, for the names that have values.
func substitute(text []byte, values map[string]string) []byte {
	if len(values) == 0 {
		return text
	}
	var pairs []string
	for name, value := range values {
		pairs = append(pairs, "${"+name+"}", value)
	}
	return []byte(strings.NewReplacer(pairs...).Replace(string(text)))
}

// Differs reports whether students have different values in the unit.
func (u *Unit) Differs() bool { return len(u.Variables)+len(u.Variants) > 0 }

// SeedText is the unit's seed, as records have it.
func (u *Unit) SeedText() string { return strconv.FormatUint(u.Seed, 10) }

// Digest tells the unit's files, before values are drawn, from other ones.
func (u *Unit) Digest() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(u.templates)) {
		fmt.Fprintf(h, "%q %d\n%s", name, len(u.templates[name]), u.templates[name])
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Reference is what a reader of the book wants beyond the tasks, in Markdown; empty: there is none.
func (u *Unit) Reference() string { return string(u.files[referenceFile]) }

// File is a file of the unit, with the drawn values; nil: it has none of this name.
func (u *Unit) File(name string) []byte { return u.files[name] }

// FileNames are the names of the unit's files that students see: those with the course's own texts are not among them.
func (u *Unit) FileNames() (names []string) {
	for name := range u.files {
		if name != unitFile && name != textFile && name != referenceFile {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
