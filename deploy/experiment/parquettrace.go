package experiment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
)

// parquetMagic is at the beginning of Parquet files.
const parquetMagic = "PAR1"

// parquetTrace reads the flows of a Parquet file. Their times begin with that of the first flow.
func (p *reader) parquetTrace(data []byte, path string, columns *traffic.Columns, c *traffic.Cluster) []traffic.Traced {
	named := traffic.Columns{}
	if columns != nil {
		named = *columns
	}
	flows, err := readParquet(data, &named, servicesByName(c))
	if err != nil {
		p.Mistakes = append(p.Mistakes, &yamlfile.Mistake{File: path, Err: err})
		return nil
	}
	return inOrder(flows)
}

// readParquet reads the flows in the order of the rows.
func readParquet(data []byte, named *traffic.Columns, services map[string]int) (flows []traffic.Traced, err error) {
	defer func() { // the module panics on some damaged files
		if r := recover(); r != nil {
			err = fmt.Errorf("the Parquet file is damaged: %v", r)
		}
	}()
	f, err := parquet.OpenFile(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, fmt.Errorf("the Parquet file is damaged: %w", err)
	}
	if n := f.NumRows(); n < 1 || n > maxTrace {
		return nil, fmt.Errorf("want 1 to %d rows, not %d", maxTrace, n)
	}
	flows = make([]traffic.Traced, f.NumRows())
	for i := range flows {
		flows[i] = traffic.Traced{Service: -1, Work: -1}
	}
	err = eachRow(f, orElse(named.Time, "time"), named, func(row int, v parquet.Value, unit time.Duration) (err error) {
		flows[row].At, err = timeOf(v, unit)
		return err
	})
	if err == nil && has(f, named.Work, "work") {
		err = eachRow(f, orElse(named.Work, "work"), named, func(row int, v parquet.Value, unit time.Duration) error {
			if v.IsNull() {
				return nil
			}
			work, err := timeOf(v, unit)
			if err == nil && (work < 0 || work > maxWork) {
				err = fmt.Errorf("want seconds from 0 to %g, not %g", maxWork.Seconds(), work.Seconds())
			}
			flows[row].Work = work
			return err
		})
	}
	if err == nil && has(f, named.Service, "service") {
		err = eachRow(f, orElse(named.Service, "service"), named, func(row int, v parquet.Value, _ time.Duration) error {
			if v.IsNull() {
				return nil
			}
			if v.Kind() != parquet.ByteArray && v.Kind() != parquet.FixedLenByteArray {
				return fmt.Errorf("want the name of a service, not %q", v.String())
			}
			n, ok := services[string(v.ByteArray())]
			if !ok {
				return fmt.Errorf("the cluster has no service %q", v.String())
			}
			flows[row].Service = n
			return nil
		})
	}
	return flows, err
}

// has reports whether a column is to be read: it is named, or there is one with the name that it has by default.
func has(f *parquet.File, name, byDefault string) bool {
	_, ok := f.Schema().Lookup(byDefault)
	return ok || name != ""
}

// eachRow calls each for the values of a column, with the numbers of their rows, from 0, and what the number 1 stands for.
func eachRow(f *parquet.File, name string, named *traffic.Columns, each func(row int, v parquet.Value, unit time.Duration) error) error {
	leaf, ok := f.Schema().Lookup(name)
	switch {
	case !ok:
		return fmt.Errorf("there is no column %s: name it in workload.arrivals.columns", name)
	case leaf.MaxRepetitionLevel > 0:
		return fmt.Errorf("column %s contains lists: want one value per row", name)
	}
	row, rows, unit := 0, int(f.NumRows()), unitOf(leaf.Node.Type(), orElse(named.Unit, time.Second))
	err := eachValue(f, leaf.ColumnIndex, func(v parquet.Value) error {
		if row == rows {
			return errNotEqual
		}
		if err := each(row, v, unit); err != nil {
			return fmt.Errorf("row %d, column %s: %w", row+1, name, err)
		}
		row++
		return nil
	})
	if err == nil && row < rows {
		err = errNotEqual
	}
	return err
}

var errNotEqual = errors.New("the Parquet file is damaged: a column does not have as many rows as the file")

// maxWork bounds the work of a flow.
const maxWork = 1e8 * time.Second

// eachValue calls each for the values of a column.
func eachValue(f *parquet.File, column int, each func(parquet.Value) error) error {
	for _, group := range f.RowGroups() {
		pages := group.ColumnChunks()[column].Pages()
		err := eachOfPages(pages, each)
		if err = errors.Join(err, pages.Close()); err != nil {
			return err
		}
	}
	return nil
}

func eachOfPages(pages parquet.Pages, each func(parquet.Value) error) error {
	values := make([]parquet.Value, 1024)
	for {
		page, err := pages.ReadPage()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		for in := page.Values(); err == nil; {
			var n int
			if n, err = in.ReadValues(values); n == 0 && err == nil {
				err = io.ErrNoProgress
			}
			for _, v := range values[:n] {
				if err := each(v); err != nil {
					return err
				}
			}
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		parquet.Release(page)
	}
}

// unitOf is what a column's number 1 stands for.
func unitOf(t parquet.Type, byDefault time.Duration) time.Duration {
	if l := t.LogicalType(); l != nil {
		switch l := l.Value.(type) {
		case *format.TimestampType:
			return l.Unit.Value.Duration()
		case *format.TimeType:
			return l.Unit.Value.Duration()
		}
	}
	return byDefault
}

// timeOf is a number of units.
func timeOf(v parquet.Value, unit time.Duration) (time.Duration, error) {
	const most = 1 << 61 // nanoseconds, so that differences do not overflow
	switch v.Kind() {
	case parquet.Int32, parquet.Int64:
		n := v.Int64()
		if v.Kind() == parquet.Int32 {
			n = int64(v.Int32())
		}
		if n > most/int64(unit) || n < -most/int64(unit) {
			return 0, fmt.Errorf("%d is too far from 0", n)
		}
		return time.Duration(n) * unit, nil
	case parquet.Float, parquet.Double:
		x := v.Double()
		if v.Kind() == parquet.Float {
			x = float64(v.Float())
		}
		if x *= float64(unit); !(x > -most && x < most) {
			return 0, fmt.Errorf("want a number, not %s", v)
		}
		return time.Duration(x), nil
	}
	return 0, fmt.Errorf("want a number or a time, not %q", v.String())
}
