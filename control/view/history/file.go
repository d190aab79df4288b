package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/parquet-go/parquet-go"
)

// Keys of a file's metadata.
const (
	versionKey = "nfqproxy.version"
	spansKey   = "nfqproxy.recorded"
	gapsKey    = "nfqproxy.missed"
	nodesKey   = "nfqproxy.nodes"
)

// rowsOfGroup is the number of rows of a row group: what is compressed together and, while it is written, in memory.
const rowsOfGroup = 1 << 18

// span is a time in which a recorder followed the flows.
type span struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// gap are records that a recorder did not get, see [observe.Missed].
type gap struct {
	span
	Node   string `json:"node,omitempty"`
	Missed uint64 `json:"missed"`
	Why    string `json:"why"`
}

// coverage is what a file says of its contents besides the rows.
type coverage struct {
	spans []span
	gaps  []gap
	nodes []string // of the rows, sorted
}

// values are the values in a file's metadata.
func (c *coverage) values() map[string]any {
	return map[string]any{spansKey: &c.spans, gapsKey: &c.gaps, nodesKey: &c.nodes}
}

// add adds the coverage of a later file.
func (c *coverage) add(o coverage) {
	for _, s := range o.spans {
		if n := len(c.spans); n > 0 && !s.From.After(c.spans[n-1].To) && !s.From.Before(c.spans[n-1].From) {
			if s.To.After(c.spans[n-1].To) {
				c.spans[n-1].To = s.To
			}
			continue
		}
		c.spans = append(c.spans, s)
	}
	for _, g := range o.gaps {
		if !slices.Contains(c.gaps, g) { // of an hour that was merged, and whose parts were not removed
			c.gaps = append(c.gaps, g)
		}
	}
	c.nodes = append(c.nodes, o.nodes...)
	slices.Sort(c.nodes)
	c.nodes = slices.Compact(c.nodes)
}

// writer writes a file, which has its name only when it is complete.
type writer struct {
	path string
	file *os.File
	buf  *bufio.Writer
	rows *parquet.GenericWriter[row]
}

func newWriter(path string) (*writer, error) {
	f, err := os.OpenFile(path+unfinished, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return nil, err
	}
	w := &writer{path: path, file: f, buf: bufio.NewWriterSize(f, 1<<20)}
	w.rows = parquet.NewGenericWriter[row](w.buf, parquet.Compression(&parquet.Zstd), parquet.MaxRowsPerRowGroup(rowsOfGroup),
		parquet.CreatedBy("nfqproxy", strconv.Itoa(Version), ""))
	return w, nil
}

func (w *writer) write(rows []row) error {
	_, err := w.rows.Write(rows)
	return err
}

// abort removes what was written.
func (w *writer) abort() {
	_ = w.file.Close()
	_ = os.Remove(w.path + unfinished)
}

// commit completes the file, on disk and by its name.
func (w *writer) commit(c coverage) (err error) {
	defer func() {
		if err != nil {
			w.abort()
		}
	}()
	w.rows.SetKeyValueMetadata(versionKey, strconv.Itoa(Version))
	c.spans, c.gaps, c.nodes = append([]span{}, c.spans...), append([]gap{}, c.gaps...), append([]string{}, c.nodes...) // [] in JSON
	for key, value := range c.values() {
		b, err := json.Marshal(value)
		if err != nil {
			return err
		}
		w.rows.SetKeyValueMetadata(key, string(b))
	}
	if err := errors.Join(w.rows.Close(), w.buf.Flush(), w.file.Sync(), w.file.Close()); err != nil {
		return err
	}
	if err := os.Rename(w.path+unfinished, w.path); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(w.path))
}

// reader reads a file.
type reader struct {
	path string
	file *os.File
	*parquet.File
	coverage coverage
}

// UnreadableError is a file that cannot be read, or not to its end.
type UnreadableError struct {
	Path string
	Err  error
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("%s: cannot be read, and is skipped: %v", e.Path, e.Err)
}

func (e *UnreadableError) Unwrap() error { return e.Err }

// reading calls read, and returns an [*UnreadableError] for a file with mistakes: the parser panics on some. A file that
// does not exist is [fs.ErrNotExist], and errors of the caller are not changed.
func reading(path string, read func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &UnreadableError{path, fmt.Errorf("%v", p)}
		}
	}()
	err = read()
	own, is := errors.AsType[*callerError](err)
	switch {
	case is:
		return own.error
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return &UnreadableError{path, err}
	}
	return err
}

// callerError is an error of whoever gets the rows.
type callerError struct{ error }

func openFile(path string) (r *reader, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	err = reading(path, func() error {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		p, err := parquet.OpenFile(f, info.Size(), parquet.SkipBloomFilters(true))
		if err != nil {
			return err
		}
		r = &reader{path: path, file: f, File: p}
		return r.readMetadata()
	})
	return r, err
}

func (r *reader) readMetadata() error {
	switch version, ok := r.Lookup(versionKey); {
	case !ok:
		return errors.New("not written by nfqproxy record")
	case version != strconv.Itoa(Version):
		return fmt.Errorf("columns of version %s, this program reads version %d: use another nfqproxy", version, Version)
	}
	for key, value := range r.coverage.values() {
		text, _ := r.Lookup(key)
		if err := json.Unmarshal([]byte(text), value); err != nil {
			return fmt.Errorf("metadata %s: %w", key, err)
		}
	}
	for _, name := range []string{idColumn, timeColumn} {
		if _, ok := r.Schema().Lookup(name); !ok {
			return fmt.Errorf("column %s is missing", name)
		}
	}
	return nil
}

func (r *reader) close() { _ = r.file.Close() }

const idColumn, timeColumn = "id", "time"

// column returns the chunk of a column of a row group.
func (r *reader) column(g parquet.RowGroup, name string) parquet.ColumnChunk {
	leaf, _ := r.Schema().Lookup(name)
	return g.ColumnChunks()[leaf.ColumnIndex]
}

// times returns the first and last time of the decisions of a row group; ok is false if they are not known.
func (r *reader) times(g parquet.RowGroup) (first, last int64, ok bool) {
	chunk, is := r.column(g, timeColumn).(*parquet.FileColumnChunk)
	if !is {
		return 0, 0, false
	}
	least, most, ok := chunk.Bounds()
	if !ok {
		return 0, 0, false
	}
	return least.Int64(), most.Int64(), true
}

// eachID calls each with the IDs of a row group in order.
func (r *reader) eachID(g parquet.RowGroup, each func(i int64, id string) error) error {
	pages := r.column(g, idColumn).Pages()
	defer pages.Close()
	values := make([]parquet.Value, 1024)
	i := int64(0)
	for {
		page, err := pages.ReadPage()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		for in := page.Values(); ; {
			n, err := in.ReadValues(values)
			for _, v := range values[:n] {
				if i >= g.NumRows() {
					return errors.New("more ids than rows")
				}
				if err := each(i, string(v.ByteArray())); err != nil {
					return err
				}
				i++
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
		}
		parquet.Release(page)
	}
	if i != g.NumRows() {
		return fmt.Errorf("%d ids of %d rows", i, g.NumRows())
	}
	return nil
}

// eachRow calls each with the rows of a row group whose numbers are in keep. A row is valid until each returns.
func (r *reader) eachRow(g parquet.RowGroup, keep bits, each func(*row) error) error {
	rows := parquet.NewGenericRowGroupReader[row](g)
	defer rows.Close()
	buffer := make([]row, 256)
	return batches(g, func() (int, error) {
		clear(buffer)
		return rows.Read(buffer)
	}, func(first int64, n int) error {
		for k := range buffer[:n] {
			if keep.has(first + int64(k)) {
				if err := each(&buffer[k]); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// copyRows writes the rows of a row group whose numbers are in keep.
func (r *reader) copyRows(g parquet.RowGroup, keep bits, w *writer) error {
	rows := parquet.NewGenericRowGroupReader[row](g) // with the columns of this version
	defer rows.Close()
	buffer, kept := make([]parquet.Row, 256), make([]parquet.Row, 0, 256)
	return batches(g, func() (int, error) { return rows.ReadRows(buffer) }, func(first int64, n int) error {
		kept = kept[:0]
		for k, x := range buffer[:n] {
			if keep.has(first + int64(k)) {
				kept = append(kept, x)
			}
		}
		_, err := w.rows.WriteRows(kept)
		return err
	})
}

// eachOver calls each with the IDs of the flows that are over.
func (r *reader) eachOver(g parquet.RowGroup, each func(id string)) error {
	type columns struct {
		ID   string `parquet:"id,delta"`
		Over bool   `parquet:"over"`
	}
	rows := parquet.NewGenericRowGroupReader[columns](g)
	defer rows.Close()
	buffer := make([]columns, 1024)
	return batches(g, func() (int, error) { return rows.Read(buffer) }, func(_ int64, n int) error {
		for _, x := range buffer[:n] {
			if x.Over {
				each(x.ID)
			}
		}
		return nil
	})
}

// batches reads all rows of a row group, and calls take for those that were read at a time: n of them, from the first on. Errors of take
// are those of the caller.
func batches(g parquet.RowGroup, read func() (int, error), take func(first int64, n int) error) error {
	for i := int64(0); ; {
		n, err := read()
		if i+int64(n) > g.NumRows() {
			return errors.New("more rows than its metadata says")
		}
		if n > 0 {
			if err := take(i, n); err != nil {
				return &callerError{err}
			}
		}
		i += int64(n)
		switch {
		case errors.Is(err, io.EOF) && i == g.NumRows():
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%d of %d rows", i, g.NumRows())
		case err != nil:
			return err
		}
	}
}
