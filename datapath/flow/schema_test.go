package flow_test

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/trace"
)

// section gives what SCHEMA.md has below a heading, up to the next of its rank.
func section(t *testing.T, schema, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(schema, "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("SCHEMA.md has no section %s", heading)
	}
	text, _, _ := strings.Cut(rest, "\n## ")
	return text
}

// TestSchemaNamesEveryField, and no others, and every code.
func TestSchemaNamesEveryField(t *testing.T) {
	b, err := os.ReadFile("SCHEMA.md")
	if err != nil {
		t.Fatal(err)
	}
	schema := string(b)
	for heading, typ := range map[string]reflect.Type{
		"Record": reflect.TypeFor[flow.Record](), "Candidate": reflect.TypeFor[flow.Candidate](), "Excluded": reflect.TypeFor[flow.Excluded](),
		"Balance": reflect.TypeFor[flow.Balance](), "Shadow": reflect.TypeFor[flow.Shadow](), "Attempt": reflect.TypeFor[flow.Attempt](), "Step": reflect.TypeFor[flow.Step](), "Reply": reflect.TypeFor[flow.Reply](),
		"Stages": reflect.TypeFor[flow.Stages](), "Life": reflect.TypeFor[flow.Life](), "Count": reflect.TypeFor[flow.Count](),
		"Moment": reflect.TypeFor[flow.Moment](), "Hold": reflect.TypeFor[flow.Hold](),
		"Trace": reflect.TypeFor[trace.Trace](), "Way": reflect.TypeFor[trace.Way](), "Conntrack": reflect.TypeFor[trace.Conntrack](),
	} {
		var documented []string
		text, _, _ := strings.Cut(section(t, schema, heading), "\n### ")
		for line := range strings.Lines(text) {
			if name, ok := strings.CutPrefix(line, "| `"); ok {
				name, _, _ = strings.Cut(name, "`")
				documented = append(documented, name)
			}
		}
		var fields []string
		for i := range typ.NumField() {
			if typ.Field(i).Tag.Get("json") == "-" {
				continue
			}
			name, options, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			fields = append(fields, name)
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "| `"+name+"`") && strings.Contains(line, "| always |") == (options == "omitempty") {
					t.Errorf("%s: %s: whether it is always there is documented wrongly", heading, name)
				}
			}
		}
		if got, want := strings.Join(documented, " "), strings.Join(fields, " "); got != want {
			t.Errorf("%s: documented are\n %s\nthe fields are\n %s", heading, got, want)
		}
	}
	var codes []string
	for v := decision.Accept; v.String() != "unknown"; v++ {
		codes = append(codes, v.String())
	}
	for r := decision.Reason(0); r.String() != "unknown"; r++ {
		codes = append(codes, r.String())
	}
	for e := decision.EntryClusterIP; e.String() != "unknown"; e++ {
		codes = append(codes, e.String())
	}
	for b := decision.BranchInternal; b.String() != ""; b++ {
		codes = append(codes, b.String())
	}
	for m := decision.MarkAll; m.String() != ""; m++ {
		codes = append(codes, m.String())
	}
	for e := decision.Exclusion(1); e.String() != "unknown"; e++ {
		codes = append(codes, e.String())
	}
	for _, c := range codes {
		if !strings.Contains(schema, "`"+c+"`") {
			t.Errorf("the code %s is not documented", c)
		}
	}
}

// TestSchemaExample: the example is a record.
func TestSchemaExample(t *testing.T) {
	b, err := os.ReadFile("SCHEMA.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "```json\n")
	example, _, _ := strings.Cut(rest, "\n```")
	var r flow.Record
	d := json.NewDecoder(strings.NewReader(example))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || strings.Contains(example, "\n") {
		t.Fatalf("not one object on one line: %v", err)
	}
	if r.Version != flow.Version {
		t.Errorf("version %d, want %d", r.Version, flow.Version)
	}
}
