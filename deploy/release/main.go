// Command release makes the files of a release from programs that are built:
//
//	go run . -source ../.. -version v1.2.3 -revision COMMIT linux-amd64 darwin-arm64
//
// SOURCE/bin has the programs (PLATFORM/nfqproxy, for Linux with nfqproxyd beside it), the manual, the chart and the images (nfqproxy-image*.tar); "make release"
// builds them. The files go to SOURCE/bin/release: archives, packages for Debian and Fedora, images, the chart, bills of
// materials (SPDX), the notes and SHA256SUMS. They depend on nothing but the sources, Go's version and SOURCE_DATE_EPOCH.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/deploy/release/licenses"
	"github.com/nfqproxy/nfqproxy/deploy/release/program"
)

func main() {
	flags := flag.NewFlagSet("release", flag.ExitOnError)
	var r release
	flags.StringVar(&r.source, "source", "../..", "the `directory` of the repository")
	flags.StringVar(&r.version, "version", "", "the version, such as v1.2.3")
	flags.StringVar(&r.revision, "revision", "", "the `commit`")
	flags.StringVar(&r.changelog, "changelog", "", "the `file` with the notes (default: SOURCE/CHANGELOG.md)")
	check := flags.Bool("check", false, "check the version and its notes only")
	_ = flags.Parse(os.Args[1:])
	r.platforms = flags.Args()
	if err := r.run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is what the files are made of.
type release struct {
	source, version, revision, changelog string

	platforms []string // as make names them: linux-amd64

	date  time.Time // of all files
	stage string    // a directory for files that packages contain
	out   string    // the directory of the release
}

// semantic is a version with its "v", and perhaps a pre-release.
var semantic = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$`)

func (r *release) run(check bool) (err error) {
	if !semantic.MatchString(r.version) {
		return fmt.Errorf("the version is %q: set one such as v1.2.3 (make release VERSION=v1.2.3)", r.version)
	}
	if r.changelog == "" {
		r.changelog = filepath.Join(r.source, "CHANGELOG.md")
	}
	notes, err := notesOf(r.changelog, r.version)
	if err != nil || check {
		return err
	}
	if r.date, err = program.SourceDate(); err != nil {
		return err
	}
	// The directory appears when it is complete.
	if r.out, err = os.MkdirTemp(r.bin(), "release-"); err != nil {
		return err
	}
	if r.stage, err = os.MkdirTemp("", "release-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.stage), os.RemoveAll(r.out)) }()
	if err := r.write(notes); err != nil {
		return err
	}
	final := r.bin("release")
	if err := errors.Join(os.RemoveAll(final), os.Chmod(r.out, 0o755), os.Rename(r.out, final)); err != nil {
		return err
	}
	fmt.Println(final)
	return nil
}

func (r *release) bin(name ...string) string {
	return filepath.Join(append([]string{r.source, "bin"}, name...)...)
}

// chart is the Helm chart, which has no "v" in its version.
func (r *release) chart() string {
	return r.bin("chart", "nfqproxy-"+strings.TrimPrefix(r.version, "v")+".tgz")
}

// licenses is the file with the licences of a platform's program.
func (r *release) licenses(platform string) string {
	return filepath.Join(r.stage, licenses.FileName+"-"+platform)
}

// base is the name of a file without its extension.
func (r *release) base(kind string) string { return "nfqproxy-" + r.version + "-" + kind }

// write writes all files. What is missing is found first.
func (r *release) write(notes string) error {
	if len(r.platforms) == 0 {
		return errors.New("a release has programs: name their platforms, such as linux-amd64")
	}
	programs := make(map[string]*program.Program)
	modules := make(map[string][]licenses.Module)
	for _, platform := range r.platforms {
		p, err := program.ReadTool(r.bin(platform, "nfqproxy"))
		if err != nil {
			return err
		}
		if got := p.OS + "-" + p.Arch; got != platform {
			return fmt.Errorf("%s is for %s", p.Path, got)
		}
		programs[platform] = p
		if modules[platform], err = licenses.Of(p, r.source); err != nil {
			return err
		}
	}
	if err := r.writeStage(modules); err != nil {
		return err
	}
	for _, suffix := range []string{"", "-amd64", "-arm64"} {
		if err := copyFile(filepath.Join(r.out, r.base("image"+suffix)+".tar"), r.bin("nfqproxy-image"+suffix+".tar")); err != nil {
			return err
		}
	}
	chart := r.chart()
	if err := copyFile(filepath.Join(r.out, filepath.Base(chart)), chart); err != nil {
		return err
	}
	for _, platform := range r.platforms {
		p := programs[platform]
		if err := errors.Join(r.writeArchive(p, platform), r.writeBill(p, modules[platform], platform)); err != nil {
			return err
		}
		if p.OS == "linux" {
			if err := r.writePackages(p, platform); err != nil {
				return err
			}
		}
	}
	if err := r.writePlugins(programs); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.out, "NOTES.md"), []byte(notes), 0o644); err != nil {
		return err
	}
	return writeSums(r.out)
}

// notesOf is the text of a version's section in a file of the format Keep a Changelog.
func notesOf(changelog, version string) (string, error) {
	content, err := os.ReadFile(changelog)
	if err != nil {
		return "", err
	}
	var notes strings.Builder
	within := false
	for line := range strings.Lines(string(content)) {
		switch {
		case strings.HasPrefix(line, "## "):
			within = strings.HasPrefix(line, "## ["+strings.TrimPrefix(version, "v")+"]")
		case within:
			notes.WriteString(line)
		}
	}
	text := strings.TrimSpace(notes.String())
	if text == "" {
		return "", fmt.Errorf("%s has no text below a heading \"## [%s]\": rename [Unreleased] to it, with the date", changelog, strings.TrimPrefix(version, "v"))
	}
	return text + "\n", nil
}
