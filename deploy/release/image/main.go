// Command image packs programs into a container image for several platforms, without a
// container runtime, and pushes it if -push is set:
//
//	go run ./image -source ../.. -name nfqproxy:dev -version v1.2.3 -out DIR PROGRAM...
//
// It writes nfqproxy-image.tar, an OCI layout of all platforms (for ctr, kind, podman and skopeo), and
// nfqproxy-image-ARCH.tar for each, in Docker's format (for docker load and crane). The files depend on
// nothing but the programs, the flags and SOURCE_DATE_EPOCH.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/nfqproxy/nfqproxy/deploy/release/program"
)

func main() {
	flags := flag.NewFlagSet("image", flag.ExitOnError)
	image := flags.String("name", "nfqproxy:dev", "the image's `name`, with a tag")
	version := flags.String("version", "unknown", "the program's version")
	revision := flags.String("revision", "", "the `commit` of the program")
	dir := flags.String("source", "../..", "the `directory` of the repository")
	out := flags.String("out", ".", "the `directory` of the files")
	lab := flags.String("lab", "", "the `directory` of lab-root.sh: makes an image of labs, with its files nfqproxy-lab-image*")
	push := flags.Bool("push", false, "push the image to the registry of its name, with the credentials of docker login")
	_ = flags.Parse(os.Args[1:])
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *image, source{dir: *dir, version: *version, revision: *revision, lab: *lab}, *out, *push, flags.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, image string, from source, out string, push bool, paths []string) error {
	tag, err := name.NewTag(image)
	if err != nil {
		return fmt.Errorf("the name of the image: %w", err)
	}
	if from.date, err = program.SourceDate(); err != nil {
		return err
	}
	var programs []*program.Program
	for _, path := range paths {
		p, err := program.ReadTool(path)
		if err != nil {
			return err
		}
		programs = append(programs, p)
	}
	index, images, err := build(programs, from)
	if err != nil {
		return err
	}
	file := "nfqproxy-image"
	if from.lab != "" {
		file = "nfqproxy-lab-image"
	}
	for arch, img := range images {
		if err := write(filepath.Join(out, file+"-"+arch+".tar"), func(path string) error {
			return tarball.WriteToFile(path, tag, img)
		}); err != nil {
			return err
		}
	}
	if err := write(filepath.Join(out, file+".tar"), func(path string) error {
		return writeLayout(path, tag, index)
	}); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if push {
		if err := pushIndex(ctx, tag, index); err != nil {
			return err
		}
	}
	fmt.Printf("%s@%s\n", image, digest)
	return nil
}

// write has a file written beside its place, so that a failure leaves no half of it.
func write(path string, content func(path string) error) error {
	defer os.Remove(path + ".part")
	if err := content(path + ".part"); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return os.Rename(path+".part", path)
}

func pushIndex(ctx context.Context, tag name.Tag, index v1.ImageIndex) error {
	if err := remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("cannot push %s (docker login %s stores credentials): %w", tag, tag.RegistryStr(), err)
	}
	return nil
}
