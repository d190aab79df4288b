package history

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"
)

// mergeOld merges the parts of the hours before one.
func (r *Recorder) mergeOld(ctx context.Context, before time.Time) error {
	r.merging.Lock()
	defer r.merging.Unlock()
	files, err := r.readable()
	for len(files) > 0 && err == nil {
		hour := files[0].hour
		n := slices.IndexFunc(files, func(f file) bool { return !f.hour.Equal(hour) })
		if n < 0 {
			n = len(files)
		}
		if hour.Before(before) && files[n-1].part > 0 {
			err = r.merge(ctx, files[:n])
		}
		files = files[n:]
	}
	return err
}

// merge makes one file of those of an hour, with the newest row of each flow. It reads the files twice, some rows at a time: from
// the newest to the oldest for the rows that are to be kept, and then in order. Parts that were merged, and not removed because
// the recorder was killed, add nothing.
func (r *Recorder) merge(ctx context.Context, files []file) error {
	if len(files) == 0 { // none of them can be read
		return nil
	}
	var size int64
	for _, f := range files {
		size += f.size
	}
	if r.MaxSize > 0 && size > r.MaxSize/2 {
		return nil // both copies do not fit: it stays in parts, of which the oldest are removed
	}
	if err := r.bound(size); err != nil {
		return err
	}
	err := r.mergeInto(ctx, filepath.Join(r.Dir, nameOf(files[0].hour, r.Name, 0)), files)
	if bad, ok := errors.AsType[*UnreadableError](err); ok {
		r.setAside(bad.Path, bad.Err)
		rest := slices.DeleteFunc(slices.Clone(files), func(f file) bool { return f.path == bad.Path })
		return r.merge(ctx, rest)
	}
	return err
}

func (r *Recorder) mergeInto(ctx context.Context, path string, files []file) error {
	inputs, keep := make([]*reader, len(files)), make([][]bits, len(files))
	var seen idSet
	for i, f := range slices.Backward(files) {
		in, err := openFile(f.path)
		if errors.Is(err, fs.ErrNotExist) { // removed to make room
			continue
		}
		if err != nil {
			return err
		}
		defer in.close()
		if keep[i], err = in.newest(&seen); err != nil {
			return err
		}
		inputs[i] = in
	}
	out, err := newWriter(path)
	if err != nil {
		return err
	}
	var c coverage
	for i, in := range inputs {
		if in == nil {
			continue
		}
		c.add(in.coverage)
		if err := reading(in.path, func() error {
			for k, g := range in.RowGroups() {
				if ctx.Err() != nil {
					return &callerError{ctx.Err()}
				}
				if err := in.copyRows(g, keep[i][k], out); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			out.abort()
			return err
		}
	}
	if err := out.commit(c); err != nil {
		return err
	}
	for _, f := range files {
		if f.part > 0 {
			if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// newest returns, for each row group, the rows with flows that were not seen, and adds these.
func (r *reader) newest(seen *idSet) (keep []bits, err error) {
	err = reading(r.path, func() error {
		groups := r.RowGroups()
		keep = make([]bits, len(groups))
		for i, g := range slices.Backward(groups) {
			if keep[i], err = r.unseen(g, seen); err != nil {
				return err
			}
		}
		return nil
	})
	return keep, err
}

// unseen returns the rows of a row group with flows that were not seen, and adds these.
func (r *reader) unseen(g parquet.RowGroup, seen *idSet) (bits, error) {
	keep := newBits(g.NumRows())
	return keep, r.eachID(g, func(k int64, id string) error {
		if seen.add(id) {
			keep.set(k)
		}
		return nil
	})
}
