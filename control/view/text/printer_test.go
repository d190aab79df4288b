package text_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant (%s; -update writes it anew)\n%s", got, name, want)
	}
}

// options have a clock and a zone that are not the machine's.
func options() text.Options {
	return text.Options{Zone: time.UTC, Now: func() time.Time { return observetest.Now }}
}

// print gives what a format makes of records.
func print(t *testing.T, format string, o text.Options, records ...*flow.Record) string {
	t.Helper()
	var out bytes.Buffer
	p, err := text.NewPrinter(&out, format, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if err := p.Print(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestLists: the lists of a flow of each kind, read and found good.
func TestLists(t *testing.T) {
	records := observetest.NewCluster().Records()
	tests := []struct {
		name   string
		format string
		change func(*text.Options)
	}{
		{name: "table"},
		{name: "wide", format: "wide"},
		{name: "tree", change: func(o *text.Options) { o.Walk = text.WalkWords }},
		{name: "no-headers", change: func(o *text.Options) { o.NoHeaders = true }},
		{name: "color", change: func(o *text.Options) { o.Style.Color = true }},
		{name: "yesterday", change: func(o *text.Options) {
			o.Now = func() time.Time { return observetest.Now.Add(24 * time.Hour) }
		}},
		{name: "zone", change: func(o *text.Options) { o.Zone = time.FixedZone("CET", 3600) }},
		{name: "recorded", change: func(o *text.Options) {
			o.Recorded, o.Now = true, func() time.Time { return observetest.Now.Add(3 * time.Hour) }
		}},
		{name: "name", format: "name"},
		{name: "custom-columns", format: "custom-columns=ID:.id,TO:.endpoint,BYTES:{.life.sent.bytes},COULD:candidates[*].endpoint"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := options()
			if tt.change != nil {
				tt.change(&o)
			}
			golden(t, tt.name+".txt", print(t, tt.format, o, records...))
		})
	}
}

// TestJSON: what is written is what was given.
func TestJSON(t *testing.T) {
	records := observetest.NewCluster().Records()
	var list struct{ Flows []*flow.Record }
	if err := json.Unmarshal([]byte(print(t, "json", options(), records...)), &list); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(print(t, "jsonl", options(), records...)), "\n")
	if len(list.Flows) != len(records) || len(lines) != len(records) {
		t.Fatalf("%d flows, %d lines; want %d", len(list.Flows), len(lines), len(records))
	}
	for i, r := range records {
		want := marshal(t, r)
		if got := marshal(t, list.Flows[i]); got != want {
			t.Errorf("flow %d: got %s, want %s", i, got, want)
		}
		read := new(flow.Record)
		if err := json.Unmarshal([]byte(lines[i]), read); err != nil || marshal(t, read) != want {
			t.Errorf("line %d: %v: got %s, want %s", i, err, lines[i], want)
		}
	}
	if got, want := print(t, "json", options()), `{"flows":[]}`+"\n"; got != want {
		t.Errorf("no flows: got %q, want %q", got, want)
	}
	o := options()
	o.Follow = true
	if got := print(t, "json", o, records...); got != print(t, "jsonl", o, records...) {
		t.Errorf("following, json is not jsonl: %s", got)
	}
}

func marshal(t *testing.T, r *flow.Record) string {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestStream: lines stay below each other while columns grow, and none waits for others
// once flushed.
func TestStream(t *testing.T) {
	var out bytes.Buffer
	o := options()
	o.Follow = true
	p, err := text.NewPrinter(&out, "", o)
	if err != nil {
		t.Fatal(err)
	}
	given := observetest.NewCluster().Records()[0]
	for i, e := range given.Life.History {
		r, life := *given, *given.Life
		r.Event, r.Life = e.Event, &life
		if e.Event != flow.Gone {
			life.State, life.Since, life.Over = e.Event, e.Time, false
			life.Duration = e.Time.Sub(*given.Time).Seconds()
			life.Sent, life.Received, life.CountedAt = nil, nil, nil
		}
		if i == 2 {
			r.SourcePod = "default/one-with-a-name-that-is-longer-than-usual"
		}
		if err := p.Print(&r); err != nil {
			t.Fatal(err)
		}
		if i != 1 {
			if err := p.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		lines := strings.Count(out.String(), "\n")
		want := i + 2 // with the headers
		if i == 1 {
			want = i + 1
		}
		if lines != want {
			t.Errorf("after %d events %d lines, want %d", i+1, lines, want)
		}
	}
	golden(t, "stream.txt", out.String())
}

// TestScreenful: the widths of a list are those of the first screenful, not of the first
// row; what comes later does not wait.
func TestScreenful(t *testing.T) {
	var out bytes.Buffer
	p, err := text.NewPrinter(&out, "custom-columns=ID:.id,TO:.endpoint", options())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 502 {
		id := "x"
		if i == 499 {
			id = "a-long-id"
		}
		if err := p.Print(&flow.Record{ID: id, Endpoint: "e"}); err != nil {
			t.Fatal(err)
		}
		want := 0
		if i >= 499 {
			want = i + 2
		}
		if got := strings.Count(out.String(), "\n"); got != want {
			t.Fatalf("after row %d: %d lines written, want %d", i+1, got, want)
		}
	}
	if want := "ID          TO\nx           e\n"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("got %q..., want %q", out.String()[:40], want)
	}
}

// TestStories: one flow of each kind.
func TestStories(t *testing.T) {
	for _, r := range observetest.NewCluster().Records() {
		golden(t, r.ID+".txt", text.Story(r, options()))
	}
}

// TestNoEscapes: nothing that a record has can steer the terminal.
func TestNoEscapes(t *testing.T) {
	r := &flow.Record{ID: "a\x1b[2Jb\nc", Verdict: "dnat", Conntrack: "failed", Error: "a\x1b[2Jb"}
	for _, format := range []string{"", "custom-columns=ID:.id"} {
		if got := print(t, format, options(), r); strings.ContainsRune(got, '\x1b') || strings.Count(got, "\n") != 2 {
			t.Errorf("%q: %q", format, got)
		}
	}
}

func TestFormatsRefused(t *testing.T) {
	tests := []struct{ format, want string }{
		{"xml", `"xml": want wide, json, jsonl, yaml, name, hubble or custom-columns=NAME:.path,...`},
		{"=x", `"": want wide`},
		{"json=x", `"json=x": json takes no argument`},
		{"custom-columns", `"custom-columns": want custom-columns=NAME:.path,...`},
		{"custom-columns=", `want custom-columns=NAME:.path`},
		{"custom-columns=ID", `"custom-columns=ID": want NAME:.path, for example ID:.id,TO:.endpoint`},
		{"custom-columns=ID:.id,", `want NAME:.path`},
		{"custom-columns=ID:.di", `"custom-columns=ID:.di": a record has no field "di"; it has balance, branch, candidates,`},
		{"custom-columns=S:.life.stat", `life has no field "stat"; it has answered,`},
		{"custom-columns=S:.candidates[0].pod", `one of candidates has no field "pod"; it has endpoint, probability`},
		{"custom-columns=S:.life[0]", `life is not a list`},
		{"custom-columns=S:.life[", `invalid JSONPath: unterminated array`},
		{"custom-columns=S:}{", `invalid JSONPath`},
	}
	for _, tt := range tests {
		_, err := text.NewPrinter(&bytes.Buffer{}, tt.format, options())
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %s", tt.format, err, tt.want)
		}
	}
	o := options()
	o.Walk = text.WalkWords
	if _, err := text.NewPrinter(&bytes.Buffer{}, "name", o); err == nil {
		t.Error("name with walks: no error")
	}
}

// TestWriterFails: a failed write is reported.
func TestWriterFails(t *testing.T) {
	for _, format := range append(text.Formats()[:4], "", "custom-columns=ID:.id") {
		p, err := text.NewPrinter(full{}, format, options())
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(p.Print(&flow.Record{ID: "x"}), p.Close())
		if !errors.Is(err, errFull) {
			t.Errorf("%q: error %v, want %v", format, err, errFull)
		}
	}
}

var errFull = errors.New("no space left")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// TestStateColors: errors are red, what is worth a look is yellow, what has ended is dim.
func TestStateColors(t *testing.T) {
	for state, want := range map[flow.Event]text.Color{
		flow.Decided: "", flow.Answered: text.Green, flow.Established: text.Green, flow.Closed: text.Dim, flow.Expired: text.Dim,
		flow.Reset: text.Red, flow.Refused: text.Red, flow.Rejected: text.Red, flow.Unanswered: text.Yellow, flow.Removed: text.Yellow,
		flow.Repeated: text.Yellow, flow.Gone: text.Dim, flow.Unknown: "",
	} {
		if got := text.StateColor(state); got != want {
			t.Errorf("%s: color %q, want %q", state, got, want)
		}
	}
}

// FuzzCustomColumns: every list of columns gives an error or a table.
func FuzzCustomColumns(f *testing.F) {
	f.Add("ID:.id")
	f.Add("A:.candidates[?(@.probability>0.1)].endpoint,B:..endpoint")
	records := observetest.NewCluster().Records()
	f.Fuzz(func(t *testing.T, spec string) {
		var out bytes.Buffer
		p, err := text.NewPrinter(&out, "custom-columns="+spec, options())
		if err != nil {
			return
		}
		for _, r := range records {
			if err := p.Print(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
