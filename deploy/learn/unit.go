// Package learn is the course of "nfqproxy learn": units that students work through in a lab, whose tasks are checked by
// the state of the kernel and by the packets that flow.
//
// A [Course] is a directory with a directory for each chapter, which has one for each unit. A unit is data: unit.yaml, a
// text in Markdown, a lab file. This package reads and validates courses, draws the values in which the units of two
// students differ, records what a student does, grades and prints. Package session runs units.
package learn

import (
	"fmt"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/nearest"
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
	ID    string `json:"-"` // "2.1": the numbers of chapter and unit
	Name  string `json:"-"` // of its directory, without the number
	Title string `json:"title"`
	// Minutes is how long a student needs, roughly.
	Minutes int `json:"minutes"`
	// Lab is the name of a file of the unit, or of a built-in lab.
	Lab string `json:"lab"`
	// Shell is the host of the lab in which the student's shell starts.
	Shell string `json:"shell"`
	// Requires are programs that the unit needs, besides those of a minimal system.
	Requires Texts `json:"requires"`
	// Variables differ between students; in all texts of the unit and in its files, ${name} is the value.
	Variables []Variable `json:"variables"`
	// Variants are different versions of the unit: one is drawn. Empty: there is one only.
	Variants []Variant `json:"variants"`
	// Setup is a script that runs in the student's shell before he begins; empty: none. Background is one that runs as
	// long as the unit does, as a client that sends requests.
	Setup      string  `json:"setup"`
	Background string  `json:"background"`
	Steps      []*Step `json:"steps"`

	// Seed is what the values were drawn from, and Variant the name of the variant; empty: there is one version only.
	Seed    uint64 `json:"-"`
	Variant string `json:"-"`

	dir              string            // as in messages
	templates, files map[string][]byte // of the directory by name, without and with values
}

// Variable is a value that is drawn: one of OneOf, or a number from From to To.
type Variable struct {
	Name  string `json:"name"`
	OneOf Texts  `json:"oneOf"`
	From  int    `json:"from"`
	To    int    `json:"to"`
}

// Variant is a version of a unit.
type Variant struct {
	Name string `json:"name"`
	// Values are of variables, which have no other value with this variant.
	Values map[string]string `json:"values"`
	// Setup runs after that of the unit. Solutions replace those of the steps, by the name of a step.
	Setup     string            `json:"setup"`
	Solutions map[string]string `json:"solutions"`
}

// Step is a text with a task. A step without a question and checks is to be read: the command next ends it.
type Step struct {
	Name  string `json:"name"`
	Title string `json:"-"` // a heading of the text
	Text  string `json:"-"` // Markdown, from that heading to the next one of the same level
	// Hold keeps the next packet of a flow in its queue until the student has answered the question.
	Hold *Hold `json:"hold"`
	// Question has to be answered; nil: none.
	Question *Question `json:"question"`
	// Checks have to be met all at once. A check sends requests only while those before it are met.
	Checks []*Check `json:"checks"`
	Hints  []string `json:"hints"` // each says more than the one before
	// Solution are lines for the student's shell.
	Solution string `json:"solution"`
}

// Read reports whether the step has no task: it is to be read.
func (s *Step) Read() bool { return s.Question == nil && len(s.Checks) == 0 }

// Hold is a flow of which the next packet is held.
type Hold struct {
	Flow observe.HoldFilter `json:"flow"`
	// Show are the fields of the held record that the student sees before he answers: paths as those of
	// "nfqproxy flows -o custom-columns".
	Show []string `json:"show"`
}

// Question is a question with one right answer.
type Question struct {
	Text   string        `json:"text"`
	Answer Answer        `json:"answer"`
	Wrong  []WrongAnswer `json:"wrong"`
}

// WrongAnswer is an answer that students give.
type WrongAnswer struct {
	Answer  string `json:"answer"`
	Because string `json:"because"` // what is wrong with it
}

// Answer is how an answer is judged. Exactly one of Is, Matches, Number, Run, Command and Held is set.
type Answer struct {
	// Is are the right answers. Upper and lower case and spaces around do not count.
	Is Texts `json:"is"`
	// Matches is a regular expression for the whole answer.
	Matches string `json:"matches"`
	// Number is the right number. A student may write 0.5, 50% or 1/2.
	Number *Number `json:"number"`
	// Run is a script whose output is the right answer.
	Run *Script `json:"run"`
	// Command is a command line of nfqproxy with output in JSON (explain, trace); the field of its output is the right
	// answer.
	Command string `json:"command"`
	// Field is a path in the output of Command, or of the held record; with Held.
	Field string `json:"field"`
	// Held: the right answer is in the record of the held flow.
	Held bool `json:"held"`
}

// Number is a number with a tolerance.
type Number struct {
	Value  float64 `json:"value"`
	Within float64 `json:"within"`
}

// Script is a script of the shell.
type Script struct {
	On   string `json:"on"` // the host; empty: the unit's shell
	Text string `json:"script"`
}

// Check is a condition. Exactly one of its fields is set, and Not says that it must not hold.
type Check struct {
	Not bool `json:"not"`
	// Text is what the student reads about the check while it is not met; empty: it is made of the check.
	Text    string        `json:"text"`
	Flow    *FlowCheck    `json:"flow"`
	Request *RequestCheck `json:"request"`
	Entry   *EntryCheck   `json:"entry"`
	Rule    *RuleCheck    `json:"rule"`
	Route   *RouteCheck   `json:"route"`
	Object  *ObjectCheck  `json:"object"`
	Run     *RunCheck     `json:"run"`
}

// Sends reports whether the check sends packets of its own.
func (c *Check) Sends() bool { return c.Request != nil }

// FlowCheck is met by flows that were decided since the step began. Empty fields match all.
type FlowCheck struct {
	Service string `json:"service"` // [NAMESPACE/]NAME[:PORT]
	From    string `json:"from"`    // source: a host of the lab, an address or a prefix
	To      string `json:"to"`      // destination before translation: an address, a prefix or ADDRESS:PORT
	// Endpoint is the selected one: a pod, an address or ADDRESS:PORT.
	Endpoint string `json:"endpoint"`
	Node     string `json:"node"`     // that decided
	Protocol string `json:"protocol"` // tcp or udp
	// Verdict, Reason, State, Entry and MasqueradeReason are as in flow records.
	Verdict          string `json:"verdict"`
	Reason           string `json:"reason"`
	State            string `json:"state"`
	Entry            string `json:"entry"`
	MasqueradeReason string `json:"masqueradeReason"`
	Masquerade       *bool  `json:"masquerade"`
	Count            int    `json:"count"` // at least; 0: 1
}

// RequestCheck sends requests. It is met if all have the result.
type RequestCheck struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Protocol string `json:"protocol"`
	Count    int    `json:"count"` // 0: 1
	// By are the pods, nodes or clients that may answer; empty: any.
	By Texts `json:"by"`
	// Client is the source address that the server sees: an address or a host of the lab; empty: any.
	Client string `json:"client"`
	// Error is the error of the request, as "connection refused"; empty: it is answered.
	Error string `json:"error"`
	// Timeout of each request; 0: two seconds.
	Timeout time.Duration `json:"timeout"`
}

// EntryCheck is met by an entry of a host's connection table. Empty fields match all.
type EntryCheck struct {
	On       string `json:"on"`
	Protocol string `json:"protocol"` // tcp, udp or icmp; empty: any
	// From and To are source and destination of the original direction, ReplyFrom and ReplyTo those of the replies:
	// an address or ADDRESS:PORT.
	From      string `json:"from"`
	To        string `json:"to"`
	ReplyFrom string `json:"replyFrom"`
	ReplyTo   string `json:"replyTo"`
	// State is the state of a TCP connection, as ESTABLISHED.
	State string `json:"state"`
	// Answered: packets of both directions were seen.
	Answered bool `json:"answered"`
}

// RuleCheck is met by a line of a host's rules: of "nft list ruleset", or of iptables-save and ip6tables-save.
type RuleCheck struct {
	On      string `json:"on"`
	Matches string `json:"matches"` // a regular expression
}

// RouteCheck is met if the host's route to an address has the next hop or the device.
type RouteCheck struct {
	On  string `json:"on"`
	To  string `json:"to"`
	Via string `json:"via"`
	Dev string `json:"dev"` // empty: any
}

// ObjectCheck is met by a Kubernetes object of the lab. A namespace that is empty is "default".
type ObjectCheck struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Has are values of fields, by their paths, as spec.ports[0].targetPort. A regular expression for the whole value.
	Has map[string]string `json:"has"`
}

// RunCheck is met if a script exits with 0 and its output contains a match.
type RunCheck struct {
	Script `json:",inline"`
	Output string `json:"output"` // a regular expression; empty: any
}

// Unit finds a unit by its ID or name.
func (c *Course) Unit(name string) (*Unit, error) {
	var names []string
	for _, chapter := range c.Chapters {
		for _, u := range chapter.Units {
			if u.ID == name || u.Name == name {
				return u, nil
			}
			names = append(names, u.ID, u.Name)
		}
	}
	return nil, fmt.Errorf("no unit %q%s; \"nfqproxy learn list\" lists the units", name, nearest.Hint(name, names))
}

// Units are all units in order.
func (c *Course) Units() (all []*Unit) {
	for _, chapter := range c.Chapters {
		all = append(all, chapter.Units...)
	}
	return all
}

// Task is the step's task in a few words: the question, or what its checks want.
func (s *Step) Task() string {
	var parts []string
	if s.Question != nil {
		parts = append(parts, s.Question.Text)
	}
	for _, c := range s.Checks {
		parts = append(parts, c.String())
	}
	return strings.Join(parts, "\n")
}
