// Package learn is the course of "nfqproxy learn": units that students work through in a lab, whose tasks are checked by
// the state of the kernel and by the packets that flow.
//
// A [Course] is a directory with a directory for each chapter, which has one for each unit. A unit is data: unit.yaml, a
// text in Markdown, a lab file. This package reads and validates courses, draws the values in which the units of two
// students differ, records what a student does, grades and prints. Package session runs units.
package learn

import (
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// The kinds of the files of a course.
const (
	UnitKind    = "Unit"
	ChapterKind = "Chapter"
)

// Course is an ordered list of chapters. It is read only.
type Course struct {
	Chapters []*Chapter
}

// Chapter is a part of a course.
type Chapter struct {
	Number int // from 1
	Title  string
	Units  []*Unit
}

// Unit is what a student works through in one sitting.
type Unit struct {
	ID    string `yaml:"-"` // "2.1": the numbers of chapter and unit
	Name  string `yaml:"-"` // of its directory, without the number
	Title string `yaml:"title"`
	// Minutes is how long a student needs, roughly.
	Minutes int `yaml:"minutes"`
	// Lab is the name of a file of the unit, or of a built-in lab.
	Lab string `yaml:"lab"`
	// Shell is the host of the lab in which the student's shell starts.
	Shell string `yaml:"shell"`
	// Requires are programs that the unit needs, besides those of a minimal system.
	Requires Texts `yaml:"requires"`
	// Variables differ between students; in all texts of the unit and in its files, ${name} is the value.
	Variables []Variable `yaml:"variables"`
	// Variants are different versions of the unit: one is drawn. Empty: there is one only.
	Variants []Variant `yaml:"variants"`
	// Setup is a script that runs in the student's shell before he begins; empty: none. Background is one that runs as
	// long as the unit does, as a client that sends requests.
	Setup      string  `yaml:"setup"`
	Background string  `yaml:"background"`
	Steps      []*Step `yaml:"steps"`

	// Seed is what the values were drawn from, and Variant the name of the variant; empty: there is one version only.
	Seed    uint64 `yaml:"-"`
	Variant string `yaml:"-"`

	dir              string            // as in messages
	templates, files map[string][]byte // of the directory by name, without and with values
}

// Variable is a value that is drawn: one of OneOf, or a number from From to To.
type Variable struct {
	Name  string `yaml:"name"`
	OneOf Texts  `yaml:"oneOf"`
	From  int    `yaml:"from"`
	To    int    `yaml:"to"`
}

// Variant is a version of a unit.
type Variant struct {
	Name string `yaml:"name"`
	// Values are of variables, which have no other value with this variant.
	Values map[string]string `yaml:"values"`
	// Setup runs after that of the unit. Solutions replace those of the steps, by the name of a step.
	Setup     string            `yaml:"setup"`
	Solutions map[string]string `yaml:"solutions"`
}

// Step is a text with a task. A step without a question and checks is to be read: the command next ends it.
type Step struct {
	Name  string `yaml:"name"`
	Title string `yaml:"-"` // a heading of the text
	Text  string `yaml:"-"` // Markdown, from that heading to the next one of the same level
	// Hold keeps the next packet of a flow in its queue until the student has answered the question.
	Hold *Hold `yaml:"hold"`
	// Question has to be answered; nil: none.
	Question *Question `yaml:"question"`
	// Checks have to be met all at once. A check sends requests only while those before it are met.
	Checks []*Check `yaml:"checks"`
	Hints  []string `yaml:"hints"` // each says more than the one before
	// Solution are lines for the student's shell.
	Solution string `yaml:"solution"`
}

// Read reports whether the step has no task: it is to be read.
func (s *Step) Read() bool { return s.Question == nil && len(s.Checks) == 0 }

// Hold is a flow of which the next packet is held.
type Hold struct {
	Flow observe.HoldFilter `yaml:"flow"`
	// Show are the fields of the held record that the student sees before he answers: paths as those of
	// "nfqproxy flows -o custom-columns".
	Show []string `yaml:"show"`
}

// Question is a question with one right answer.
type Question struct {
	Text   string        `yaml:"text"`
	Answer Answer        `yaml:"answer"`
	Wrong  []WrongAnswer `yaml:"wrong"`
}

// WrongAnswer is an answer that students give.
type WrongAnswer struct {
	Answer  string `yaml:"answer"`
	Because string `yaml:"because"` // what is wrong with it
}

// Answer is how an answer is judged. Exactly one of Is, Matches, Number, Run, Command and Held is set.
type Answer struct {
	// Is are the right answers. Upper and lower case and spaces around do not count.
	Is Texts `yaml:"is"`
	// Matches is a regular expression for the whole answer.
	Matches string `yaml:"matches"`
	// Number is the right number. A student may write 0.5, 50% or 1/2.
	Number *Number `yaml:"number"`
	// Run is a script whose output is the right answer.
	Run *Script `yaml:"run"`
	// Command is a command line of nfqproxy with output in JSON (explain, trace); the field of its output is the right
	// answer.
	Command string `yaml:"command"`
	// Field is a path in the output of Command, or of the held record; with Held.
	Field string `yaml:"field"`
	// Held: the right answer is in the record of the held flow.
	Held bool `yaml:"held"`
}

// Number is a number with a tolerance.
type Number struct{ Value, Within float64 }

// Script is a script of the shell.
type Script struct {
	On   string `yaml:"on"` // the host; empty: the unit's shell
	Text string `yaml:"script"`
}

// Check is a condition. Exactly one of its fields is set, and Not says that it must not hold.
type Check struct {
	Not bool `yaml:"not"`
	// Text is what the student reads about the check while it is not met; empty: it is made of the check.
	Text    string        `yaml:"text"`
	Flow    *FlowCheck    `yaml:"flow"`
	Request *RequestCheck `yaml:"request"`
	Entry   *EntryCheck   `yaml:"entry"`
	Rule    *RuleCheck    `yaml:"rule"`
	Route   *RouteCheck   `yaml:"route"`
	Object  *ObjectCheck  `yaml:"object"`
	Run     *RunCheck     `yaml:"run"`
}

// Sends reports whether the check sends packets of its own.
func (c *Check) Sends() bool { return c.Request != nil }

// FlowCheck is met by flows that were decided since the step began. Empty fields match all.
type FlowCheck struct {
	Service string `yaml:"service"` // [NAMESPACE/]NAME[:PORT]
	From    string `yaml:"from"`    // source: a host of the lab, an address or a prefix
	To      string `yaml:"to"`      // destination before translation: an address, a prefix or ADDRESS:PORT
	// Endpoint is the selected one: a pod, an address or ADDRESS:PORT.
	Endpoint string `yaml:"endpoint"`
	Node     string `yaml:"node"`     // that decided
	Protocol string `yaml:"protocol"` // tcp or udp
	// Verdict, Reason, State, Entry and MasqueradeReason are as in flow records.
	Verdict          string `yaml:"verdict"`
	Reason           string `yaml:"reason"`
	State            string `yaml:"state"`
	Entry            string `yaml:"entry"`
	MasqueradeReason string `yaml:"masqueradeReason"`
	Masquerade       *bool  `yaml:"masquerade"`
	Count            int    `yaml:"count"` // at least; 0: 1
}

// RequestCheck sends requests. It is met if all have the result.
type RequestCheck struct {
	From     string `yaml:"from"`
	To       string `yaml:"to"`
	Protocol string `yaml:"protocol"`
	Count    int    `yaml:"count"` // 0: 1
	// By are the pods, nodes or clients that may answer; empty: any.
	By Texts `yaml:"by"`
	// Client is the source address that the server sees: an address or a host of the lab; empty: any.
	Client string `yaml:"client"`
	// Error is the error of the request, as "connection refused"; empty: it is answered.
	Error string `yaml:"error"`
	// Timeout of each request; 0: two seconds.
	Timeout time.Duration `yaml:"timeout"`
}

// EntryCheck is met by an entry of a host's connection table. Empty fields match all.
type EntryCheck struct {
	On       string `yaml:"on"`
	Protocol string `yaml:"protocol"` // tcp, udp or icmp; empty: any
	// From and To are source and destination of the original direction, ReplyFrom and ReplyTo those of the replies:
	// an address or ADDRESS:PORT.
	From      string `yaml:"from"`
	To        string `yaml:"to"`
	ReplyFrom string `yaml:"replyFrom"`
	ReplyTo   string `yaml:"replyTo"`
	// State is the state of a TCP connection, as ESTABLISHED.
	State string `yaml:"state"`
	// Answered: packets of both directions were seen.
	Answered bool `yaml:"answered"`
}

// RuleCheck is met by a line of a host's rules: of "nft list ruleset", or of iptables-save and ip6tables-save.
type RuleCheck struct {
	On      string `yaml:"on"`
	Matches string `yaml:"matches"` // a regular expression
}

// RouteCheck is met if the host's route to an address has the next hop or the device.
type RouteCheck struct {
	On  string `yaml:"on"`
	To  string `yaml:"to"`
	Via string `yaml:"via"`
	Dev string `yaml:"dev"` // empty: any
}

// ObjectCheck is met by a Kubernetes object of the lab. A namespace that is empty is "default".
type ObjectCheck struct {
	Kind      string `yaml:"kind"`
	Namespace string `yaml:"namespace"`
	Name      string `yaml:"name"`
	// Has are values of fields, by their paths, as spec.ports[0].targetPort. A regular expression for the whole value.
	Has map[string]string `yaml:"has"`
}

// RunCheck is met if a script exits with 0 and its output contains a match.
type RunCheck struct {
	Script `yaml:",inline"`
	Output string `yaml:"output"` // a regular expression; empty: any
}
