package main

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// writeLayout writes an index as the tar file of an OCI layout.
func writeLayout(path string, tag name.Tag, index v1.ImageIndex) error {
	dir, err := os.MkdirTemp("", "nfqproxy-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := l.AppendIndex(index, layout.WithAnnotations(map[string]string{
		// The tag, for skopeo, and containerd's key of the whole name.
		"org.opencontainers.image.ref.name": tag.TagStr(),
		"io.containerd.image.name":          strings.Replace(tag.Name(), name.DefaultRegistry+"/", "docker.io/", 1),
	})); err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	// WalkDir goes by names.
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return appendFile(w, p, strings.TrimPrefix(p, dir+"/"))
	})
	return errors.Join(err, w.Close(), out.Close())
}

func appendFile(w *tar.Writer, path, name string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Mode: 0o644, Size: info.Size(), Format: tar.FormatUSTAR}); err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}
