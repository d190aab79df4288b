package cli

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/deploy/learn"
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
