package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nfqproxy/nfqproxy/control/exitcode"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
	"github.com/nfqproxy/nfqproxy/deploy/learn/session"
)

func newLearnNewCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "new DIR",
		Short:   "Write the files of a unit to start from",
		Example: "  nfqproxy learn new my-course/1-services/1-first",
		Args:    exactly(1, "one directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := learn.New(args[0])
			if err != nil {
				return err
			}
			return printText(cmd.OutOrStdout(), strings.Join(files, "\n"))
		},
	}
}

func newLearnSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of unit.yaml, for editors",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(learn.Schema)
			return err
		},
	}
}

func newLearnBookCommand() *cobra.Command {
	var f learnFlags
	var output string
	var o learn.BookOptions
	var seed uint64
	cmd := &cobra.Command{
		Use:   "book",
		Short: "Print the course as one document",
		Example: `  nfqproxy learn book > course.html
  nfqproxy learn book -o markdown --solutions > teacher.md`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.HTML = output == "html"
			c, err := f.load(seed)
			if err != nil {
				return err
			}
			return learn.WriteBook(cmd.OutOrStdout(), c, o)
		},
	}
	f.addUnits(cmd.Flags())
	oneOf(cmd, &output, "output", "o", "", "html", "markdown")
	cmd.Flags().BoolVar(&o.Solutions, "solutions", false, "include hints, solutions and wrong answers, for teachers")
	cmd.Flags().Uint64Var(&seed, "seed", 0, "seed of the values to print, where students have different ones")
	return cmd
}

func newLearnClassCommand() *cobra.Command {
	var f learnFlags
	var students string
	var seed uint64
	var wanted []string
	cmd := &cobra.Command{
		Use:   "class --students FILE DIR",
		Short: "Write a file for each student of a class, each with different tasks",
		Long: `Write a file for each student of a class. Students take the course with this file and hand
it in: it contains their progress. No server is needed.

The list of students is CSV, with names in the first column, or an export of Moodle or
Canvas. With --units, each student also gets course.zip, to keep beside the file.

Keep the seed that is printed: "learn grade --seed" uses it.`,
		Example: `  nfqproxy learn class --students list.csv class/
  nfqproxy learn class --students list.csv --units my-course class/
  nfqproxy learn --record class/ada.json
  nfqproxy learn grade class/ > grades.csv`,
		Args: exactly(1, "one directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if students == "" {
				return errors.New("--students is required: a CSV file with a name in the first column")
			}
			all, err := readStudents(students)
			if err != nil {
				return err
			}
			c, err := f.load(0)
			if err != nil {
				return err
			}
			var ids []string
			for _, name := range wanted {
				u, err := c.Unit(name)
				if err != nil {
					return err
				}
				ids = append(ids, u.ID)
			}
			if seed == 0 {
				seed = randomSeed()
			}
			class := learn.Class{Students: all, Units: ids, Seed: seed}
			if f.units != "" {
				class.Own = c
				if class.Files, err = f.files(); err != nil {
					return err
				}
			}
			files, err := learn.WriteClass(args[0], class)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n\nstudents: %d, seed: %d\n", strings.Join(files, "\n"), len(all), seed)
			return err
		},
	}
	f.addUnits(cmd.Flags())
	cmd.Flags().StringVar(&students, "students", "", "CSV file with the names of the students in its first column")
	cmd.Flags().StringSliceVar(&wanted, "unit", nil, "units of the class (default: all)")
	cmd.Flags().Uint64Var(&seed, "seed", 0, "seed of the class (default: a random one)")
	return cmd
}

// readStudents reads a list of students.
func readStudents(file string) ([]learn.Student, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return learn.ParseStudents(file, text)
}

// randomSeed is a seed that JSON has exactly, and not 0.
func randomSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])>>11 | 1
}

func newLearnGradeCommand() *cobra.Command {
	var f learnFlags
	var seed uint64
	var output, students string
	var o learn.Gradebook
	cmd := &cobra.Command{
		Use:   "grade DIR",
		Short: "Print the results of a class as CSV, also for Moodle and Canvas",
		Long: `Print the results in the files of a class as CSV: for each student and unit the state,
times, answers, hints and solutions. A file that was edited, copied or made without doing
the tasks is marked with a fault, which names the first event that does not fit. A notice
is something to ask the student about.

For Moodle and Canvas, a grade is the percentage of tasks that the student did without
seeing the solution. A file with a fault gets no grade; the reason is on standard error.`,
		Example: `  nfqproxy learn grade class/ --seed 12345 > grades.csv
  nfqproxy learn grade class/ --seed 12345 --students list.csv -o moodle > moodle.csv`,
		Args: exactly(1, "one directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output == "moodle" && students == "" {
				return errors.New("-o moodle requires --students, the list of the class: Moodle finds users by their email addresses, ID numbers or usernames")
			}
			if file := filepath.Join(args[0], learn.CourseFile); f.units == "" {
				if _, err := os.Stat(file); err == nil {
					f.units = file
				}
			}
			c, err := f.load(0)
			if err != nil {
				return err
			}
			if students != "" {
				if o.Students, err = readStudents(students); err != nil {
					return err
				}
			}
			all, err := learn.ReadGrades(args[0], c, seed, time.Now())
			if err != nil {
				return err
			}
			for _, g := range all {
				if g.OwnCourse && f.units == "" {
					return fmt.Errorf("%s is for your own course: give it with --units", g.File)
				}
			}
			if output == "csv" {
				return learn.WriteGrades(cmd.OutOrStdout(), all)
			}
			o.Canvas = output == "canvas"
			problems, err := learn.WriteGradebook(cmd.OutOrStdout(), c, all, o)
			for _, p := range problems {
				if _, err := fmt.Fprintln(cmd.ErrOrStderr(), p); err != nil {
					return err
				}
			}
			return err
		},
	}
	f.addUnits(cmd.Flags())
	cmd.Flags().Uint64Var(&seed, "seed", 0, "seed of the class: files with another seed are faulty (default: not compared)")
	oneOf(cmd, &output, "output", "o", "", "csv", "moodle", "canvas")
	oneOf(cmd, &o.By, "by", "", ": what each column of grades covers, for Moodle and Canvas", "chapter", "unit", "course")
	cmd.Flags().StringVar(&students, "students", "", "CSV file with the students, as for learn class, with their IDs in Moodle or Canvas")
	return cmd
}

// proof is the command "learn test".
type proof struct {
	context        context.Context
	course         *learn.Course
	flags          *learnFlags
	seeds          int
	seed           uint64
	parallel       int
	stdout, stderr io.Writer
}

// one proves one unit in this process.
func (p *proof) one(args []string) error {
	if len(args) != 1 {
		return errors.New("--seed requires one unit")
	}
	u, err := p.course.Unit(args[0])
	if err == nil {
		u, err = u.Draw(p.seed)
	}
	if err != nil {
		return err
	}
	return exitWith(session.RunProof(session.Options{Stderr: p.stderr}, u))
}

// all proves units, each with its seeds, in processes of their own.
func (p *proof) all(args []string) error {
	if p.seeds < 1 || p.parallel < 1 {
		return errors.New("--seeds and --parallel: want 1 or more")
	}
	units := p.course.Units()
	if len(args) > 0 {
		units = nil
		for _, name := range args {
			u, err := p.course.Unit(name)
			if err != nil {
				return err
			}
			units = append(units, u)
		}
	}
	var all errgroup.Group
	all.SetLimit(p.parallel)
	var mu sync.Mutex // guards the output
	failed, proofs := 0, 0
	for _, u := range units {
		seeds := p.seeds
		if !u.Differs() {
			seeds = 1
		}
		for seed := range seeds {
			proofs++
			all.Go(func() error {
				began := time.Now()
				output, err := p.child(u, uint64(seed))
				mu.Lock()
				defer mu.Unlock()
				result := "ok"
				if err != nil {
					failed++
					result = "FAILED"
				}
				if _, err := fmt.Fprintf(p.stdout, "%-6s  %-5s seed %d  %4.1f s  %s\n", result, u.ID, seed, time.Since(began).Seconds(), u.Title); err != nil {
					return err
				}
				_, err = p.stdout.Write(output)
				return err
			})
		}
	}
	if err := all.Wait(); err != nil {
		return err
	}
	if failed > 0 {
		return exitcode.Negative(fmt.Errorf("%d of %d tests failed", failed, proofs))
	}
	return nil
}

// child proves a unit with a seed in a process of its own, and returns its output.
func (p *proof) child(u *learn.Unit, seed uint64) ([]byte, error) {
	args := []string{"learn", "test", "--seed", strconv.FormatUint(seed, 10), u.ID}
	if p.flags.units != "" {
		args = append(args, "--units", p.flags.units)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(p.context, self, args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err = cmd.Run()
	return output.Bytes(), err
}
