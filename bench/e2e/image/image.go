// Package image makes container images of programs and files of this machine, without a
// registry and without a container engine.
package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
)

// Image is a container image of layers, the lowest first. Images may share layers.
type Image struct {
	Names      []string // with tags
	Layers     []*Layer
	Entrypoint []string
	Cmd        []string
}

// config is the part of an image's configuration that a container runtime needs
// (application/vnd.docker.container.image.v1+json).
type config struct {
	Architecture string          `json:"architecture"`
	OS           string          `json:"os"`
	Config       containerConfig `json:"config"`
	RootFS       rootFS          `json:"rootfs"`
}

type containerConfig struct {
	Env        []string
	Entrypoint []string
	Cmd        []string
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// entry is one image of the archive's manifest.json.
type entry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// Write writes the images as one archive, in the format of "docker save", which
// "ctr images import" and "docker load" read. Equal images give equal bytes.
func Write(to io.Writer, images ...Image) error {
	out := tar.NewWriter(to)
	files := make(map[*Layer]digest)
	var manifest []entry
	for _, i := range images {
		c := config{
			Architecture: runtime.GOARCH,
			OS:           "linux",
			Config: containerConfig{
				Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
				Entrypoint: i.Entrypoint,
				Cmd:        i.Cmd,
			},
			RootFS: rootFS{Type: "layers"},
		}
		e := entry{RepoTags: i.Names}
		for _, l := range i.Layers {
			if _, ok := files[l]; !ok {
				d, err := l.writeTo(out)
				if err != nil {
					return fmt.Errorf("image %s: %w", i.Names[0], err)
				}
				files[l] = d
			}
			c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, "sha256:"+string(files[l]))
			e.Layers = append(e.Layers, files[l].layer())
		}
		text, err := json.Marshal(c)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		e.Config = hex.EncodeToString(sum[:]) + ".json"
		if err := add(out, e.Config, text); err != nil {
			return err
		}
		manifest = append(manifest, e)
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	if err := add(out, "manifest.json", text); err != nil {
		return err
	}
	return out.Close()
}

// digest is the SHA-256 of an uncompressed layer, in hexadecimal digits.
type digest string

// layer is the layer's file in the archive.
func (d digest) layer() string { return string(d) + ".tar" }

// writeTo adds the layer to an archive. Its name is its digest, so it is written to a
// temporary file first.
func (l *Layer) writeTo(out *tar.Writer) (digest, error) {
	file, err := os.CreateTemp("", "layer-")
	if err != nil {
		return "", err
	}
	defer file.Close()
	if err := os.Remove(file.Name()); err != nil {
		return "", err
	}
	hash := sha256.New()
	if err := l.write(io.MultiWriter(file, hash)); err != nil {
		return "", err
	}
	d := digest(hex.EncodeToString(hash.Sum(nil)))
	size, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return "", err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	if err := out.WriteHeader(&tar.Header{Name: d.layer(), Mode: 0o644, Size: size}); err != nil {
		return "", err
	}
	_, err = io.Copy(out, file)
	return d, err
}

func add(out *tar.Writer, name string, text []byte) error {
	if err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
		return err
	}
	_, err := out.Write(text)
	return err
}
