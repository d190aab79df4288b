package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// An image of labs has the root file system of lab-root.sh, with the tools of the labs, below the program.
const (
	labProgram = "usr/local/bin/nfqproxy"
	labDaemon  = "usr/local/bin/nfqproxyd"
	labEntry   = "usr/local/bin/lab-entry"
)

// labConfig runs a shell by default.
func labConfig(c *v1.Config) {
	c.Entrypoint, c.Cmd = []string{"/" + labEntry}, []string{"bash"}
	c.WorkingDir = "/root"
	c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG=C.UTF-8", "HOME=/root"}
	c.ExposedPorts = map[string]struct{}{"10253/tcp": {}}
}

// rootLayer is a layer with the files of a directory, in the order of their names. All belong to root and are from the
// Unix epoch.
func rootLayer(dir string) (v1.Layer, error) {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("no root file system in %s: run lab-root.sh first", dir)
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { _ = w.CloseWithError(writeTree(w, dir)) }()
		return r, nil
	}, tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithCompressedCaching, tarball.WithMediaType(types.OCILayer))
}

// writeTree writes the files of a directory as a tar archive.
func writeTree(to io.Writer, dir string) error {
	w := tar.NewWriter(to)
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		target := ""
		switch mode := info.Mode(); {
		case mode&fs.ModeSymlink != 0:
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		case !mode.IsRegular() && !mode.IsDir():
			return fmt.Errorf("%s is neither a file, nor a directory or link", path)
		}
		header, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		header.Name = filepath.ToSlash(strings.TrimPrefix(path, dir+"/"))
		if info.IsDir() {
			header.Name += "/"
		}
		header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", ""
		header.ModTime, header.AccessTime, header.ChangeTime = time.Unix(0, 0), time.Time{}, time.Time{}
		header.PAXRecords, header.Format = nil, tar.FormatPAX
		if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		_, err = io.Copy(w, in)
		return err
	})
	return errors.Join(err, w.Close())
}
