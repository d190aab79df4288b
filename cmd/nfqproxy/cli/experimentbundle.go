package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/exitcode"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

func newExperimentBundleCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "bundle DIRECTORY",
		Short: "Pack results, with everything that made them, into one file",
		Long: `Pack a results directory into an archive: the experiment's file, the scripts and other
files that it names, versions and seeds, the results, how to cite them (CITATION.cff: the
directory's own, if it has one), and the SHA-256 of each file. nfqproxy experiment verify
runs it again, on any machine. The same directory gives the same archive. Files of more
than 64 MiB that the experiment names are left out, but their checksums are included.`,
		Example: "  nfqproxy experiment bundle heavy-tail --write paper.tar.gz",
		Args:    exactly(1, "DIRECTORY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return bundleExperiment(cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], file)
		},
	}
	cmd.Flags().StringVar(&file, "write", "", "file to write (default: DIRECTORY.tar.gz, here)")
	return cmd
}

func bundleExperiment(stdout, stderr io.Writer, dir, file string) error {
	if file == "" {
		path, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		file = filepath.Base(path) + ".tar.gz"
	}
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("%s exists: remove it or give another name with --write", file)
	}
	unfinished := file + ".tmp"
	f, err := os.OpenFile(unfinished, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	large, err := experiment.Bundle(dir, f)
	if err := errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(unfinished)
		return err
	}
	if err := os.Rename(unfinished, file); err != nil {
		return err
	}
	for _, name := range large {
		fmt.Fprintf(stderr, "nfqproxy: %s is too large for the bundle: to verify it, give the file separately\n", name)
	}
	_, err = fmt.Fprintln(stdout, file)
	return err
}

func newExperimentVerifyCommand() *cobra.Command {
	var v experiment.Verifier
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Run a bundle's experiment again, and compare the results bit for bit",
		Long: `Check the checksums of an archive from nfqproxy experiment bundle, run its experiment
again in a temporary directory, and report for each file whether it has the same bytes.
Times measured on the machine are not compared. Another version of nfqproxy may give other
results; the output names both versions. Results of live runs cannot be verified.`,
		Example:     "  nfqproxy experiment verify paper.tar.gz",
		Annotations: ending(),
		Args:        exactly(1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if v.Cells < 1 {
				return fmt.Errorf("--parallel %d: want 1 or more", v.Cells)
			}
			return verifyExperiment(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &v, args[0])
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&v.Files, "files", "", "directory with the files that were too large for the bundle")
	_ = cmd.MarkFlagDirname("files")
	flags.IntVar(&v.Cells, "parallel", runtime.NumCPU(), "number of runs at the same time")
	return cmd
}

func verifyExperiment(ctx context.Context, stdout, stderr io.Writer, v *experiment.Verifier, file string) error {
	bar := newProgressBar(stderr)
	v.Version, v.Progress = version, bar.update
	found, err := v.Verify(ctx, file)
	bar.clear()
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted before all runs were finished")
	case err != nil:
		return err
	}
	if _, err := io.WriteString(stdout, found.Text()); err != nil {
		return err
	}
	return exitcode.Negative(found.Verdict())
}
