package labapi

import (
	"context"
	"io"
)

// Lesson is the state of a course that a student takes in a lab.
type Lesson struct {
	Generation uint64 `json:"generation"` // incremented with every change
	// Student is the student's name in a class; empty: there is none.
	Student string       `json:"student,omitempty"`
	Units   []LessonUnit `json:"units"`
	// Unit is the ID of the unit under way; empty: none.
	Unit    string       `json:"unit"`
	Title   string       `json:"title"`
	Minutes int          `json:"minutes"`
	Steps   []LessonStep `json:"steps"`
	// Step is the number of the step under way, from 0; after the last step it is the number of steps.
	Step int `json:"step"`
	// Text is the step's text in Markdown, HTML the same.
	Text string `json:"text"`
	HTML string `json:"html"`
	// Shell is the host of the lab in which the student's shell starts.
	Shell    string        `json:"shell"`
	Question string        `json:"question,omitempty"` // of the step; empty: none
	Answered bool          `json:"answered"`           // right
	Checks   []LessonCheck `json:"checks"`
	// Held are facts of the packet that is held until the question is answered.
	Held []string `json:"held,omitempty"`
	// Hints are the ones that were shown, and HintsLeft is the number of the others.
	Hints     []string `json:"hints"`
	HintsLeft int      `json:"hintsLeft"`
	Solution  string   `json:"solution,omitempty"` // where it was shown
	// Notice is the latest event, such as a judgement of an answer; Good is its kind.
	Notice string `json:"notice,omitempty"`
	Good   bool   `json:"good"`
	// Next is the ID of the unit to take next; empty: all are finished.
	Next string `json:"next,omitempty"`
}

// Finished reports whether all steps of the unit are passed.
func (l *Lesson) Finished() bool { return l.Unit != "" && l.Step == len(l.Steps) }

// LessonUnit is a unit of the course.
type LessonUnit struct {
	ID      string `json:"id"`
	Chapter string `json:"chapter"` // its title
	Title   string `json:"title"`
	Minutes int    `json:"minutes"`
	State   string `json:"state"` // new, begun or finished
}

// LessonStep is a step of a unit.
type LessonStep struct {
	Title  string `json:"title"`
	Passed bool   `json:"passed"`
	// Read: the step has no task; the command next ends it.
	Read bool `json:"read"`
}

// LessonCheck is a condition of the step.
type LessonCheck struct {
	Text   string `json:"text"`
	Met    bool   `json:"met"`
	Detail string `json:"detail,omitempty"` // why it is not met, where known
}

// LessonCommand is a command of a student.
type LessonCommand struct {
	// Command is answer, hint, check, next, text, solution, reset, again, list, start, shell or quit.
	Command string `json:"command"`
	// Argument is the answer, or the unit to start.
	Argument string `json:"argument,omitempty"`
}

// LessonReply is the report of a command.
type LessonReply struct {
	Text string `json:"text"`
}

// LessonCommands are all commands of a student.
var LessonCommands = []string{"answer", "hint", "check", "next", "text", "solution", "reset", "again", "list", "start", "shell", "quit"}

// Teacher teaches a course. It is safe for concurrent use.
type Teacher interface {
	// Lesson returns the state as soon as its generation is greater than the given one, or when the context ends; with 0
	// immediately.
	Lesson(ctx context.Context, after uint64) (*Lesson, error)
	// Do carries a command out, and returns what it has to report. An error of the command is an [*observe.Error].
	Do(ctx context.Context, c LessonCommand) (string, error)
}

// ShellOpener is a Teacher that opens shells for a front end elsewhere, as the web page.
type ShellOpener interface {
	// OpenShell starts a shell on a host of the unit's lab; an empty one is the unit's. It ends with the unit.
	OpenShell(host string, size TerminalSize) (Terminal, error)
}

// TerminalSize is the size of a terminal, in characters.
type TerminalSize struct {
	Columns int `json:"columns"`
	Rows    int `json:"rows"`
}

// Terminal is the terminal of a shell: Read returns what the shell prints, until its end, and Write types into it. Read and
// Write are for one goroutine each, the other methods are safe for concurrent use.
type Terminal interface {
	io.ReadWriter
	Resize(size TerminalSize) error
	// Close ends the shell. It may be called again.
	Close() error
}
