package history

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// clock is a clock that tests set.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = at
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// world is a recorder whose clock stands still, without a stream: items are given to it.
type world struct {
	*Recorder
	t     *testing.T
	clock *clock
	log   *strings.Builder
}

func newWorld(t *testing.T, dir string, change func(*Config)) *world {
	t.Helper()
	w := &world{t: t, clock: &clock{at: noon}, log: new(strings.Builder)}
	c := Config{Dir: dir, Name: "node-a", Log: slog.New(slog.NewTextHandler(w.log, nil)), now: w.clock.now}
	if change != nil {
		change(&c)
	}
	var err error
	if w.Recorder, err = Open(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func (w *world) record(records ...*flow.Record) {
	w.t.Helper()
	for _, r := range records {
		if err := w.take(observe.Item{Record: r}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// flowAt is a flow of a time, in a state.
func flowAt(id string, at time.Time, s flow.State, over bool) *flow.Record {
	return &flow.Record{
		Version: flow.Version, ID: id, Time: &at, Node: "node-a", Verdict: "dnat", Reason: "balanced", Protocol: "TCP",
		Source: "10.244.1.2:40000", Destination: "10.96.0.20:80", Service: "default/web:http", Endpoint: "10.244.2.2:8080",
		Candidates: []flow.Candidate{{Endpoint: "10.244.2.2:8080", Probability: 1}}, Excluded: []flow.Excluded{},
		Life: &flow.Life{State: s, Since: at, Over: over},
	}
}

// read returns the flows of a directory as "ID STATE" and what is missing as "WHY NUMBER".
func read(t *testing.T, h *History, q observe.FlowQuery) (list []string) {
	t.Helper()
	if err := h.Flows(t.Context(), q, func(i observe.Item) error {
		switch {
		case i.Record != nil:
			list = append(list, i.Record.ID+" "+i.Record.State().String())
		case i.Joined != nil:
			list = append(list, i.Joined.Flow+" and "+i.Joined.Other.ID)
		case i.Missed.Why != observe.MissedNotRecorded:
			list = append(list, fmt.Sprint(i.Missed.Why, " ", i.Missed.Missed))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// Parts of an hour become one file, with the newest row of each flow; readers see the same before and after.
func TestPartsOfAnHour(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir, nil)
	hour := w.hour()
	w.began()
	w.record(flowAt("r-1", noon, flow.Decided, false), flowAt("r-2", noon.Add(time.Second), flow.Decided, false), flowAt("r-1", noon, flow.Established, false))
	w.clock.set(noon.Add(time.Minute))
	w.flush(hour)
	w.record(flowAt("r-1", noon, flow.Closed, true), flowAt("r-3", noon.Add(50*time.Second), flow.Decided, false))
	if err := w.take(observe.Item{Missed: &observe.Missed{Node: "node-a", Missed: 7, Why: observe.MissedSlow}}); err != nil {
		t.Fatal(err)
	}
	w.clock.set(noon.Add(2 * time.Minute))
	w.flush(hour)
	expect(t, files(t, dir), "2026-01-02T12Z_node-a_000001.parquet", "2026-01-02T12Z_node-a_000002.parquet")
	h := &History{Dir: dir}
	want := []string{"slow-reader 7", "r-1 closed", "r-2 decided", "r-3 decided"}
	expect(t, read(t, h, observe.FlowQuery{}), want...)
	expect(t, read(t, h, observe.FlowQuery{Limit: "0"}), want...)

	w.clock.set(noon.Add(time.Hour))
	if err := w.mergeOld(t.Context(), w.hour()); err != nil {
		t.Fatal(err)
	}
	expect(t, files(t, dir), "2026-01-02T12Z_node-a.parquet")
	expect(t, read(t, h, observe.FlowQuery{}), want...)
	expect(t, read(t, h, observe.FlowQuery{Limit: "0"}), want...)
	expect(t, read(t, h, observe.FlowQuery{Limit: "1"}), "slow-reader 7", "r-3 decided")
	expect(t, read(t, h, observe.FlowQuery{State: "decided"}), "slow-reader 7", "r-2 decided", "r-3 decided")

	// The flow ends in the next hour: its row there replaces the first. One that is over already is not written again.
	w.record(flowAt("r-2", noon.Add(time.Second), flow.Unanswered, true), flowAt("r-1", noon, flow.Closed, true))
	w.flush(w.hour())
	expect(t, read(t, h, observe.FlowQuery{}), "slow-reader 7", "r-1 closed", "r-2 unanswered", "r-3 decided")
	expect(t, read(t, h, observe.FlowQuery{Limit: "0"}), "slow-reader 7", "r-1 closed", "r-2 unanswered", "r-3 decided")
	if rows := count(t, filepath.Join(dir, "2026-01-02T13Z_node-a_000001.parquet")); rows != 1 {
		t.Errorf("%d rows, want that of r-2 alone", rows)
	}
	r, err := h.Flow(t.Context(), "r-2")
	if err != nil || r.State() != flow.Unanswered {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := h.Flow(t.Context(), "r-9"); err == nil || !strings.Contains(err.Error(), "not in the history") {
		t.Error(err)
	}
}

func count(t *testing.T, path string) int64 {
	t.Helper()
	f, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	return f.NumRows()
}

// A recorder that is killed between the making of an hour and the removal of its parts leaves both.
func TestPartsThatWereMergedAlready(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir, nil)
	w.began()
	w.record(flowAt("r-1", noon, flow.Decided, false))
	w.clock.set(noon.Add(time.Minute))
	w.flush(noon)
	part := filepath.Join(dir, "2026-01-02T12Z_node-a_000001.parquet")
	text, err := os.ReadFile(part)
	if err != nil {
		t.Fatal(err)
	}
	w.clock.set(noon.Add(time.Hour))
	for range 2 {
		if err := w.mergeOld(t.Context(), w.hour()); err != nil {
			t.Fatal(err)
		}
		f, err := openFile(filepath.Join(dir, "2026-01-02T12Z_node-a.parquet"))
		if err != nil {
			t.Fatal(err)
		}
		if want := (span{noon, noon.Add(time.Minute)}); f.NumRows() != 1 || !slices.Equal(f.coverage.spans, []span{want}) || !slices.Equal(f.coverage.nodes, []string{"node-a"}) {
			t.Errorf("%d rows, %+v", f.NumRows(), f.coverage)
		}
		f.close()
		if err := os.WriteFile(part, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, read(t, &History{Dir: dir}, observe.FlowQuery{}), "r-1 decided")
}

// Files that are truncated or damaged are named and skipped by readers, and set aside by a recorder.
func TestDamagedFiles(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir, nil)
	for i := range 4 {
		w.record(flowAt(fmt.Sprint("r-", i), noon, flow.Decided, false))
		w.flush(noon)
	}
	damage := func(part int, change func([]byte) []byte) {
		path := filepath.Join(dir, nameOf(noon, "node-a", part))
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, change(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	damage(1, func(b []byte) []byte { return b[:len(b)/2] })
	damage(2, func(b []byte) []byte { return nil })
	damage(3, func(b []byte) []byte {
		for i := 4; i < len(b)/4; i++ {
			b[i] ^= 0x55
		}
		return b
	})
	var warnings []string
	h := &History{Dir: dir, Warn: func(err error) { warnings = append(warnings, err.Error()) }}
	for _, limit := range []string{"", "0"} {
		warnings = nil
		expect(t, read(t, h, observe.FlowQuery{Limit: limit}), "r-3 decided")
		for part := 1; part <= 3; part++ {
			name := nameOf(noon, "node-a", part)
			if !slices.ContainsFunc(warnings, func(s string) bool { return strings.Contains(s, name) }) {
				t.Errorf("no warning names %s: %q", name, warnings)
			}
		}
	}
	if err := (&History{Dir: dir}).Flows(t.Context(), observe.FlowQuery{}, func(observe.Item) error { return nil }); err == nil {
		t.Error("damaged files are no error without Warn")
	}
	w.clock.set(noon.Add(time.Hour))
	if err := w.mergeOld(t.Context(), w.hour()); err != nil {
		t.Fatal(err)
	}
	expect(t, files(t, dir), "2026-01-02T12Z_node-a.parquet", "2026-01-02T12Z_node-a_000001.parquet.corrupt",
		"2026-01-02T12Z_node-a_000002.parquet.corrupt", "2026-01-02T12Z_node-a_000003.parquet.corrupt")
	if n := strings.Count(w.log.String(), "set a file aside"); n != 3 {
		t.Errorf("%d messages:\n%s", n, w.log)
	}
	expect(t, read(t, &History{Dir: dir}, observe.FlowQuery{}), "r-3 decided")
}

// An hour whose only part cannot be read has nothing to merge.
func TestOnlyPartIsDamaged(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir, nil)
	name := nameOf(noon, "node-a", 1)
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.mergeOld(t.Context(), noon.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	expect(t, files(t, dir), name+corrupt)
}

// A byte that is wrong is found, or harmless: no reader panics.
func TestDamagedBytes(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir, nil)
	for i := range 20 {
		w.record(flowAt(fmt.Sprint("r-", i), noon.Add(time.Duration(i)*time.Second), flow.Decided, i%2 == 0))
	}
	w.flush(noon)
	path := filepath.Join(dir, nameOf(noon, "node-a", 1))
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	step := len(good) / 300
	for at := 0; at < len(good); at += step {
		bad := slices.Clone(good)
		bad[at] ^= 0xff
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		h := &History{Dir: dir, Warn: func(error) {}}
		if err := h.Flows(t.Context(), observe.FlowQuery{Limit: "0"}, func(observe.Item) error { return nil }); err != nil {
			t.Fatalf("byte %d: %v", at, err)
		}
		_, _ = h.Flow(t.Context(), "r-3")
	}
}

func TestBounds(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir, func(c *Config) { c.MaxSize = 400 << 10 })
	g := newTraffic(noon, 1000)
	for i := range 40 {
		at := noon.Add(time.Duration(i) * 10 * time.Minute)
		w.clock.set(at.Add(time.Minute))
		for range 500 {
			w.record(g.flow())
		}
		w.flush(at.Truncate(time.Hour))
		if err := w.mergeOld(t.Context(), at.Truncate(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if size := sizeOf(t, dir); size > 400<<10 {
			t.Fatalf("after %d parts: %d bytes", i+1, size)
		}
	}
	names := files(t, dir)
	if len(names) < 3 || strings.HasPrefix(names[0], "2026-01-02T12Z") {
		t.Errorf("%q: want the newest", names)
	}
	if !strings.HasPrefix(names[len(names)-1], "2026-01-02T18Z_node-a_") {
		t.Errorf("%q: the newest is missing", names)
	}

	w.MaxAge = time.Hour
	if err := w.bound(0); err != nil {
		t.Fatal(err)
	}
	for _, name := range files(t, dir) {
		if name < "2026-01-02T17Z" {
			t.Errorf("%s is too old", name)
		}
	}
}

func sizeOf(t *testing.T, dir string) (size int64) {
	t.Helper()
	for _, name := range files(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	return size
}

// Another recorder of the same name does not begin.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir, nil)
	c := w.Config
	if _, err := Open(c); err == nil || !strings.Contains(err.Error(), "another process records node-a") {
		t.Error(err)
	}
	c.Name = "node-b"
	other, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	_ = other.Close()
	_ = w.Close()
	c.Name = "node-a"
	again, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

// The recorder follows the observer's stream: known flows, events, and what is missing; and again after it broke.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	fake := observetest.New("node-a")
	fake.List = []observe.Item{{Record: flowAt("r-1", noon, flow.Closed, true)}}
	log := new(strings.Builder)
	r, err := Open(Config{Dir: dir, Name: "node-a", Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan error, 1)
	go func() { end <- r.Run(ctx, fake) }()
	if !fake.AwaitReaders(t.Context(), 1) {
		t.Fatal("it does not follow")
	}
	decided := flowAt("r-2", noon.Add(time.Second), flow.Decided, false)
	decided.Event = flow.Decided
	fake.Publish(observe.Item{Record: decided})
	fake.Publish(observe.Item{Missed: &observe.Missed{Node: "node-a", Missed: 3, Why: observe.MissedLost}})
	repeated := flowAt("r-2", noon.Add(3*time.Second), flow.Decided, false)
	repeated.Event, repeated.Life.Repeated = flow.Repeated, 1
	fake.Publish(observe.Item{Record: repeated})
	fake.Break(errors.New("broken"))
	if !fake.AwaitReaders(t.Context(), 0) || !fake.AwaitReaders(t.Context(), 1) {
		t.Fatal("it does not follow again")
	}
	gone := flowAt("r-2", noon.Add(time.Second), flow.Closed, true)
	gone.Event, gone.Life.Repeated = flow.Gone, 1
	fake.Publish(observe.Item{Record: gone})
	fake.Publish(observe.Item{Missed: &observe.Missed{Node: "node-a", Missed: 4, Why: observe.MissedLost}})
	cancel()
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	h := &History{Dir: dir}
	expect(t, read(t, h, observe.FlowQuery{}), "lost 7", "r-1 closed", "r-2 closed")
	if n := strings.Count(log.String(), "trying again"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, log)
	}
	var lacks int
	if err := h.Flows(t.Context(), observe.FlowQuery{}, func(i observe.Item) error {
		if i.Missed != nil && i.Missed.Why == observe.MissedNotRecorded {
			lacks++
		}
		if i.Record != nil && i.Record.ID == "r-2" && (i.Record.Life.Repeated != 1 || !i.Record.Time.Equal(noon.Add(time.Second))) {
			t.Errorf("%+v", i.Record)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if lacks > 1 { // the interruption is shorter than what counts, unless the machine was busy
		t.Errorf("%d times without records", lacks)
	}
}

// A request that is refused is an error; one that fails is not.
func TestRefused(t *testing.T) {
	fake := observetest.New("node-a")
	fake.Fail(&observe.Error{Status: 401, Message: "a token is missing"})
	r, err := Open(Config{Dir: t.TempDir(), Name: "node-a", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	err = r.Run(t.Context(), refuser{fake})
	if err == nil || err.Error() != "a token is missing" {
		t.Error(err)
	}
}

// refuser tells when a stream begins, as a client does.
type refuser struct{ *observetest.Fake }

func (r refuser) Follow(ctx context.Context, q observe.FlowQuery, began func(), each func(observe.Item) error) error {
	return r.Flows(ctx, q, func(i observe.Item) error {
		began()
		return each(i)
	})
}

func TestUncovered(t *testing.T) {
	at := func(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }
	spans := []span{{at(20), at(30)}, {at(5), at(10)}, {at(10), at(20)}, {at(40), at(50)}}
	for _, tt := range []struct {
		name         string
		since, until time.Time
		now          bool
		want         []span
	}{
		{"all", time.Time{}, at(50), false, []span{{at(30), at(40)}}},
		{"before and after", at(0), at(60), false, []span{{at(0), at(5)}, {at(30), at(40)}, {at(50), at(60)}}},
		{"within", at(6), at(29), false, nil},
		{"in a hole", at(32), at(35), false, []span{{at(32), at(35)}}},
		{"the last minute", at(45), at(51), true, nil},
		{"a stopped recorder", at(45), at(55), true, []span{{at(50), at(55)}}},
	} {
		if got := uncovered(slices.Clone(spans), tt.since, tt.until, tt.now); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// Records of one connection on two nodes are joined, as a relay joins them.
func TestJoined(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir, nil)
	first := flowAt("a-1", noon, flow.Established, false)
	passed := flowAt("b-1", noon.Add(time.Millisecond), flow.Established, false)
	passed.Node, passed.Verdict, passed.Reason, passed.Destination, passed.Endpoint, passed.Service = "node-b", "accept", "not-a-service", first.Endpoint, "", ""
	other := flowAt("b-2", noon.Add(time.Minute), flow.Established, false)
	other.Node, other.Verdict, other.Reason, other.Service, other.Endpoint, other.Source = "node-b", "accept", "not-a-service", "", "", "10.0.0.1:1"
	w.record(first, passed, other)
	w.flush(noon)
	h := &History{Dir: dir}
	for _, limit := range []string{"", "0", "2"} {
		expect(t, read(t, h, observe.FlowQuery{Joined: true, Limit: limit}), "a-1 established", "a-1 and b-1", "b-2 established")
	}
	expect(t, read(t, h, observe.FlowQuery{Joined: true, Service: "web"}), "a-1 established", "a-1 and b-1")
	expect(t, read(t, h, observe.FlowQuery{ServicesOnly: true}), "a-1 established", "left-out 2")
	nodes, err := h.Nodes()
	if err != nil {
		t.Fatal(err)
	}
	expect(t, nodes, "node-a", "node-b")
}

// Readers beside a recorder that merges see every flow.
func TestReadWhileMerging(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir, nil)
	var want []string
	for i := range 30 {
		id := fmt.Sprint("r-", i)
		w.record(flowAt(id, noon.Add(time.Duration(i)*time.Second), flow.Decided, false))
		w.flush(noon.Add(time.Duration(i/5) * time.Hour))
		want = append(want, id+" decided")
	}
	w.clock.set(noon.Add(10 * time.Hour))
	end := make(chan error)
	go func() { end <- w.mergeOld(context.Background(), w.hour()) }()
	for merging := true; merging; {
		select {
		case err := <-end:
			if err != nil {
				t.Fatal(err)
			}
			merging = false
		default:
		}
		expect(t, read(t, &History{Dir: dir}, observe.FlowQuery{}), want...)
	}
	if n := len(files(t, dir)); n != 6 {
		t.Errorf("%d files", n)
	}
}

// BenchmarkRecord has the sizes and the speed for docs/explanation/performance.md.
func BenchmarkRecord(b *testing.B) {
	dir := b.TempDir()
	r, err := Open(Config{Dir: dir, Name: "node-a", Log: slog.New(slog.NewTextHandler(io.Discard, nil)), now: (&clock{at: noon}).now})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	g := newTraffic(noon, 1000)
	const n = 1 << 17
	var records []*flow.Record
	for range n {
		records = append(records, g.flow())
	}
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		for _, name := range must(os.ReadDir(dir)) {
			_ = os.Remove(filepath.Join(dir, name.Name()))
		}
		r.over = idSet{most: pagesOfOver}
		b.StartTimer()
		start := time.Now()
		for _, x := range records {
			_ = r.take(observe.Item{Record: x})
		}
		r.flush(noon)
		b.ReportMetric(n/time.Since(start).Seconds(), "rows/s")
		if err := r.mergeOld(b.Context(), noon.Add(time.Hour)); err != nil {
			b.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(dir, nameOf(noon, "node-a", 0)))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(info.Size())/n, "bytes/row")
		start = time.Now()
		found := 0
		if err := (&History{Dir: dir}).Flows(b.Context(), observe.FlowQuery{Service: "service-3", Limit: "0"}, func(i observe.Item) error {
			if i.Record != nil {
				found++
			}
			return nil
		}); err != nil || found == 0 {
			b.Fatal(found, err)
		}
		b.ReportMetric(n/time.Since(start).Seconds(), "rows-read/s")
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.HeapSys)/(1<<20), "MiB-heap")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
