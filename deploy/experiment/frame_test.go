package experiment_test

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// TestParquet: the Parquet files have the columns and the values of the CSV files, with types, and the version of the schema.
func TestParquet(t *testing.T) {
	t.Parallel()
	results, dir := runSwept(t)
	// A live run does not measure everything.
	delete(results.Cells[1].Values, "second_chances")
	if err := results.Write(dir); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"runs": experiment.FileRuns, "windows": experiment.FileWindows} {
		table, err := csv.NewReader(strings.NewReader(readFile(t, dir, text))).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		data := []byte(readFile(t, dir, name+".parquet"))
		f, err := parquet.OpenFile(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		var columns []string
		for _, c := range f.Schema().Columns() {
			columns = append(columns, strings.Join(c, "."))
		}
		if !slices.Equal(columns, table[0]) || f.NumRows() != int64(len(table)-1) || len(table) < 4 {
			t.Errorf("%s: %d rows of columns %q, want %d of %q", name, f.NumRows(), columns, len(table)-1, table[0])
		}
		for column, want := range map[string]parquet.Kind{"algorithm": parquet.ByteArray, "seed": parquet.Int64, "load": parquet.Double, "jain": parquet.Double} {
			if leaf, ok := f.Schema().Lookup(column); !ok || leaf.Node.Type().Kind() != want || leaf.Node.Optional() != (name == "runs" && column == "jain") {
				t.Errorf("%s: column %s is %v", name, column, leaf.Node)
			}
		}
		for key, want := range map[string]string{"nfqproxy.schema": "1", "nfqproxy.experiment": "swept", "nfqproxy.digest": results.Run.Digest} {
			if got, _ := f.Lookup(key); got != want {
				t.Errorf("%s: %s is %q, want %q", name, key, got, want)
			}
		}
		nulls := 0
		n := 1
		for row := range rowsOf(t, f) {
			for i, v := range row {
				var same bool
				switch want := table[n][i]; {
				case v.IsNull():
					nulls++
					same = want == ""
				case v.Kind() == parquet.ByteArray:
					same = string(v.ByteArray()) == want
				case v.Kind() == parquet.Int64:
					same = strconv.FormatInt(v.Int64(), 10) == want
				default:
					same = strconv.FormatFloat(v.Double(), 'g', -1, 64) == want
				}
				if !same {
					t.Errorf("%s: row %d, %s: %v, want %s", name, n, columns[i], v, table[n][i])
				}
			}
			n++
		}
		if wantNulls := map[string]int{"runs": 2*len(results.Cells) + 1}[name]; nulls != wantNulls { // late_p99 is of live runs, and no set changes
			t.Errorf("%s: %d values are missing, want %d", name, nulls, wantNulls)
		}
		// The same results have the same bytes.
		if err := errors.Join(os.Remove(filepath.Join(dir, name+".parquet")), results.Write(dir)); err != nil || readFile(t, dir, name+".parquet") != string(data) {
			t.Errorf("%s: other bytes the second time: %v", name, err)
		}
	}
}

// rowsOf are the rows of a file.
func rowsOf(t *testing.T, f *parquet.File) func(yield func(parquet.Row) bool) {
	return func(yield func(parquet.Row) bool) {
		for _, g := range f.RowGroups() {
			rows, buffer := g.Rows(), make([]parquet.Row, 1)
			for {
				n, err := rows.ReadRows(buffer)
				if n == 1 && !yield(buffer[0]) || errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := rows.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestParameter: a parameter with a value that is no number is a text in all rows, and one with the name of a metric has another name.
func TestParameter(t *testing.T) {
	t.Parallel()
	x, err := experiment.Parse("x.yaml", ".", []byte(small+"sweep: [{field: workload.work.mean, values: [1ms, 5ms], name: jain}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, dir := run(t, x)
	data := []byte(readFile(t, dir, experiment.FileRunsParquet))
	f, err := parquet.OpenFile(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	leaf, ok := f.Schema().Lookup("jain_parameter")
	if !ok || leaf.Node.Type().Kind() != parquet.ByteArray {
		t.Fatalf("column jain_parameter is %v", leaf.Node)
	}
	values := make(map[string]int)
	for row := range rowsOf(t, f) {
		values[string(row[leaf.ColumnIndex].ByteArray())]++
	}
	if values["1ms"] != 4 || values["5ms"] != 4 || len(values) != 2 {
		t.Errorf("values %v", values)
	}
}
