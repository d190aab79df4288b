package learn

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// at is a time of a test's events, in minutes after its begin.
func at(minutes float64) time.Time {
	return time.Date(2030, 1, 2, 3, 4, 5, 678901234, time.FixedZone("", 3600)).Add(time.Duration(minutes * float64(time.Minute)))
}

// history adds events to a record: a unit that was begun twice, and finished.
func history(t testing.TB, r *Record) {
	t.Helper()
	own := fmt.Sprint(UnitSeed(r.Seed, "1.1"))
	for _, e := range []Event{
		{Time: at(0), Kind: Began, Unit: "1.1", Detail: own},
		{Time: at(1), Kind: Passed, Unit: "1.1", Step: "read"},
		{Time: at(1.5), Kind: Began, Unit: "1.2", Detail: "5"}, // of another unit
		{Time: at(2), Kind: Answered, Unit: "1.1", Step: "ask", Detail: "1"},
		{Time: at(3), Kind: Hinted, Unit: "1.1", Step: "ask", Detail: "1"},
		{Time: at(100), Kind: Began, Unit: "1.1", Detail: own}, // a break does not count
		{Time: at(101), Kind: Passed, Unit: "1.1", Step: "read"},
		{Time: at(102), Kind: Answered, Unit: "1.1", Step: "ask", Detail: "2", Right: true},
		{Time: at(102), Kind: Passed, Unit: "1.1", Step: "ask"},
		{Time: at(130), Kind: Solved, Unit: "1.1", Step: "do"}, // ten minutes of these count
		{Time: at(130.5), Kind: Passed, Unit: "1.1", Step: "do"},
		{Time: at(130.5), Kind: Finished, Unit: "1.1"},
	} {
		if err := r.Add(e); err != nil {
			t.Fatal(err)
		}
	}
}

// newRecord is a record with a history, and its file.
func newRecord(t testing.TB) (*Record, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a", "b", "learn.json")
	r, err := OpenRecord(path)
	if err != nil {
		t.Fatal(err)
	}
	history(t, r)
	return r, path
}

func reopened(t testing.TB, path string) *Record {
	t.Helper()
	r, err := OpenRecord(path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRecord(t *testing.T) {
	r, path := newRecord(t)
	again := reopened(t, path)
	if again.Seed != r.Seed || !slices.Equal(again.Events, r.Events) || again.Verify() != -1 || r.Verify() != -1 {
		t.Errorf("the file has\n%+v\nnot\n%+v", again.Events, r.Events)
	}
	// What is added to a record that was read follows from what is there.
	if err := again.Add(Event{Time: at(200), Kind: Began, Unit: "2.1", Detail: "1"}); err != nil {
		t.Fatal(err)
	}
	if again = reopened(t, path); len(again.Events) != 13 || again.Verify() != -1 {
		t.Errorf("%d events, the first wrong one is %d", len(again.Events), again.Verify())
	}
	want := Progress{Began: at(0).UTC().Truncate(time.Millisecond), Finished: at(130.5).UTC().Truncate(time.Millisecond), Seed: r.Events[0].Detail,
		Steps: 3, Answers: 2, Wrong: 1, Hints: 1, Solved: 1, Active: 15*time.Minute + 30*time.Second}
	if got := again.Progress("1.1"); got != want || got.State() != "finished" {
		t.Errorf("the progress is %s\n%+v, want\n%+v", got.State(), got, want)
	}
	if got := again.Progress("1.2"); got.State() != "begun" || got.Steps != 0 || got.Seed != "5" || got.Active != 0 {
		t.Errorf("the progress of another unit is %s %+v", got.State(), got)
	}
	if got := again.Progress("3.1"); got != (Progress{}) || got.State() != "new" {
		t.Errorf("the progress of a new unit is %s %+v", got.State(), got)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want mode %v", p, info.Mode().Perm(), err, want)
		}
	}
}

// A new record has a seed of its own, and no file before the first event.
func TestNewRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "learn.json")
	a, b := reopened(t, path), reopened(t, path)
	if a.Seed == b.Seed || a.Seed >= 1<<53 || a.Version != RecordVersion {
		t.Errorf("seeds %d and %d, version %d", a.Seed, b.Seed, a.Version)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("there is a file: %v", err)
	}
}

// TestTampering: whatever is changed in a record shows, at the event where it was changed.
func TestTampering(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Record)
		want   int
	}{
		{"nothing", func(*Record) {}, -1},
		{"an answer", func(r *Record) { r.Events[3].Right = true }, 3},
		{"a detail", func(r *Record) { r.Events[7].Detail = "3" }, 7},
		{"a kind", func(r *Record) { r.Events[4].Kind = Passed }, 4},
		{"a unit", func(r *Record) { r.Events[11].Unit = "1.2" }, 11},
		{"a step", func(r *Record) { r.Events[10].Step = "ask" }, 10},
		{"a time", func(r *Record) { r.Events[5].Time = r.Events[5].Time.Add(-time.Millisecond) }, 5},
		{"a hash", func(r *Record) { r.Events[6].Hash = r.Events[5].Hash }, 6},
		{"the first removed", func(r *Record) { r.Events = r.Events[1:] }, 0},
		{"one removed", func(r *Record) { r.Events = slices.Delete(r.Events, 4, 5) }, 4},
		{"one inserted", func(r *Record) {
			r.Events = slices.Insert(r.Events, 9, Event{Time: at(103), Kind: Passed, Unit: "1.2", Step: "do", Hash: r.Events[8].Hash})
		}, 9},
		{"one twice", func(r *Record) { r.Events = slices.Insert(r.Events, 9, r.Events[8]) }, 9},
		{"two in another order", func(r *Record) { r.Events[6], r.Events[7] = r.Events[7], r.Events[6] }, 6},
		{"the seed", func(r *Record) { r.Seed++ }, 0},
		{"the student", func(r *Record) { r.Student = "Bob" }, 0},
		{"the units", func(r *Record) { r.Units = []string{"1.1"} }, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, path := newRecord(t)
			tc.change(r)
			if err := r.Write(); err != nil {
				t.Fatal(err)
			}
			if got := reopened(t, path).Verify(); got != tc.want {
				t.Errorf("the first event that does not match is %d, want %d", got, tc.want)
			}
		})
	}
}

// What a student types is in the record as JSON has it, so that reading it gives the same hashes.
func TestRecordOfAnyText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "learn.json")
	r := reopened(t, path)
	for _, text := range []string{"\xff\xfe", "Zürich <b>&", "\u2028 \x00 \x1b[31m", "\ufffd", `"\`} {
		if err := r.Add(Event{Time: time.Now(), Kind: Answered, Unit: "1.1", Step: "ask", Detail: text}); err != nil {
			t.Fatal(err)
		}
	}
	if again := reopened(t, path); again.Verify() != -1 || len(again.Events) != 5 {
		t.Errorf("event %d does not match", again.Verify())
	}
}

func TestForeignRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "learn.json")
	for _, tc := range []struct{ name, text, want string }{
		{"another version", `{"version": 2, "events": {"x": 1}}`, path + " has version 2 of the format: this program reads version 1"},
		{"no version", `{"seed": 1}`, path + " is not a record of nfqproxy learn: it has no version (move it away to start over)"},
		{"null", "null", path + " is not a record of nfqproxy learn: it has no version (move it away to start over)"},
		{"an empty file", "", path + " is not a record of nfqproxy learn: unexpected end of JSON input (move it away to start over)"},
		{"half a file", `{"version": 1, "events": [{`, path + " is not a record of nfqproxy learn: unexpected end of JSON input (move it away to start over)"},
		{"other events", `{"version": 1, "events": 5}`, path + " is not a record of nfqproxy learn: json: cannot unmarshal number into Go struct field Record.events of type []learn.Event (move it away to start over)"},
	} {
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenRecord(path); err == nil || err.Error() != tc.want {
			t.Errorf("%s: the error is\n%v, want\n%s", tc.name, err, tc.want)
		}
	}
	if err := os.Truncate(path, maxRecord+1); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenRecord(path); err == nil || err.Error() != path+" is larger than 16 MiB" {
		t.Errorf("a huge file: %v", err)
	}
	if _, err := OpenRecord(filepath.Dir(path)); err == nil {
		t.Error("a directory is a record")
	}
}

// A record that cannot be written leaves what was there, and no other file.
func TestRecordCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "learn.json")
	r := reopened(t, path)
	if err := os.MkdirAll(filepath.Join(path, "in-the-way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.Add(Event{Time: time.Now(), Kind: Began, Unit: "1.1"}); err == nil {
		t.Error("no error")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenRecord(filepath.Join(file, "learn.json")); err == nil {
		t.Error("a record in a file")
	}
}

// Readers never see a half-written file.
func TestRecordIsWrittenAtOnce(t *testing.T) {
	r, path := newRecord(t)
	var writing sync.WaitGroup
	for i := range 4 {
		writing.Go(func() {
			for range 25 {
				if err := r.Add(Event{Time: at(300), Kind: Answered, Unit: "1.1", Step: "ask", Detail: strings.Repeat("x", 1000*(i+1))}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writing.Wait(); close(done) }()
	for reads := 0; ; reads++ {
		data, err := os.ReadFile(path)
		if err != nil || !json.Valid(data) {
			t.Fatalf("read %d: %d bytes, %v", reads, len(data), err)
		}
		select {
		case <-done:
			if again := reopened(t, path); len(again.Events) != 112 || again.Verify() != -1 {
				t.Errorf("%d events, and event %d does not match", len(again.Events), again.Verify())
			}
			return
		default:
		}
	}
}

func TestDefaultRecord(t *testing.T) {
	t.Setenv("HOME", "/home/ada")
	for state, want := range map[string]string{"": "/home/ada/.local/state/nfqproxy/learn.json", "relative": "/home/ada/.local/state/nfqproxy/learn.json", "/state": "/state/nfqproxy/learn.json"} {
		t.Setenv("XDG_STATE_HOME", state)
		if got, err := DefaultRecord(); err != nil || got != want {
			t.Errorf("with XDG_STATE_HOME=%s: %s, %v, want %s", state, got, err, want)
		}
	}
	t.Setenv("HOME", "")
	t.Setenv("XDG_STATE_HOME", "")
	if _, err := DefaultRecord(); err == nil || !strings.Contains(err.Error(), "set HOME or XDG_STATE_HOME") {
		t.Errorf("without both: %v", err)
	}
}

// A student takes the units of his class, in their order, and of these the first that he has not finished.
func TestNext(t *testing.T) {
	c := three(t)
	r, _ := newRecord(t)
	if next := r.Next(c); next == nil || next.ID != "1.10" {
		t.Errorf("the next unit is %v", next)
	}
	r.Units = []string{"2.1", "1.1"}
	if next := r.Next(c); next == nil || next.ID != "2.1" {
		t.Errorf("the next unit of the class is %v", next)
	}
	want := "1 Services\n  1.1  A first unit  3 min  finished\n\n2 Nodes\n  2.1  A first unit  3 min\n"
	if got := ListText(List(c, r)); got != want {
		t.Errorf("the list is\n%q, want\n%q", got, want)
	}
	if err := r.Add(Event{Time: at(200), Kind: Finished, Unit: "2.1"}); err != nil {
		t.Fatal(err)
	}
	if next := r.Next(c); next != nil {
		t.Errorf("after all units: %s", next.ID)
	}
}
