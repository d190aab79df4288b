package manifest

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
)

// Options configure the reading of objects.
type Options struct {
	// Once: files are not read again. Then a path may be that of a pipe, and "-" is Stdin.
	Once  bool
	Stdin io.Reader
	// First: only the first document of each file is read.
	First bool
	// Context: Objects.Context and Objects.Templates are read.
	Context bool
	// Deployments: Objects.Deployments are read, and the extension checks them and Pods.
	Deployments bool
	// Extension makes what reads kinds that are not Kubernetes', for one reading; nil: they are skipped.
	Extension func() Extension
}

// Extension reads objects of kinds that are not Kubernetes', and adds to those of all files. Package labfile has one, for labs.
type Extension interface {
	// Read takes an object if it is of such a kind. It returns the paths of further files, relative to the directory of the
	// object's, warnings, and what is wrong.
	Read(at Place, apiVersion, kind string, fields map[string]any) (r Extended, ok bool)
	// Check returns the mistakes of a Pod or a Deployment.
	Check(object any) []yamlfile.FieldError
	// Complete adds to the objects, which are those of all files.
	Complete(o *Objects) *Error
}

// Extended is the effect that an object of an [Extension] has on the reading.
type Extended struct {
	Further, Warnings []string
	Errs              []yamlfile.FieldError
}

// Load reads the objects of all files: each path is a file, or a directory whose
// *.yaml, *.yml and *.json files are read, without those of its subdirectories
// and those that start with a dot. A file holds any number of YAML or JSON
// documents; a document is an object or a List of them.
//
// Services, EndpointSlices (discovery.k8s.io, v1 and v1beta1), Endpoints, Nodes and Pods are kept, other
// kinds counted in Objects.Skipped. Endpoints are mirrored to EndpointSlices as the control plane does. If anything is wrong,
// Load gives no objects and an [Errors] with all of it. That there is nothing to read is no error.
func Load(paths []string) (*Objects, error) { return Options{}.Load(paths) }

// Load is the function Load with the options.
func (o Options) Load(paths []string) (*Objects, error) {
	l := newLoader(o)
	o.input(paths).each(func(f file) []string {
		l.take(f)
		return l.further
	})
	return l.result()
}

func (o Options) input(paths []string) *input {
	return &input{paths: paths, once: o.Once, stdin: o.Stdin}
}

// LoadText is Load for a text instead of files, with the name of it in errors. It reads no files, also if an object in the text
// names some.
func (o Options) LoadText(name, text string) (*Objects, error) {
	l := newLoader(o)
	l.take(file{name: name, data: []byte(text)})
	return l.result()
}

// typeName is an apiVersion and a kind.
type typeName struct {
	apiVersion, kind string
}

// element returns the type of a list's items if the type is that of a list.
func (t typeName) element() (typeName, bool) {
	if t == (typeName{"v1", "List"}) {
		return typeName{}, true // each item has its own
	}
	kind, ok := strings.CutSuffix(t.kind, "List")
	e := typeName{t.apiVersion, kind}
	return e, ok && e.kept()
}

var deploymentType = typeName{"apps/v1", "Deployment"}

// kept reports whether objects of the type are kept, if only as Objects.Context or by LoadApplied.
func (t typeName) kept() bool {
	main := []typeName{{"v1", "Service"}, {"discovery.k8s.io/v1", "EndpointSlice"}, betaSlice, {"v1", "Endpoints"}, {"v1", "Node"}, {"v1", "Pod"}}
	return slices.Contains(main, t) || t.isContext() || t.hasTemplate()
}

func (t typeName) isContext() bool {
	return slices.Contains([]typeName{{networking, "NetworkPolicy"}, {networking, "ServiceCIDR"}, {"v1", "Namespace"}, {"v1", "ConfigMap"}}, t)
}

const networking = "networking.k8s.io/v1"

// namespaced reports whether objects of a kept type are in namespaces.
func (t typeName) namespaced() bool {
	return t.kind != "Node" && t.kind != "Namespace" && t.kind != "ServiceCIDR"
}

// Place is where an object stands and what it is, for the errors about it.
type Place struct {
	File     string
	Document int    // from 1; 0: the file as a whole
	Item     int    // index within the items of a List; -1: not in a List
	Object   string // as in [Error]
}

// String is the position: "lab.yaml: document 2: items[3]".
func (at Place) String() string { return position(at.File, at.Document, at.Item) }

// loader collects objects and errors over all files.
type loader struct {
	Options
	extension Extension
	decoder   yamlfile.Decoder
	objects   *Objects
	defined   map[string]Place // by Error.Object
	errs      Errors
	// large is the size in bytes from which on the items of a List are parsed one by one.
	large int

	namespace string             // of the commands in the text; empty: not known
	document  *yamlfile.Document // that is taken; nil: the lines of its fields are not known
	further   []string           // files that objects name

	unknown map[string]*unknownField // by kind and path, without indexes
}

// unknownField is a field of objects from an API server that was left out.
type unknownField struct {
	first   string // where it was
	objects int
}

func (l *loader) leftOut(at Place, kind, path string) {
	key := kind + " " + index.ReplaceAllString(path, "[]")
	if f, ok := l.unknown[key]; ok {
		f.objects++
		return
	}
	if l.unknown == nil {
		l.unknown = make(map[string]*unknownField)
	}
	l.unknown[key] = &unknownField{fmt.Sprintf("%s: %s: %s", at, at.Object, path), 1}
}

var index = regexp.MustCompile(`\[[0-9]+\]`)

// warnings are about the unknown fields, sorted.
func (l *loader) warnings() (all []string) {
	for _, key := range slices.Sorted(maps.Keys(l.unknown)) {
		more, f := "", l.unknown[key]
		if f.objects > 1 {
			more = fmt.Sprintf(" (and %d times more)", f.objects-1)
		}
		all = append(all, fmt.Sprintf("%s: unknown field, left out: the API server is newer than this program%s", f.first, more))
	}
	return all
}

func newLoader(o Options) *loader {
	l := &loader{Options: o, objects: new(Objects), defined: make(map[string]Place), large: largeList}
	if o.Extension != nil {
		l.extension = o.Extension()
	}
	return l
}

func (l *loader) take(f file) {
	if f.err != nil {
		l.errs = append(l.errs, &Error{File: f.name, Item: -1, Err: f.err})
		return
	}
	l.file(f.name, f.data)
}

func (l *loader) result() (*Objects, error) {
	if err := l.errs.orNil(); err != nil {
		return nil, err
	}
	l.mirror()
	l.objects.placeEndpoints()
	if l.extension != nil {
		if err := l.extension.Complete(l.objects); err != nil {
			l.errs = append(l.errs, err)
		}
	}
	if err := l.errs.orNil(); err != nil {
		return nil, err
	}
	l.objects.Warnings = append(l.objects.Warnings, l.warnings()...)
	for _, s := range l.objects.Skipped {
		if group, _, _ := strings.Cut(s.APIVersion, "/"); l.Context && (s.Kind == "Ingress" && group == "networking.k8s.io" || strings.HasSuffix(s.Kind, "Route") && group == "gateway.networking.k8s.io") {
			l.objects.Notes = append(l.objects.Notes, fmt.Sprintf("objects of kind %s are not read: whether the Services and ports that they name exist is not checked", s.Kind))
		}
		if l.Context && (strings.HasSuffix(s.Kind, "NetworkPolicy") || s.Kind == "AuthorizationPolicy") {
			l.objects.Notes = append(l.objects.Notes, fmt.Sprintf("objects of kind %s (%s) are not read: they may forbid connections, too", s.Kind, s.APIVersion))
		}
	}
	l.objects.sort()
	return l.objects, nil
}

func (l *loader) failAll(at Place, errs []yamlfile.FieldError) {
	for _, e := range errs {
		l.fail(at, e.Field, e.Err)
	}
}

func (l *loader) fail(at Place, path string, err error) {
	e := &Error{File: at.File, Document: at.Document, Item: at.Item, Object: at.Object, Field: path, Err: err}
	if le, ok := errors.AsType[*yamlfile.LineError](err); ok {
		e.Line, e.Err = le.Line, le.Err
	} else if l.document != nil {
		if at.Item >= 0 {
			path = strings.TrimSuffix(fmt.Sprintf("items[%d].%s", at.Item, path), ".")
		}
		e.Line = l.document.Line(path)
	}
	l.errs = append(l.errs, e)
}

func (l *loader) file(name string, data []byte) {
	l.objects.Files = append(l.objects.Files, name)
	text, err := pasted.Decode(string(data))
	if err != nil {
		l.errs = append(l.errs, &Error{File: name, Item: -1, Err: err})
		return
	}
	data = []byte(text)
	before := l.checkpoint()
	if l.documents(name, data); len(l.errs) == before.errs {
		return
	}
	defer l.explain(data, before.errs)
	plain, ok := uncover(data)
	if !ok {
		return
	}
	faults := slices.Clone(l.errs[before.errs:])
	l.back(before, Place{File: name})
	l.objects.Notes = append(slices.Clip(l.objects.Notes), name+" is read without what stands around the objects, such as signs of quotes or prompts")
	l.namespace = namespaceInCommands(text)
	defer func() { l.namespace = "" }()
	// Of the first mistakes of both, the later one is what is wrong with the objects.
	if l.documents(name, plain); len(l.errs) > before.errs && len(l.errs)-before.errs >= len(faults) && l.errs[before.errs].Line <= faults[0].Line {
		l.errs = append(l.errs[:before.errs], faults...)
	}
}

// explain replaces what a parser of YAML says of a text that was not meant to be YAML. from is the number of errors before it.
func (l *loader) explain(data []byte, from int) {
	if of := l.errs[from:]; len(of) > 0 && of[0].Object == "" && of[0].Field == "" && !errors.Is(of[0].Err, errNoObject) && !mentionsObject.Match(data) {
		of[0].Err = fmt.Errorf("neither Kubernetes objects in YAML or JSON nor what kubectl get or describe prints of them: %w", of[0].Err)
	}
}

var errNoObject = errors.New("not a Kubernetes object")

// mentionsObject is in every file that has objects in YAML or JSON.
var mentionsObject = regexp.MustCompile(`\b(apiVersion|kind)\b`)

// documents takes the documents of a file.
func (l *loader) documents(name string, data []byte) {
	i := -1
	for d := range parse(name, data, l.large) {
		i++
		l.takeDocument(Place{File: name, Document: i + 1, Item: -1}, d)
		if l.First {
			return
		}
	}
}

// takeDocument takes a List apart; anything else is one object.
func (l *loader) takeDocument(at Place, d document) {
	defer func() { l.document = nil }()
	switch {
	case d.Err != nil:
		l.fail(at, "", d.Err)
	case d.list == nil:
		if d.note != "" {
			l.objects.Notes = append(l.objects.Notes, d.note)
		}
		l.document = &d.Document
		l.contents(at, &d)
	default:
		if before := l.checkpoint(); !l.contents(at, &d) {
			l.back(before, at)
			l.takeDocument(at, d.list.whole())
		}
	}
}

// contents takes the objects of a document. It returns false for a List whose items have to be
// parsed as a whole.
func (l *loader) contents(at Place, d *document) bool {
	if items, ok := d.Value.([]any); ok && len(d.Duplicates) == 0 && len(items) > 0 && isObject(items[0]) { // as jq .items makes it
		for i, item := range items {
			l.item(Place{File: at.File, Document: at.Document, Item: i}, item, typeName{}, nil)
		}
		return true
	}
	t, m, ok := l.typeOf(at, d.Value, typeName{})
	if !ok {
		return false
	}
	element, isList := t.element()
	if d.list != nil && (!isList || len(d.Duplicates) > 0) {
		return false
	}
	if !isList {
		l.object(at, t, m, d.Duplicates)
		return true
	}
	at.Object = t.kind
	l.envelope(at, m)
	if d.list != nil {
		before := len(l.errs)
		for i, text := range d.list.items {
			item, ok := d.list.parse(text)
			if !ok {
				return false
			}
			l.item(Place{File: at.File, Document: at.Document, Item: i}, item, element, nil)
		}
		return len(l.errs) == before // as a whole, mistakes have their lines
	}
	items, ok := m["items"].([]any)
	if !ok && m["items"] != nil {
		l.fail(at, "items", fmt.Errorf("want a list, have %s", yamlfile.Describe(m["items"])))
	}
	duplicates := make(map[int][]string)
	for _, path := range d.Duplicates {
		var i int
		if n, err := fmt.Sscanf(path, "items[%d]", &i); err != nil || n != 1 {
			l.fail(at, path, errDuplicate)
			continue
		}
		_, rest, _ := strings.Cut(path, "]")
		duplicates[i] = append(duplicates[i], strings.TrimPrefix(rest, "."))
	}
	for i, item := range items {
		l.item(Place{File: at.File, Document: at.Document, Item: i}, item, element, duplicates[i])
	}
	return true
}

// isObject reports whether an element of a list looks like an object of Kubernetes.
func isObject(item any) bool {
	m, ok := item.(map[string]any)
	return ok && m["kind"] != nil && m["apiVersion"] != nil
}

// envelope checks the fields of a List besides its items.
func (l *loader) envelope(at Place, m map[string]any) {
	var envelope struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ListMeta `json:"metadata"`
	}
	rest := maps.Clone(m)
	delete(rest, "items")
	l.failAll(at, l.decoder.Decode(rest, &envelope))
}

func (l *loader) item(at Place, item any, element typeName, duplicates []string) {
	t, m, ok := l.typeOf(at, item, element)
	if !ok {
		return
	}
	if element, nested := t.element(); nested {
		l.nested(at, t, m, element, duplicates)
		return
	}
	l.object(at, t, m, duplicates)
}

// nested takes a List within a List apart. Its items have the place of the List.
func (l *loader) nested(at Place, t typeName, m map[string]any, element typeName, duplicates []string) {
	at.Object = t.kind
	l.envelope(at, m)
	for _, path := range duplicates {
		l.fail(at, path, errDuplicate)
	}
	items, ok := m["items"].([]any)
	if !ok && m["items"] != nil {
		l.fail(at, "items", fmt.Errorf("want a list, have %s", yamlfile.Describe(m["items"])))
	}
	for _, item := range items {
		l.item(Place{File: at.File, Document: at.Document, Item: at.Item}, item, element, nil)
	}
}

// checkpoint is what a loader had at a time.
type checkpoint struct {
	objects Objects
	errs    int
	unknown map[string]*unknownField
}

func (l *loader) checkpoint() checkpoint {
	m := checkpoint{*l.objects, len(l.errs), make(map[string]*unknownField)}
	for key, f := range l.unknown {
		m.unknown[key] = &unknownField{f.first, f.objects}
	}
	m.objects.Skipped = slices.Clone(l.objects.Skipped)
	return m
}

// back makes the loader forget what it took since, of a document or, without its number, of a file.
func (l *loader) back(to checkpoint, document Place) {
	maps.DeleteFunc(l.defined, func(_ string, at Place) bool {
		return at.File == document.File && (document.Document == 0 || at.Document == document.Document)
	})
	*l.objects, l.errs, l.unknown = to.objects, l.errs[:to.errs], to.unknown
}

var errDuplicate = errors.New("given twice")

// typeOf reads apiVersion and kind; items of typed lists may leave them out.
func (l *loader) typeOf(at Place, value any, inherited typeName) (typeName, map[string]any, bool) {
	m, ok := value.(map[string]any)
	if !ok {
		l.fail(at, "", fmt.Errorf("%w: want apiVersion, kind and so on, have %s", errNoObject, yamlfile.Describe(value)))
		return typeName{}, nil, false
	}
	t := inherited
	for _, f := range []struct {
		name string
		into *string
	}{{"apiVersion", &t.apiVersion}, {"kind", &t.kind}} {
		switch v := m[f.name].(type) {
		case nil:
		case string:
			*f.into = v
		default:
			l.fail(at, f.name, fmt.Errorf("want a string, have %s", yamlfile.Describe(v)))
			return typeName{}, nil, false
		}
		if *f.into == "" {
			l.fail(at, f.name, errors.New("missing: not a Kubernetes object"))
			return typeName{}, nil, false
		}
	}
	if t == betaSlice {
		t.apiVersion, m = "discovery.k8s.io/v1", ofBeta(m)
	}
	return t, m, true
}
