package learn

import (
	"encoding/json"
	"flag"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
)

var update = flag.Bool("update", false, "write unit.schema.json")

// TestSchema: the schema is that of the types. To make it anew: go test ./deploy/learn -run TestSchema -update
func TestSchema(t *testing.T) {
	s := &schemaOf{t: t, comments: fieldComments(t), definitions: make(map[string]any)}
	root := s.object(reflect.TypeFor[Unit]())
	properties := root["properties"].(map[string]any)
	properties["apiVersion"] = map[string]any{"const": yamlfile.APIVersion}
	properties["kind"] = map[string]any{"const": UnitKind}
	root["$schema"], root["title"], root["$defs"] = "https://json-schema.org/draft/2020-12/schema", "A unit of nfqproxy learn", s.definitions
	root["required"] = []string{"apiVersion", "kind", "title", "minutes", "lab", "shell", "steps"}
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	if *update {
		if err := os.WriteFile("unit.schema.json", text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != string(Schema) {
		t.Error("unit.schema.json is not that of the types: go test ./deploy/learn -run TestSchema -update")
	}
}

// schemaOf makes schemas of types.
type schemaOf struct {
	t           *testing.T
	comments    map[string]string // of Type.Field
	definitions map[string]any
}

func (s *schemaOf) object(typ reflect.Type) map[string]any {
	properties := make(map[string]any)
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case !f.IsExported() || name == "-":
			continue
		case options == "inline":
			for k, v := range s.object(f.Type)["properties"].(map[string]any) {
				properties[k] = v
			}
			continue
		}
		p := s.schema(f.Type)
		if c := s.comments[typ.Name()+"."+f.Name]; c != "" {
			p["description"] = c
		}
		properties[name] = p
	}
	return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
}

func (s *schemaOf) schema(typ reflect.Type) map[string]any {
	scalar := map[string]any{"type": []string{"string", "number", "boolean"}} // YAML's 80 is a text, too
	switch {
	case typ == reflect.TypeFor[Texts]():
		return map[string]any{"oneOf": []any{scalar, map[string]any{"type": "array", "items": scalar}}}
	case typ == reflect.TypeFor[time.Duration]():
		return map[string]any{"type": "string", "pattern": "^[0-9.]+(ms|s|m)$"}
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return s.schema(typ.Elem())
	case reflect.String:
		return scalar
	case reflect.Int:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.schema(typ.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": s.schema(typ.Elem())}
	case reflect.Struct:
		if _, done := s.definitions[typ.Name()]; !done {
			s.definitions[typ.Name()] = nil // it may be in itself
			s.definitions[typ.Name()] = s.object(typ)
		}
		return map[string]any{"$ref": "#/$defs/" + typ.Name()}
	}
	s.t.Fatalf("no schema for %v", typ)
	return nil
}

// fieldComments are the comments of the fields of all types of units.
func fieldComments(t *testing.T) map[string]string {
	all := make(map[string]string)
	f, err := goparser.ParseFile(token.NewFileSet(), "unit.go", nil, goparser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		typ, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		of, ok := typ.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range of.Fields.List {
			text := field.Doc.Text()
			if text == "" {
				text = field.Comment.Text()
			}
			for _, name := range field.Names {
				all[typ.Name.Name+"."+name.Name] = strings.Join(strings.Fields(text), " ")
			}
		}
		return true
	})
	return all
}
