package cli

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
	"github.com/nfqproxy/nfqproxy/deploy/learn/screen"
	"github.com/nfqproxy/nfqproxy/deploy/learn/session"
	"github.com/nfqproxy/nfqproxy/deploy/learn/units"
)

// learnFlags select a course and a student's record.
type learnFlags struct {
	units  string
	record string
}

func (f *learnFlags) addUnits(flags *pflag.FlagSet) {
	flags.StringVar(&f.units, "units", "", "directory or ZIP archive with a course (default: the built-in course)")
}

func (f *learnFlags) addRecord(flags *pflag.FlagSet) {
	flags.StringVar(&f.record, "record", "", "file with your progress, or the file of your class (default ~/.local/state/nfqproxy/learn.json, with --units learn-NAME.json)")
}

// files returns the files of the course.
func (f *learnFlags) files() (fs.FS, error) {
	if f.units == "" {
		return units.Files(), nil
	}
	if strings.HasSuffix(f.units, ".zip") {
		z, err := zip.OpenReader(f.units) // until the program ends
		if err != nil {
			return nil, fmt.Errorf("cannot read the course %s: %w", f.units, err)
		}
		return z, nil
	}
	info, err := os.Stat(f.units)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", f.units)
	}
	return os.DirFS(f.units), err
}

// load reads the course, with values drawn from a seed.
func (f *learnFlags) load(seed uint64) (*learn.Course, error) {
	files, err := f.files()
	if err != nil {
		return nil, err
	}
	c, err := learn.Load(files, seed)
	if mistakes, ok := errors.AsType[learn.Mistakes](err); ok && f.units != "" {
		for _, m := range mistakes {
			m.File = filepath.Join(f.units, m.File)
		}
	}
	return c, err
}

// open reads the student's record, and the course as he has it.
func (f *learnFlags) open() (*learn.Course, *learn.Record, error) {
	path := f.record
	if path == "" {
		var err error
		if path, err = learn.DefaultRecord(); err != nil {
			return nil, nil, err
		}
		if f.units != "" { // units of several courses have the same IDs
			course, err := filepath.Abs(f.units)
			if err != nil {
				return nil, nil, err
			}
			path = strings.TrimSuffix(path, ".json") + "-" + filepath.Base(course) + ".json"
		}
	} else if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, nil, fmt.Errorf("--record %s: make its directory first (%w)", path, err)
	}
	r, err := learn.OpenRecord(path)
	if err != nil {
		return nil, nil, err
	}
	if r.OwnCourse && f.units == "" {
		f.units = filepath.Join(filepath.Dir(path), learn.CourseFile)
		if _, err := os.Stat(f.units); err != nil {
			return nil, nil, fmt.Errorf("%s is for your teacher's own course: put the course's file %s into the same directory, or give the course with --units (%w)", path, learn.CourseFile, err)
		}
	}
	c, err := f.load(r.Seed)
	return c, r, err
}

func newLearnCommand() *cobra.Command {
	var f learnFlags
	var plain bool
	var page string
	cmd := &cobra.Command{
		Use:   "learn [UNIT]",
		Short: "Take a course on Services, with tasks checked by real packets",
		Long: `Take a course on Kubernetes Services in labs on this machine, without root. Each unit has
texts, tasks and a shell in a lab. A step turns green when its task is done: the kernel's
state and the packets that flow prove it. Progress is saved.

Without UNIT, the course continues where you left it. Commands in the shell of a lab, and
in any other terminal of yours: answer, hint, check, next, text, solution, reset, again,
start, quit.`,
		Example: `  nfqproxy learn
  nfqproxy learn 2.1 --plain
  nfqproxy learn hint`,
		Args: atMost(1, "one unit"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, r, err := f.open()
			if err != nil {
				return err
			}
			o := session.Options{Course: c, Record: r, Page: page, Stderr: cmd.ErrOrStderr()}
			if o.Unit, err = firstUnit(c, r, args); err != nil {
				return err
			}
			o.Front = screen.Front(screen.Options{Plain: plain, Stdin: os.Stdin, Stdout: cmd.OutOrStdout(), Terminal: os.Stdout})
			return exitWith(session.Run(o))
		},
	}
	f.addUnits(cmd.Flags())
	f.addRecord(cmd.Flags())
	cmd.Flags().BoolVar(&plain, "plain", false, "print plain lines of text, for screen readers, or to work in another terminal")
	cmd.Flags().StringVar(&page, "page", "", "loopback address and port of the web page (default "+lab.DefaultPage+" or, if it is in use, any port)")
	cmd.AddCommand(newLearnListCommand(), newLearnShellCommand(), newLearnBookCommand(),
		newLearnNewCommand(), newLearnSchemaCommand(), newLearnLintCommand(), newLearnTestCommand(), newLearnClassCommand(), newLearnGradeCommand())
	for _, c := range studentCommands {
		cmd.AddCommand(newStudentCommand(c.use, c.short))
	}
	return cmd
}

// firstUnit is the unit to begin with.
func firstUnit(c *learn.Course, r *learn.Record, args []string) (string, error) {
	if len(args) > 0 {
		u, err := c.Unit(args[0])
		if err != nil {
			return "", err
		}
		return u.ID, nil
	}
	if next := r.Next(c); next != nil {
		return next.ID, nil
	}
	return "", errors.New("all units are finished; to take one again, give its number")
}

// studentCommands are the commands for a running course.
var studentCommands = []struct{ use, short string }{
	{"answer TEXT...", "Answer the question of the step"},
	{"hint", "Show another hint"},
	{"check", "Check the task now, and show what is missing"},
	{"next", "Go on, after a text to read or at the end of a unit"},
	{"text", "Show the step again"},
	{"solution", "Show the solution of the step"},
	{"reset", "Start the unit over, in a new lab"},
	{"again", "Start the unit over with different values, if it has any"},
	{"start UNIT", "Start a unit, or continue it"},
	{"quit", "End the course; progress is remembered"},
}

func newStudentCommand(use, short string) *cobra.Command {
	name, argument, _ := strings.Cut(use, " ")
	cmd := &cobra.Command{
		Use: use, Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if argument == "" {
				return noArgs(cmd, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := session.Send(labapi.LessonCommand{Command: name, Argument: strings.Join(args, " ")})
			if err != nil {
				return err
			}
			return printText(cmd.OutOrStdout(), text)
		},
	}
	return cmd
}

func printText(w io.Writer, text string) error {
	if text == "" {
		return nil
	}
	_, err := fmt.Fprintln(w, strings.TrimRight(text, "\n"))
	return err
}

func newLearnListCommand() *cobra.Command {
	var f learnFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the units and your progress",
		Long:  "List the units and your progress, for the running course or the one that the flags select.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f == (learnFlags{}) {
				if text, err := session.Send(labapi.LessonCommand{Command: "list"}); err == nil {
					return printText(cmd.OutOrStdout(), text)
				}
			}
			c, r, err := f.open()
			if err != nil {
				return err
			}
			return printText(cmd.OutOrStdout(), learn.ListText(learn.List(c, r)))
		},
	}
	f.addUnits(cmd.Flags())
	f.addRecord(cmd.Flags())
	return cmd
}

func newLearnShellCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "shell [HOST]",
		Short: "Open a shell in the unit's lab",
		Long:  "Open a shell in the lab of the current unit: on a pod, a node or a client. The default\nis the host that the unit names.",
		Args:  atMost(1, "one host"),
		RunE: func(_ *cobra.Command, args []string) error {
			return exitWith(session.Enter(strings.Join(args, "")))
		},
	}
}

func newLearnLintCommand() *cobra.Command {
	var f learnFlags
	cmd := &cobra.Command{
		Use:   "lint [DIR]",
		Short: "Check the files of a course",
		Long: `Check the files of a course. Each mistake is one line: the file, the line in it, the
field, and what to write instead.`,
		Example: "  nfqproxy learn lint my-course",
		Args:    atMost(1, "one directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			const seeds = 10
			if len(args) > 0 {
				f.units = args[0]
			}
			var c *learn.Course
			for seed := range uint64(seeds) {
				var err error
				if c, err = f.load(seed); err != nil {
					return err
				}
			}
			var ids []string
			for _, u := range c.Units() {
				ids = append(ids, u.ID)
			}
			return printText(cmd.OutOrStdout(), fmt.Sprintf("valid, with %d seeds each: %s", seeds, strings.Join(ids, ", ")))
		},
	}
	f.addUnits(cmd.Flags())
	return cmd
}

func newLearnTestCommand() *cobra.Command {
	var f learnFlags
	p := proof{context: context.Background()}
	cmd := &cobra.Command{
		Use:   "test [UNIT...]",
		Short: "Type the solutions of units into their labs, and check that they complete the steps",
		Long: `Test units, each in a new lab and on a real terminal. No step may be complete before its
solution is typed; each wrong answer must be rejected, with its reason; the solution of
each step must complete it.`,
		Example: `  nfqproxy learn test
  nfqproxy learn test --units my-course 1.1 --seeds 10`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.load(0)
			if err != nil {
				return err
			}
			p.course, p.flags, p.stdout, p.stderr = c, &f, cmd.OutOrStdout(), cmd.ErrOrStderr()
			if cmd.Flags().Changed("seed") {
				return p.one(args)
			}
			return p.all(args)
		},
	}
	f.addUnits(cmd.Flags())
	cmd.Flags().IntVar(&p.seeds, "seeds", 1, "number of seeds; a unit without variables and variants has only one")
	cmd.Flags().Uint64Var(&p.seed, "seed", 0, "test one unit with this seed")
	cmd.Flags().IntVar(&p.parallel, "parallel", 2, "number of labs at the same time")
	return cmd
}
