package learn

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
)

// Mistake is a mistake in a file of a course.
type Mistake = yamlfile.Mistake

// Mistakes are the mistakes of a course, in the order of its files.
type Mistakes = yamlfile.Mistakes

// parser parses a file of a course, and collects its mistakes.
type parser struct{ yamlfile.File }

func newParser(file string) parser {
	formats := map[reflect.Type]yamlfile.Format{reflect.TypeFor[Texts](): {Want: "a text, or a list of texts", Read: readTexts}}
	return parser{yamlfile.File{Name: file, Decoder: yamlfile.Decoder{Formats: formats, ListFields: true}}}
}

// advice completes those messages of the YAML parser that do not say what to write instead.
var advice = []struct{ message, advice string }{
	{"mapping values are not allowed", `put a text with a colon in quotes, as title: "Services: names", or indent this line as those above`},
	{"did not find expected key", "indent the lines from here on as those above, and put a text with quotes in it in quotes as a whole"},
	{"did not find expected '-'", "indent the lines from here on as those above"},
	{"did not find expected ','", "close the bracket, and put texts with commas or brackets in quotes"},
	{"could not find expected ':'", "want NAME: VALUE; indent further lines of a text"},
	{"cannot start any token", "put a text that begins with ` or @ or % in quotes"},
	{"tab character", "use spaces"},
}

// advise adds advice to the mistakes.
func (p *parser) advise() {
	for _, m := range p.Mistakes {
		for _, a := range advice {
			if m.Field == "" && strings.Contains(m.Err.Error(), a.message) {
				m.Err = fmt.Errorf("%w: %s", m.Err, a.advice)
				break
			}
		}
	}
}

// Load reads a course, with the values that a seed draws. The error is of type [Mistakes], or that of a file that cannot be
// read.
func Load(files fs.FS, seed uint64) (*Course, error) {
	c := new(Course)
	for _, name := range []string{chapterFile, unitFile} {
		if _, err := fs.Stat(files, name); err == nil {
			return nil, Mistakes{{File: name, Err: errors.New("belongs to a chapter or unit: give the directory of the course, which has the directories of its chapters")}}
		}
	}
	chapters, err := numbered(files, ".")
	if err != nil {
		return nil, err
	}
	if len(chapters) == 0 {
		return nil, Mistakes{{File: ".", Err: errors.New("no chapters: want directories such as 1-services, with chapter.yaml and units")}}
	}
	var mistakes Mistakes
	for _, d := range chapters {
		chapter, err := loadChapter(files, d, seed)
		if all, ok := errors.AsType[Mistakes](err); ok {
			mistakes = append(mistakes, all...)
		} else if err != nil {
			return nil, err
		}
		if chapter != nil {
			c.Chapters = append(c.Chapters, chapter)
		}
	}
	if len(mistakes) > 0 {
		return nil, mistakes
	}
	return c, nil
}

// directory is the directory of a chapter or unit.
type directory struct {
	path   string
	number int
	name   string
}

var numberedName = regexp.MustCompile(`^([1-9][0-9]{0,2})-([a-z0-9]+(-[a-z0-9]+)*)$`)

// numbered lists the numbered directories in a directory, in the order of their numbers.
func numbered(files fs.FS, in string) (all []directory, _ error) {
	entries, err := fs.ReadDir(files, in)
	if err != nil {
		return nil, err
	}
	var mistakes Mistakes
	byNumber := make(map[int]string)
	for _, e := range entries {
		m := numberedName.FindStringSubmatch(e.Name())
		switch {
		case !e.IsDir():
			continue
		case m == nil && e.Name()[0] >= '0' && e.Name()[0] <= '9':
			mistakes = append(mistakes, &Mistake{File: path.Join(in, e.Name()), Err: errors.New("want a number from 1 to 999, and words of lower-case letters and digits, such as 1-first-words")})
			continue
		case m == nil:
			continue
		}
		n, _ := strconv.Atoi(m[1]) // digits only
		d := directory{path.Join(in, e.Name()), n, m[2]}
		if other := byNumber[n]; other != "" {
			mistakes = append(mistakes, &Mistake{File: d.path, Err: fmt.Errorf("has the same number as %s", other)})
		}
		byNumber[n] = d.path
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b directory) int { return cmp.Compare(a.number, b.number) })
	if len(mistakes) > 0 {
		return nil, mistakes
	}
	return all, nil
}

func loadChapter(files fs.FS, d directory, seed uint64) (*Chapter, error) {
	file := path.Join(d.path, chapterFile)
	data, err := fs.ReadFile(files, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Mistakes{{File: file, Err: errors.New("missing: the title of the chapter")}}
	}
	if err != nil {
		return nil, err
	}
	var header struct {
		Title string `json:"title"`
	}
	p := newParser(file)
	p.Decode(data, ChapterKind, &header)
	if p.advise(); len(p.Mistakes) == 0 {
		p.Want("title", header.Title != "", "missing")
	}
	c := &Chapter{Number: d.number, Title: header.Title}
	units, err := numbered(files, d.path)
	if err != nil {
		return nil, err
	}
	if len(units) == 0 {
		p.Fail("", "the chapter has no units: want directories such as 1-first, with unit.yaml and text.md")
	}
	for _, u := range units {
		unit, err := LoadUnit(files, u.path, UnitSeed(seed, fmt.Sprintf("%d.%d", d.number, u.number)))
		if all, ok := errors.AsType[Mistakes](err); ok {
			p.Mistakes = append(p.Mistakes, all...)
			continue
		} else if err != nil {
			return nil, err
		}
		unit.ID = fmt.Sprintf("%d.%d", d.number, u.number)
		c.Units = append(c.Units, unit)
	}
	return c, p.Err()
}

// LoadUnit reads the unit in a directory, with the values that its own seed draws. It has no ID. The error is as that of
// [Load].
func LoadUnit(files fs.FS, dir string, seed uint64) (*Unit, error) {
	all, err := readFiles(files, dir)
	if err != nil {
		return nil, err
	}
	name := path.Base(dir)
	if m := numberedName.FindStringSubmatch(name); m != nil {
		name = m[2]
	}
	return parseUnit(dir, name, all, seed)
}

// Draw is the unit with the values that another seed draws.
func (u *Unit) Draw(seed uint64) (*Unit, error) {
	other, err := parseUnit(u.dir, u.Name, u.templates, seed)
	if err == nil {
		other.ID = u.ID
	}
	return other, err
}

// maxFiles bounds the files of a unit, in bytes.
const maxFiles = 4 << 20

// readFiles reads the files of a unit, which has no directories.
func readFiles(files fs.FS, dir string) (map[string][]byte, error) {
	entries, err := fs.ReadDir(files, dir)
	if err != nil {
		return nil, err
	}
	all, size := make(map[string][]byte), int64(0)
	for _, e := range entries {
		file := path.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") || strings.HasSuffix(e.Name(), "~") { // of editors
			continue
		}
		if !e.Type().IsRegular() {
			return nil, Mistakes{{File: file, Err: errors.New("is not a file: a unit has files only")}}
		}
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		if size += info.Size(); size > maxFiles {
			return nil, Mistakes{{File: file, Err: fmt.Errorf("the files of the unit are larger than %d MiB", maxFiles>>20)}}
		}
		if all[e.Name()], err = fs.ReadFile(files, file); err != nil {
			return nil, err
		}
	}
	return all, nil
}

const (
	chapterFile = "chapter.yaml"

	unitFile = "unit.yaml"
	textFile = "text.md"
	// referenceFile is read in books and pages only.
	referenceFile = "reference.md"
)

// parseUnit makes a unit of the files of its directory.
func parseUnit(dir, name string, templates map[string][]byte, seed uint64) (*Unit, error) {
	file := path.Join(dir, unitFile)
	data, ok := templates[unitFile]
	if !ok {
		return nil, Mistakes{{File: file, Err: errors.New("missing: the steps of the unit")}}
	}
	values, variant, err := draw(file, data, seed)
	if err != nil {
		return nil, err
	}
	u := &Unit{Name: name, Seed: seed, dir: dir, templates: templates, files: make(map[string][]byte)}
	for name, template := range templates {
		u.files[name] = substitute(template, values)
	}
	p := newParser(file)
	if p.Decode(u.files[unitFile], UnitKind, u); len(p.Mistakes) == 0 {
		u.vary(variant)
		p.unit(u)
		if u.complete() {
			p.lab(u)
			p.texts(u)
		}
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	return u, nil
}

// complete reports whether no step and no check is empty.
func (u *Unit) complete() bool {
	return !slices.ContainsFunc(u.Steps, func(s *Step) bool { return s == nil || slices.Contains(s.Checks, nil) })
}

// vary applies a variant.
func (u *Unit) vary(name string) {
	for i := range u.Variants {
		v := &u.Variants[i]
		if v.Name != name {
			continue
		}
		u.Variant = name
		u.Setup += "\n" + v.Setup
		for _, s := range u.Steps {
			if s != nil {
				s.Solution = cmp.Or(v.Solutions[s.Name], s.Solution)
			}
		}
	}
}

// Texts are one text or several.
type Texts []string

// readTexts reads a text or a list of texts.
func readTexts(_ string, value any) (any, bool, error) {
	values, ok := value.([]any)
	if !ok {
		values = []any{value}
	}
	var texts Texts
	for _, v := range values {
		text, ok := yamlfile.TextOf(v)
		if !ok {
			return nil, false, nil
		}
		texts = append(texts, text)
	}
	return texts, true, nil
}
