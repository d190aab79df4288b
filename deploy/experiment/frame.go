package experiment

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/parquet-go/parquet-go"
)

// Schema is the version of the columns of the tables of results, which docs/reference/experiments.md describes. It is incremented when
// a column changes its meaning or is removed; new columns do not change it.
const Schema = 1

// frame is a table with typed columns. It is written as CSV and as Parquet.
type frame struct {
	columns []column
	rows    [][]any // a value for each column: string, int, float64, or nil where there is none
}

// column is a column of a frame. A column of numbers may have texts as values: those of parameters, which CSV files spell as the
// experiment's file does.
type column struct {
	name string
	kind kind
}

type kind int

const (
	textColumn kind = iota
	countColumn
	numberColumn   // of a parameter or a window: always there
	measuredColumn // a number that may be missing
)

// keys are the columns that all tables begin with: those of [keyColumns], and the parameters.
func (r *Results) keys() []column {
	all := []column{{keyColumns[0], textColumn}, {keyColumns[1], countColumn}, {keyColumns[2], countColumn}}
	for i, name := range r.Parameters {
		k := numberColumn
		for _, one := range r.series {
			if _, err := strconv.ParseFloat(valuesOf(one.point)[i], 64); err != nil {
				k = textColumn
			}
		}
		all = append(all, column{name, k})
	}
	return all
}

// values are those of the columns of [Results.keys].
func (k Key) values() []any {
	all := []any{k.Algorithm, k.Seed, k.Repeat}
	for _, v := range valuesOf(k.Point) {
		all = append(all, v)
	}
	return all
}

// csv writes the frame so that numbers read back as the same bits.
func (f *frame) csv() []byte {
	header := make([]string, len(f.columns))
	for i, c := range f.columns {
		header[i] = c.name
	}
	rows := make([][]string, len(f.rows))
	for n, values := range f.rows {
		for _, v := range values {
			text := ""
			switch v := v.(type) {
			case string:
				text = v
			case int:
				text = strconv.Itoa(v)
			case float64:
				text = number(v)
			}
			rows[n] = append(rows[n], text)
		}
	}
	return toCSV(header, rows)
}

// parquet writes the frame with metadata. The same frame has the same bytes.
func (f *frame) parquet(name string, metadata map[string]string) ([]byte, error) {
	group := ordered{parquet.Group{}, make([]string, len(f.columns))}
	for i, c := range slices.Backward(f.columns) {
		for group.Group[c.name] != nil { // a parameter with the name of a metric
			c.name += "_parameter"
		}
		group.names[i], group.Group[c.name] = c.name, c.kind.node()
	}
	var b bytes.Buffer
	w := parquet.NewWriter(&b, parquet.NewSchema(name, group), parquet.Compression(&parquet.Zstd), parquet.CreatedBy("nfqproxy", strconv.Itoa(Schema), ""))
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		w.SetKeyValueMetadata(key, metadata[key])
	}
	rows := make([]parquet.Row, len(f.rows))
	for n, values := range f.rows {
		for i, v := range values {
			value, err := f.columns[i].kind.value(v)
			if err != nil {
				return nil, fmt.Errorf("%s: column %s: %w", name, f.columns[i].name, err)
			}
			defined := 0
			if f.columns[i].kind == measuredColumn && v != nil {
				defined = 1
			}
			rows[n] = append(rows[n], value.Level(0, defined, i))
		}
	}
	_, err := w.WriteRows(rows)
	err = errors.Join(err, w.Close())
	return b.Bytes(), err
}

func (k kind) node() parquet.Node {
	switch k {
	case textColumn:
		return parquet.Encoded(parquet.String(), &parquet.RLEDictionary)
	case countColumn:
		return parquet.Int(64)
	case measuredColumn:
		return parquet.Optional(parquet.Leaf(parquet.DoubleType))
	}
	return parquet.Leaf(parquet.DoubleType)
}

func (k kind) value(v any) (parquet.Value, error) {
	switch v := v.(type) {
	case nil:
		return parquet.NullValue(), nil
	case int:
		return parquet.Int64Value(int64(v)), nil
	case float64:
		return parquet.DoubleValue(v), nil
	case string:
		if k == textColumn {
			return parquet.ByteArrayValue([]byte(v)), nil
		}
		x, err := strconv.ParseFloat(v, 64)
		return parquet.DoubleValue(x), err
	}
	return parquet.Value{}, fmt.Errorf("a value of type %T", v)
}

// ordered is a group with the fields in the order of names: those of [parquet.Group] are sorted.
type ordered struct {
	parquet.Group
	names []string
}

// Fields implements [parquet.Node].
func (o ordered) Fields() []parquet.Field {
	all := o.Group.Fields()
	slices.SortFunc(all, func(a, b parquet.Field) int { return slices.Index(o.names, a.Name()) - slices.Index(o.names, b.Name()) })
	return all
}
