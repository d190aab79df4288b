package viewapi

import (
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi/flowapitest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
)

func loadDescription(t *testing.T) *openapi3.T {
	t.Helper()
	d, err := openapi3.NewLoader().LoadFromData(flowapi.Description)
	if err == nil {
		err = d.Validate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDescribedRoutes: the description has every route and no others, and lists which take the token and, by their
// tags, which daemons have.
func TestDescribedRoutes(t *testing.T) {
	var described, served []string
	for path, item := range loadDescription(t).Paths.Map() {
		for method, o := range item.Operations() {
			guarded := o.Security != nil && len(*o.Security) == 1 && (*o.Security)[0]["token"] != nil
			ofDaemons := !slices.Contains(o.Tags, "views") && !slices.Contains(o.Tags, "lab")
			described = append(described, fmt.Sprint(method, " ", path, " ", guarded, " ", ofDaemons))
			for _, name := range strings.Split(path, "/") {
				if name, ok := strings.CutPrefix(name, "{"); ok && o.Parameters.GetByInAndName("path", strings.TrimSuffix(name, "}")) == nil {
					t.Errorf("%s %s: parameter %s is not described", method, path, name)
				}
			}
		}
	}
	for _, r := range flowapi.Routes() {
		served = append(served, fmt.Sprint(r.Method, " ", r.Path, " ", r.Guarded, " true"))
	}
	for _, r := range Routes(Config{}) {
		served = append(served, fmt.Sprint(r.Method, " ", r.Path, " ", r.Guarded, " false"))
	}
	slices.Sort(described)
	slices.Sort(served)
	if !slices.Equal(described, served) {
		t.Errorf("described are\n%s\nserved are\n%s", strings.Join(described, "\n"), strings.Join(served, "\n"))
	}
}

// TestDescribedCodes: the lists of codes are Go's.
func TestDescribedCodes(t *testing.T) {
	schemas := loadDescription(t).Components.Schemas
	record := schemas["Record"].Value.Properties
	v := vocabulary.Words()
	var states, events, verdicts, reasons, exclusions []string
	for _, s := range flow.States() {
		states = append(states, s.String())
	}
	for _, e := range v.Events {
		events = append(events, e.Code)
	}
	for _, d := range v.Verdicts {
		verdicts = append(verdicts, d.Code)
	}
	for _, r := range flow.Reasons() {
		reasons = append(reasons, r.String())
	}
	for _, e := range v.Exclusions {
		exclusions = append(exclusions, e.Code)
	}
	missed := []string{observe.MissedSlow, observe.MissedSampled, observe.MissedLost, observe.MissedUnreachable, observe.MissedNoDaemon, observe.MissedLeftOut, observe.MissedNotRecorded, observe.MissedNotWritten}
	for _, list := range []struct {
		name      string
		described *openapi3.SchemaRef
		want      []string
	}{
		{"State", schemas["State"], states},
		{"Event", schemas["Event"], events},
		{"verdict", record["verdict"], verdicts},
		{"reason", record["reason"], reasons},
		{"Excluded.reason", schemas["Excluded"].Value.Properties["reason"], exclusions},
		{"Missed.why", schemas["Missed"].Value.Properties["why"], missed},
		{"Problem.code", schemas["Problem"].Value.Properties["code"], observetest.Problems()},
		{"Fault.kind", schemas["Fault"].Value.Properties["kind"], labapi.FaultKindNames()},
		{"LabNodeEvent.action", schemas["LabNodeEvent"].Value.Properties["action"], labapi.NodeActions},
		{"LabPodStatus.state", schemas["LabPodStatus"].Value.Properties["state"], []string{labapi.PodReady, labapi.PodUnready, labapi.PodTerminating}},
		{"LabPodStatus.server", schemas["LabPodStatus"].Value.Properties["server"], []string{labapi.ServerRuns, labapi.ServerStopped}},
		{"LessonCommand.command", schemas["LessonCommand"].Value.Properties["command"], labapi.LessonCommands},
		{"FaultParameter.type", schemas["FaultParameter"].Value.Properties["type"], []string{labapi.ParameterText, labapi.ParameterNumber, labapi.ParameterChoice, labapi.ParameterFlag}},
		{"MissedLine.why", schemas["MissedLine"].Value.Properties["why"], missed},
	} {
		if got, want := fmt.Sprint(list.described.Value.Enum), fmt.Sprint(list.want); got != want {
			t.Errorf("%s: described are\n%s\nwant\n%s", list.name, got, want)
		}
	}
}

// TestDescribedFields: the schemas have every field of the Go types, of its kind, and no
// others, and list which are always there.
func TestDescribedFields(t *testing.T) {
	d := loadDescription(t)
	s := &schemas{t: t, all: d.Components.Schemas, seen: map[string]bool{"Line": true, "State": true, "Event": true}}
	for _, root := range []reflect.Type{
		reflect.TypeFor[flow.Record](), reflect.TypeFor[observe.MissedLine](), reflect.TypeFor[observe.Missed](), reflect.TypeFor[observe.JoinedLine](), reflect.TypeFor[observe.Joined](), reflect.TypeFor[observe.Services](),
		reflect.TypeFor[observe.TableList](), reflect.TypeFor[observe.TableObjects](), reflect.TypeFor[observe.StatsList](), reflect.TypeFor[observe.StatusList](), reflect.TypeFor[observe.Topology](), reflect.TypeFor[observe.HoldList](),
		reflect.TypeFor[FindingList](), reflect.TypeFor[diagnose.Answer](), reflect.TypeFor[diagnose.Question](), reflect.TypeFor[labapi.Request](), reflect.TypeFor[labapi.Response](), reflect.TypeFor[remote.Manifest](),
		reflect.TypeFor[labapi.Status](), reflect.TypeFor[labapi.Change](), reflect.TypeFor[labapi.ChangeList](), reflect.TypeFor[labapi.Lesson](), reflect.TypeFor[labapi.LessonCommand](), reflect.TypeFor[labapi.LessonReply](), reflect.TypeFor[labapi.FaultList](),
		reflect.TypeFor[observe.Algorithms](), reflect.TypeFor[observe.Shadows](), reflect.TypeFor[observe.BalanceChange](),
		reflect.TypeFor[observe.Question](), reflect.TypeFor[observe.Act](), reflect.TypeFor[observe.Error](),
	} {
		s.compare(root)
	}
	for name := range s.all {
		if !s.seen[name] {
			t.Errorf("schema %s: there is no such type", name)
		}
	}
}

type schemas struct {
	t    *testing.T
	all  openapi3.Schemas
	seen map[string]bool
}

// ofLabs are types of package labapi whose schemas have no "Lab" before the type's name.
var ofLabs = regexp.MustCompile(`^(Fault|Lesson|Lookup|Request$|Response$|ChangeList$)`)

// schemaName is the type's name, but for those of several packages.
func schemaName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[flow.Hold]():
		return "Held"
	case reflect.TypeFor[observe.Confinement]():
		return "Confinement"
	}
	if t.PkgPath() == reflect.TypeFor[diagnose.Finding]().PkgPath() && t != reflect.TypeFor[diagnose.Finding]() && t != reflect.TypeFor[diagnose.Example]() {
		return "Why" + t.Name()
	}
	if t.PkgPath() == reflect.TypeFor[labapi.Status]().PkgPath() && !ofLabs.MatchString(t.Name()) {
		return "Lab" + t.Name()
	}
	return t.Name()
}

// jsonField is a field as JSON has it.
type jsonField struct {
	name   string
	always bool
	index  []int
	typ    reflect.Type
}

func jsonFields(t reflect.Type) (list []jsonField) {
	if t == reflect.TypeFor[diagnose.Finding]() { // see its MarshalJSON
		list = append(list, jsonField{"severity", true, nil, reflect.TypeFor[string]()})
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous { // its fields count as the outer one's
			for _, inner := range jsonFields(f.Type) {
				inner.index = append([]int{i}, inner.index...)
				list = append(list, inner)
			}
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "-" {
			list = append(list, jsonField{name, options != "omitempty" && options != "omitzero", f.Index, f.Type})
		}
	}
	return list
}

func (s *schemas) compare(typ reflect.Type) {
	name := schemaName(typ)
	if s.seen[name] {
		return
	}
	s.seen[name] = true
	schema := s.all[name]
	if schema == nil {
		s.t.Errorf("type %s has no schema", typ)
		return
	}
	question := schema.Value.AdditionalProperties.Has != nil // which may leave out more
	var fields []string
	for _, f := range jsonFields(typ) {
		fields = append(fields, f.name)
		property := schema.Value.Properties[f.name]
		if property == nil {
			s.t.Errorf("%s.%s is not described", name, f.name)
			continue
		}
		if f.always != slices.Contains(schema.Value.Required, f.name) && !question {
			s.t.Errorf("%s.%s: whether it is always there is described wrongly", name, f.name)
		}
		s.compareKind(name+"."+f.name, f.typ, property)
	}
	for property := range schema.Value.Properties {
		if !slices.Contains(fields, property) {
			s.t.Errorf("%s.%s: there is no such field", name, property)
		}
	}
}

func (s *schemas) compareKind(path string, typ reflect.Type, schema *openapi3.SchemaRef) {
	want, format := "", ""
	switch typ {
	case reflect.TypeFor[time.Time]():
		want, format = "string", "date-time"
	case reflect.TypeFor[corev1.Probe](): // described by Kubernetes
		want = "object"
	case reflect.TypeFor[diagnose.NodeNames](): // a list in JSON
		want = "array"
	default:
		if typ.Implements(reflect.TypeFor[encoding.TextMarshaler]()) && typ.Kind() != reflect.Pointer {
			want = "string"
			break
		}
		switch typ.Kind() {
		case reflect.Pointer:
			s.compareKind(path, typ.Elem(), schema)
			return
		case reflect.Struct:
			if ref := "#/components/schemas/" + schemaName(typ); schema.Ref != ref {
				s.t.Errorf("%s: described by %q, want %s", path, schema.Ref, ref)
			}
			s.compare(typ)
			return
		case reflect.Slice:
			want = "array"
			if schema.Value.Items != nil {
				s.compareKind(path+"[]", typ.Elem(), schema.Value.Items)
			}
		case reflect.Map:
			want = "object"
			s.compareKind(path+"{}", typ.Elem(), schema.Value.AdditionalProperties.Schema)
		case reflect.String:
			want = "string"
		case reflect.Bool:
			want = "boolean"
		case reflect.Float64:
			want = "number"
		case reflect.Uint64:
			want, format = "integer", "uint64"
		case reflect.Int, reflect.Uint16, reflect.Uint32:
			want = "integer"
		}
	}
	if !schema.Value.Type.Is(want) || schema.Value.Format != format {
		s.t.Errorf("%s: described as %v %s, want %s %s", path, schema.Value.Type, schema.Value.Format, want, format)
	}
}

// full gives a value of the type with something in each field, as its schema wants it. A list of records
// in a record is empty.
func (s *schemas) full(typ reflect.Type, schema *openapi3.SchemaRef) reflect.Value {
	v := reflect.New(typ).Elem()
	switch {
	case typ == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(1_800_000_000, 5).UTC()))
	case typ == reflect.TypeFor[netip.Addr]():
		v.Set(reflect.ValueOf(netip.MustParseAddr("fd00::1")))
	case typ == reflect.TypeFor[netip.Prefix]():
		v.Set(reflect.ValueOf(netip.MustParsePrefix("10.0.0.0/8")))
	case typ == reflect.TypeFor[netip.AddrPort]():
		v.Set(reflect.ValueOf(netip.MustParseAddrPort("[fd00::1]:80")))
	case typ == reflect.TypeFor[decision.Protocol]():
		v.Set(reflect.ValueOf(decision.SCTP))
	case typ.Kind() == reflect.Pointer:
		v.Set(reflect.New(typ.Elem()))
		v.Elem().Set(s.full(typ.Elem(), schema))
	case typ.Kind() == reflect.Struct:
		for _, f := range jsonFields(typ) {
			if f.index != nil {
				v.FieldByIndex(f.index).Set(s.full(f.typ, schema.Value.Properties[f.name]))
			}
		}
	case typ == reflect.TypeFor[[]*flow.Record]():
	case typ.Kind() == reflect.Slice:
		v.Set(reflect.Append(v, s.full(typ.Elem(), schema.Value.Items)))
	case typ.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(typ))
		v.SetMapIndex(reflect.ValueOf("key"), s.full(typ.Elem(), schema.Value.AdditionalProperties.Schema))
	case typ.Kind() == reflect.String && len(schema.Value.Enum) > 0:
		v.SetString(schema.Value.Enum[0].(string))
	case typ.Kind() == reflect.String:
		v.SetString("text")
	case typ.Kind() == reflect.Bool:
		v.SetBool(true)
	case typ.Kind() == reflect.Float64:
		v.SetFloat(0.5)
	case v.CanInt():
		v.SetInt(1)
	case v.CanUint():
		v.SetUint(1)
	}
	return v
}

// check holds an answer against the description of its operation.
func check(t *testing.T, d *openapi3.T, method, path string, r *http.Response) {
	t.Helper()
	o := d.Paths.Value(path).GetOperation(method)
	described := o.Responses.Status(r.StatusCode)
	if described == nil {
		described = o.Responses.Default()
	}
	body := flowapitest.Content(t, r)
	kind := r.Header.Get("Content-Type")
	media := described.Value.Content[kind]
	if media == nil {
		if body != "" || len(described.Value.Content) > 0 {
			t.Errorf("%s %s: %d %s is not described: %s", method, path, r.StatusCode, kind, body)
		}
		return
	}
	for name := range described.Value.Headers {
		if r.Header.Get(name) == "" {
			t.Errorf("%s %s: %d without %s", method, path, r.StatusCode, name)
		}
	}
	if strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "yaml") {
		return
	}
	lines := json.NewDecoder(strings.NewReader(body))
	for n := 0; ; n++ {
		var v any
		err := lines.Decode(&v)
		if errors.Is(err, io.EOF) && n > 0 {
			return
		}
		if err == nil {
			err = media.Schema.Value.VisitJSON(v, openapi3.MultiErrors())
		}
		if err != nil {
			t.Errorf("%s %s: %d, line %d: %v\n%s", method, path, r.StatusCode, n, err, body)
			return
		}
	}
}

// fakeDoctor gives the same answers to all.
type fakeDoctor struct {
	findings FindingList
	answer   diagnose.Answer
	response labapi.Response
	manifest remote.Manifest
	err      error // of Why
}

func (d *fakeDoctor) Request(context.Context, labapi.Request) (*labapi.Response, error) {
	return &d.response, nil
}

func (d *fakeDoctor) Findings(context.Context) (*FindingList, error) { return &d.findings, nil }

func (d *fakeDoctor) Why(context.Context, diagnose.Question) (*diagnose.Answer, error) {
	return &d.answer, d.err
}

func (d *fakeDoctor) Manifest(context.Context, string, string) (*remote.Manifest, error) {
	return &d.manifest, nil
}

// fakeTeacher knows the command answer only.
type fakeTeacher struct{ lesson labapi.Lesson }

func (t *fakeTeacher) Lesson(context.Context, uint64) (*labapi.Lesson, error) { return &t.lesson, nil }

func (t *fakeTeacher) Do(_ context.Context, c labapi.LessonCommand) (string, error) {
	if c.Command != "answer" {
		return "", &observe.Error{Status: http.StatusBadRequest, Message: "no unit " + c.Argument}
	}
	return "right", nil
}

// TestDescribedAnswers: what the server really answers is as described, with every field
// and with as few as can be.
func TestDescribedAnswers(t *testing.T) {
	d := loadDescription(t)
	doctor, lab, teacher := new(fakeDoctor), new(observetest.Lab), new(fakeTeacher)
	w := newWorld(t, Config{Doctor: doctor, Requester: doctor, Lab: lab, Teacher: teacher}, longTiming)
	s := &schemas{t: t, all: d.Components.Schemas}
	fill := func(v any) {
		typ := reflect.TypeOf(v).Elem()
		reflect.ValueOf(v).Elem().Set(s.full(typ, s.all[schemaName(typ)]))
	}
	example := new(flow.Record)
	schema, err := os.ReadFile("../../../datapath/flow/SCHEMA.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(schema), "```json\n")
	text, _, _ = strings.Cut(text, "\n```")
	if err := json.Unmarshal([]byte(text), example); err != nil {
		t.Fatal(err)
	}
	fill(&w.Fake.ServicesAnswer)
	fill(&w.Fake.TableAnswer)
	fill(&w.Fake.ObjectsAnswer)
	fill(&w.Fake.StatsAnswer)
	fill(&w.Fake.StatusAnswer)
	fill(&w.Fake.TopologyAnswer)
	fill(&doctor.findings)
	fill(&doctor.answer)
	fill(&doctor.response)
	fill(&doctor.manifest)
	fill(&lab.Status)
	fill(&teacher.lesson)
	lab.Changes = []string{"deployment default/web: 3 replicas, had 2"}
	w.Fake.ExplainAnswer = *example
	var whole flow.Record
	fill(&whole)
	var m observe.Missed
	fill(&m)
	w.Fake.List = []observe.Item{{Record: &whole}, {Missed: &m}, {Record: example}, {Joined: &observe.Joined{Flow: "a/1", Other: example}}}
	const token = "Authorization: Bearer secret"
	request := func(method, path, at, body string, status int) {
		t.Helper()
		if o := d.Paths.Value(path).GetOperation(method); o.RequestBody != nil && status < 300 {
			var v any
			if err := json.Unmarshal([]byte(body), &v); err != nil {
				t.Error(err)
			} else if err := o.RequestBody.Value.Content["application/json"].Schema.Value.VisitJSON(v); err != nil {
				t.Errorf("%s %s: the question: %v", method, path, err)
			}
		}
		r := w.Do(t, method, at, body, token, flowapitest.JSONBody)
		if r.StatusCode != status {
			t.Errorf("%s %s: %d %s, want %d", method, at, r.StatusCode, flowapitest.Content(t, r), status)
		}
		check(t, d, method, path, r)
	}
	request("GET", "/v1/flows", "/v1/flows", "", 200)
	check(t, d, "GET", "/v1/flows", w.Do(t, "GET", "/v1/flows", "", "Accept: text/event-stream"))
	request("GET", "/v1/flows", "/v1/flows?x", "", 400)
	request("GET", "/v1/flows/{id}", "/v1/flows/text", "", 200)
	request("GET", "/v1/flows/{id}", "/v1/flows/none", "", 404)
	request("GET", "/v1/services", "/v1/services", "", 200)
	request("GET", "/v1/table", "/v1/table", "", 200)
	request("GET", "/v1/table/objects", "/v1/table/objects", "", 200)
	request("GET", "/v1/table/objects", "/v1/table/objects?node=node-a&generation=7&service=default/web", "", 200)
	request("GET", "/v1/table/objects", "/v1/table/objects?generation=0", "", 400)
	request("GET", "/v1/table/objects", "/v1/table/objects?service=web", "", 400)
	request("GET", "/v1/stats", "/v1/stats", "", 200)
	request("GET", "/v1/status", "/v1/status", "", 200)
	request("GET", "/v1/topology", "/v1/topology", "", 200)
	request("GET", "/openapi.yaml", "/openapi.yaml", "", 200)
	request("POST", "/v1/explain", "/v1/explain", `{"protocol":"tcp","source":"a","destination":"b","seed":18446744073709551615}`, 200)
	request("POST", "/v1/explain", "/v1/explain", `{"protocol":5}`, 400)
	request("GET", "/v1/findings", "/v1/findings", "", 200)
	request("GET", "/v1/services/{namespace}/{name}/manifest", "/v1/services/default/web/manifest", "", 200)
	request("POST", "/v1/why", "/v1/why", `{"from":"shop/client","to":"web.shop:80","protocol":"tcp","node":"node-a"}`, 200)
	request("POST", "/v1/why", "/v1/why", `{"from":5}`, 400)
	doctor.err = &diagnose.QuestionError{Field: "from", Err: errors.New("there is no Pod")}
	request("POST", "/v1/why", "/v1/why", `{"from":"shop/client","to":"web.shop:80"}`, 400)
	doctor.err = nil
	request("POST", "/v1/requests", "/v1/requests", `{"from":"default/shell","to":"10.96.0.10:80","protocol":"tcp"}`, 200)
	request("POST", "/v1/requests", "/v1/requests", `{"to":5}`, 400)
	doctor.response = labapi.Response{}
	request("POST", "/v1/requests", "/v1/requests", `{"from":"default/shell","to":"10.96.0.10:80"}`, 200)
	request("GET", "/v1/lab", "/v1/lab", "", 200)
	request("GET", "/v1/lab/faults", "/v1/lab/faults", "", 200)
	for _, body := range []string{
		`{"apply":"kind: Service"}`, `{"delete":{"kind":"Service","name":"shop/web"}}`, `{"scale":{"deployment":"web","replicas":3}}`, `{"addPod":{"name":"web-9","labels":{"app":"web"},"ports":[{"port":80}]}}`,
		`{"removePod":{"pod":"web-1","grace":"10s"}}`, `{"ready":{"pod":"web-1","ready":false}}`, `{"server":{"pod":"web-1","running":false}}`, `{"node":{"node":"node-a","action":"drain","force":true}}`,
	} {
		request("POST", "/v1/lab/changes", "/v1/lab/changes", body, 200)
	}
	request("POST", "/v1/lab/changes", "/v1/lab/changes", `{}`, 400)
	request("POST", "/v1/lab/faults", "/v1/lab/faults", `{"kind":"firewall","host":"node-a","to":"10.0.0.1","port":80,"protocol":"udp","reject":true}`, 201)
	request("POST", "/v1/lab/faults", "/v1/lab/faults", `{"kind":"delay","host":"node-a","delay":"200ms","jitter":"1ms"}`, 201)
	request("POST", "/v1/lab/faults", "/v1/lab/faults", `{"kind":"loss","host":"node-a","to":"10.0.0.1"}`, 400)
	request("DELETE", "/v1/lab/faults", "/v1/lab/faults", "", 200)
	request("GET", "/v1/balance", "/v1/balance", "", 200)
	request("POST", "/v1/balance", "/v1/balance", `{"service":"default/web","algorithm":"lc"}`, 204)
	request("GET", "/v1/balance", "/v1/balance", "", 200)
	request("GET", "/v1/shadows", "/v1/shadows", "", 200)
	request("GET", "/v1/shadows", "/v1/shadows?service=default/web", "", 200)
	request("GET", "/v1/shadows", "/v1/shadows?service=web", "", 400)
	request("POST", "/v1/balance", "/v1/balance", `{"service":"web","algorithm":"lc"}`, 400)
	request("POST", "/v1/balance", "/v1/balance", `{"service":"default/wep","algorithm":"lc"}`, 404)
	request("GET", "/v1/lesson", "/v1/lesson", "", 200)
	request("GET", "/v1/lesson", "/v1/lesson?after=x", "", 400)
	request("POST", "/v1/lesson", "/v1/lesson", `{"command":"answer","argument":"10.0.0.1"}`, 200)
	request("POST", "/v1/lesson", "/v1/lesson", `{"command":"start","argument":"9.9"}`, 400)
	request("POST", "/v1/lesson", "/v1/lesson", `{"argument":5}`, 400)
	request("DELETE", "/v1/lab/faults/{id}", "/v1/lab/faults/7", "", 200)
	request("DELETE", "/v1/lab/faults/{id}", "/v1/lab/faults/x", "", 404)
	lab.Status, lab.Changes = labapi.Status{Nodes: []labapi.NodeStatus{}, Pods: []labapi.PodStatus{}, Clients: []observe.TopologyHost{}}, nil
	request("GET", "/v1/lab", "/v1/lab", "", 200)
	request("POST", "/v1/lab/changes", "/v1/lab/changes", `{"scale":{"deployment":"web","replicas":3}}`, 200)
	doctor.findings, doctor.answer = FindingList{Version: 1, Findings: []diagnose.Finding{}}, diagnose.Answer{Outcome: diagnose.Works}
	request("GET", "/v1/findings", "/v1/findings", "", 200)
	request("POST", "/v1/why", "/v1/why", `{"from":"shop/client","to":"web.shop:80"}`, 200)
	request("GET", "/v1/holds", "/v1/holds", "", 200)
	request("POST", "/v1/holds", "/v1/holds", `{"flow":{"service":"web"}}`, 201)
	request("POST", "/v1/holds", "/v1/holds", `{"flow":{"service":"web"},"seconds":601}`, 400)
	request("POST", "/v1/holds/{id}/act", "/v1/holds/node-a-1/act", `{"action":"step"}`, 409)
	request("GET", "/v1/holds/{id}", "/v1/holds/node-a-1", "", 200)
	w.Fake.Catch(whole)
	request("GET", "/v1/holds", "/v1/holds", "", 200)
	request("POST", "/v1/holds/{id}/act", "/v1/holds/node-a-1/act", `{"action":"choose","endpoint":"10.0.0.1:80"}`, 200)
	request("DELETE", "/v1/holds/{id}", "/v1/holds/node-a-1", "", 204)
	request("DELETE", "/v1/holds/{id}", "/v1/holds/none", "", 404)
	request("GET", "/v1/holds/{id}", "/v1/holds/node-a-1?after=1", "", 200)
	w.Fake.NoHolds = true
	request("GET", "/v1/holds", "/v1/holds", "", 404)
	w.Fake.Fail(io.ErrUnexpectedEOF)
	request("GET", "/v1/stats", "/v1/stats", "", 500)
	if r := w.Do(t, "GET", "/v1/holds", "", "Sec-Fetch-Site: cross-site"); r.StatusCode == 403 {
		check(t, d, "GET", "/v1/holds", r)
	}
}

// TestDescribedParameters: those that are described are accepted, with their example, and no
// others.
func TestDescribedParameters(t *testing.T) {
	w := newWorld(t, Config{Teacher: new(fakeTeacher)}, longTiming)
	w.Fake.List = []observe.Item{record("x")}
	if _, err := w.Fake.Hold(t.Context(), observe.HoldQuery{}); err != nil {
		t.Fatal(err)
	}
	parameters := 0
	for path, item := range loadDescription(t).Paths.Map() {
		at := strings.Replace(path, "/v1/flows/{id}", "/v1/flows/x", 1)
		at = strings.Replace(at, "{id}", "node-a-1", 1)
		for method, o := range item.Operations() {
			if method == "GET" {
				method = "HEAD" // for which streams end
			}
			try := func(query string) int {
				return w.Do(t, method, at+"?"+query, "{}", "Authorization: Bearer secret", flowapitest.JSONBody).StatusCode
			}
			for _, p := range o.Parameters {
				if p.Value.In != "query" {
					continue
				}
				parameters++
				value := p.Value.Example
				if value == nil {
					value = p.Value.Schema.Value.Default
				}
				query := url.Values{p.Value.Name: {fmt.Sprint(value)}}
				if p.Value.Name == "event" || p.Value.Name == "rate" {
					query.Set("follow", "true")
				}
				if status := try(query.Encode()); status != 200 {
					t.Errorf("%s?%s: %d", at, query.Encode(), status)
				}
				if p.Value.AllowEmptyValue {
					query := p.Value.Name
					if query == "joined" {
						query += "&follow"
					}
					if status := try(query); status != 200 {
						t.Errorf("%s?%s: %d", at, query, status)
					}
				}
				if status := try(query.Encode() + "&" + query.Encode()); status != 400 {
					t.Errorf("%s: %s twice: %d", at, p.Value.Name, status)
				}
			}
			if status := try("other=1"); status != 400 {
				t.Errorf("%s %s with a parameter that is not described: %d", method, at, status)
			}
		}
	}
	if want := reflect.TypeFor[observe.FlowQuery]().NumField() + reflect.TypeFor[observe.ServiceQuery]().NumField() + reflect.TypeFor[observe.ObjectsQuery]().NumField() + 3; parameters != want { // after, of a hold and of a lesson, and service, of shadows
		t.Errorf("%d parameters are described, want %d", parameters, want)
	}
}
