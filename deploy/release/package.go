package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers its format
	_ "github.com/goreleaser/nfpm/v2/rpm"

	"github.com/nfqproxy/nfqproxy/deploy/release/program"
)

// writePackages writes the packages of a program, which package/nfpm.yaml describes.
func (r *release) writePackages(p *program.Program, platform string) error {
	// An unknown variable would be empty, and its file another one.
	var unknown error
	config, err := nfpm.ParseFileWithEnvMapping(filepath.Join(r.source, "deploy/release/package/nfpm.yaml"), func(name string) string {
		switch name {
		case "ARCH":
			return p.Arch
		case "VERSION":
			return r.version
		case "PROGRAM":
			return p.Path
		case "DAEMON":
			return p.Daemon
		case "SOURCE":
			return r.source
		case "MANUAL":
			return r.bin("manual")
		case "STAGE":
			return r.stage
		case "LICENSES":
			return r.licenses(platform)
		case "NFPM_PASSPHRASE", "NFPM_DEB_PASSPHRASE", "NFPM_RPM_PASSPHRASE", "NFPM_APK_PASSPHRASE", "NFPM_MSIX_PASSPHRASE":
			return ""
		}
		unknown = errors.Join(unknown, fmt.Errorf("package/nfpm.yaml uses the unknown variable %s", name))
		return ""
	})
	if err := errors.Join(err, unknown); err != nil {
		return err
	}
	for _, format := range []string{"deb", "rpm"} {
		packager, err := nfpm.Get(format)
		if err != nil {
			return err
		}
		info, err := config.Get(format)
		if err != nil {
			return err
		}
		info.MTime = r.date
		// These paths are not expanded.
		scripts := filepath.Join(r.source, "deploy/release/package")
		info.Scripts = nfpm.Scripts{
			PostInstall: filepath.Join(scripts, "postinst"), PreRemove: filepath.Join(scripts, "prerm"), PostRemove: filepath.Join(scripts, "postrm"),
		}
		info = nfpm.WithDefaults(info)
		out, err := os.Create(filepath.Join(r.out, packager.ConventionalFileName(info)))
		if err != nil {
			return err
		}
		if err := errors.Join(packager.Package(info, out), out.Close()); err != nil {
			return fmt.Errorf("the %s of %s: %w", format, p.Arch, err)
		}
	}
	return nil
}
