package history

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestOlderColumns: a file from before a column was added is read, and merged, without a value there.
func TestOlderColumns(t *testing.T) {
	added := []string{"Proxy", "Outdated"}
	whole := reflect.TypeFor[row]()
	var fields []reflect.StructField
	for f := range whole.Fields() {
		if !slices.Contains(added, f.Name) {
			fields = append(fields, f)
		}
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	record := &flow.Record{
		Version: 1, ID: "f1", Time: &at, Node: "node-a", Verdict: "dnat", Reason: "service-proxy", Protocol: "TCP", Source: "10.0.0.5:40000", Destination: "10.96.0.20:80",
		Service: "default/web", Endpoint: "10.0.1.7:8080", Generation: 7, Life: &flow.Life{State: flow.Closed, Since: at, Over: true},
	}
	x := reflect.ValueOf(rowOf(record, pool{}))
	old := reflect.New(reflect.StructOf(fields))
	for i, f := range fields {
		old.Elem().Field(i).Set(x.FieldByName(f.Name))
	}
	path := filepath.Join(t.TempDir(), "old.parquet")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := parquet.NewWriter(f, parquet.SchemaOf(old.Interface()))
	w.SetKeyValueMetadata(versionKey, strconv.Itoa(Version))
	for _, key := range []string{spansKey, gapsKey, nodesKey} {
		w.SetKeyValueMetadata(key, "[]")
	}
	if err := w.Write(old.Interface()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// check finds the record in a file, and returns the reader.
	check := func(path string) *reader {
		r, err := openFile(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.close)
		found := 0
		for _, g := range r.RowGroups() {
			if err := r.eachRow(g, all(g), func(x *row) error {
				if got := x.record(); got.ID != "f1" || got.Proxy != "" || got.Endpoint != record.Endpoint || got.Generation != 7 || got.State() != flow.Closed {
					t.Errorf("%s: %+v", filepath.Base(path), got)
				}
				found++
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if found != 1 {
			t.Errorf("%s: %d rows", filepath.Base(path), found)
		}
		return r
	}
	r := check(path)
	merged, err := newWriter(filepath.Join(t.TempDir(), "merged.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range r.RowGroups() {
		if err := r.copyRows(g, all(g), merged); err != nil {
			t.Fatal(err)
		}
	}
	if err := merged.commit(coverage{}); err != nil {
		t.Fatal(err)
	}
	check(merged.path)
}

// all are all rows of a group.
func all(g parquet.RowGroup) bits {
	b := newBits(g.NumRows())
	for i := range g.NumRows() {
		b.set(i)
	}
	return b
}
