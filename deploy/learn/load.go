package learn

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Mistake is a mistake in a file of a course.
type Mistake struct {
	File  string
	Line  int    // from 1; 0: none in particular
	Field string // as steps[0].question; empty: none in particular
	Err   error
}

// Error has the file, the line and the field.
func (m *Mistake) Error() string {
	s := m.File
	if m.Line > 0 {
		s += ":" + strconv.Itoa(m.Line)
	}
	if m.Field != "" {
		s += ": " + m.Field
	}
	return s + ": " + m.Err.Error()
}

// Unwrap returns the cause.
func (m *Mistake) Unwrap() error { return m.Err }

// Mistakes are the mistakes of a course, in the order of its files.
type Mistakes []*Mistake

// Error has a line for each.
func (m Mistakes) Error() string {
	var lines []string
	for _, one := range m {
		lines = append(lines, one.Error())
	}
	return strings.Join(lines, "\n")
}

// Load reads a course, with the values that a seed draws. The error is of type [Mistakes], or that of a file that cannot be
// read.
func Load(files fs.FS, seed uint64) (*Course, error) {
	c := new(Course)
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

// numbered lists the directories in a directory that have a number, by the number.
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
			mistakes = append(mistakes, &Mistake{File: path.Join(in, e.Name()), Err: errors.New("want a number from 1 to 999, and words of small letters and digits, as 1-first-words")})
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
	file := path.Join(d.path, "chapter.yaml")
	data, err := fs.ReadFile(files, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Mistakes{{File: file, Err: errors.New("missing: the title of the chapter")}}
	}
	if err != nil {
		return nil, err
	}
	var header struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Title      string `yaml:"title"`
	}
	p := parser{file: file}
	if p.decode(data, &header); len(p.mistakes) == 0 {
		p.want("apiVersion", header.APIVersion == APIVersion, "want %s", APIVersion)
		p.want("kind", header.Kind == ChapterKind, "want %s", ChapterKind)
		p.want("title", header.Title != "", "missing")
	}
	c := &Chapter{Number: d.number, Title: header.Title}
	units, err := numbered(files, d.path)
	if err != nil {
		return nil, err
	}
	if len(units) == 0 {
		p.fail("", "the chapter has no units: want directories such as 1-first, with unit.yaml and text.md")
	}
	for _, u := range units {
		unit, err := LoadUnit(files, u.path, UnitSeed(seed, fmt.Sprintf("%d.%d", d.number, u.number)))
		if all, ok := errors.AsType[Mistakes](err); ok {
			p.mistakes = append(p.mistakes, all...)
			continue
		} else if err != nil {
			return nil, err
		}
		unit.ID = fmt.Sprintf("%d.%d", d.number, u.number)
		c.Units = append(c.Units, unit)
	}
	return c, p.err()
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
	p := parser{file: file}
	var written struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		*Unit      `yaml:",inline"`
	}
	written.Unit = u
	p.decode(u.files[unitFile], &written)
	if len(p.mistakes) == 0 {
		p.want("apiVersion", written.APIVersion == APIVersion, "want %s", APIVersion)
		p.want("kind", written.Kind == UnitKind, "want %s", UnitKind)
		u.vary(variant)
		p.unit(u)
		if u.complete() {
			p.lab(u)
			p.texts(u)
		}
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return u, nil
}

// complete reports whether no step and no check is empty.
func (u *Unit) complete() bool {
	return !slices.ContainsFunc(u.Steps, func(s *Step) bool { return s == nil || slices.Contains(s.Checks, nil) })
}

// vary puts a variant in force.
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

// parser parses a file, and collects its mistakes.
type parser struct {
	file     string
	root     yaml.Node
	mistakes Mistakes
}

func (p *parser) err() error {
	if len(p.mistakes) == 0 {
		return nil
	}
	return p.mistakes
}

// yamlLine is the line in an error of package yaml.
var yamlLine = regexp.MustCompile(`line ([0-9]+): (?s:(.*))`)

// lineFromZero matches the errors of its parser, whose lines count from 0; those of its scanner count from 1 (parser.fail in
// decode.go of package yaml).
var lineFromZero = regexp.MustCompile(`^did not find expected (',' or|'-' indicator|<|key$|node content)`)

// decode reads a document.
func (p *parser) decode(data []byte, into any) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	err := d.Decode(into)
	if errors.Is(err, io.EOF) {
		err = errors.New("is empty")
	}
	if err != nil {
		p.failures(err)
		return
	}
	_ = yaml.Unmarshal(data, &p.root) // it has been read before
	var second yaml.Node
	if err := d.Decode(&second); !errors.Is(err, io.EOF) {
		p.mistakes = append(p.mistakes, &Mistake{File: p.file, Line: second.Line, Err: errors.New("has a second document: want one")})
	}
}

// failures notes the mistakes in an error of package yaml.
func (p *parser) failures(err error) {
	var all []string
	if types, ok := errors.AsType[*yaml.TypeError](err); ok {
		all = types.Errors
	} else {
		all = []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	for _, text := range slices.Compact(all) {
		m := &Mistake{File: p.file, Err: errors.New(text)}
		if parts := yamlLine.FindStringSubmatch(text); parts != nil {
			m.Line, _ = strconv.Atoi(parts[1])
			if lineFromZero.MatchString(parts[2]) {
				m.Line++
			}
			m.Err = errors.New(inWords(parts[2]))
		}
		p.mistakes = append(p.mistakes, m)
	}
}

var (
	unknownField = regexp.MustCompile(`^field (\S+) not found in type .*$`)
	wrongType    = regexp.MustCompile("^cannot unmarshal !!(\\S+)( `.*`)? into (.+)$")
	typesOfGo    = map[string]string{"string": "a text", "int": "a number", "float64": "a number", "bool": "true or false"}
)

// inWords is an error of package yaml without names of types in Go.
func inWords(text string) string {
	if m := unknownField.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("unknown field %q", m[1])
	}
	if m := wrongType.FindStringSubmatch(text); m != nil {
		want := typesOfGo[m[3]]
		switch {
		case want != "":
		case strings.HasPrefix(m[3], "[]"):
			want = "a list"
		default:
			want = "fields with values"
		}
		return fmt.Sprintf("want %s, not %s%s", want, map[string]string{"map": "fields", "seq": "a list", "str": "the text"}[m[1]], m[2])
	}
	return text
}

// fail notes a mistake of a field, as steps[0].name.
func (p *parser) fail(field, format string, args ...any) {
	p.mistakes = append(p.mistakes, &Mistake{File: p.file, Line: lineOf(&p.root, field), Field: field, Err: fmt.Errorf(format, args...)})
}

// want notes a mistake unless ok.
func (p *parser) want(field string, ok bool, format string, args ...any) {
	if !ok {
		p.fail(field, format, args...)
	}
}

var fieldPart = regexp.MustCompile(`[^.\[\]]+`)

// lineOf is the line of a field or, if the document lacks it, of what should have it.
func lineOf(n *yaml.Node, field string) int {
	if n.Kind == yaml.DocumentNode {
		n = n.Content[0]
	}
	line := n.Line
	for _, part := range fieldPart.FindAllString(field, -1) {
		var next *yaml.Node
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == part {
					next, line = n.Content[i+1], n.Content[i].Line
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(part); err == nil && i < len(n.Content) {
				next, line = n.Content[i], n.Content[i].Line
			}
		}
		if next == nil {
			break
		}
		n = next
	}
	return line
}

// Texts are one text or several.
type Texts []string

// UnmarshalYAML reads a scalar or a list of scalars.
func (t *Texts) UnmarshalYAML(n *yaml.Node) error {
	nodes := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		nodes = n.Content
	}
	for _, n := range nodes {
		if n.Kind != yaml.ScalarNode {
			return fmt.Errorf("line %d: want a text, or a list of texts", n.Line)
		}
		*t = append(*t, n.Value)
	}
	return nil
}
