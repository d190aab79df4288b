package stepper_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/stepper"
)

// session is one on a made-up cluster, whose second flow (of two candidates and six steps)
// is the one that comes.
type session struct {
	cluster *observetest.Cluster
	holder  *observetest.Fake
	stepper.Session
	screen, messages bytes.Buffer
}

func newSession(lines ...string) *session {
	s := &session{cluster: observetest.NewCluster()}
	s.holder = s.cluster.Holder().(*observetest.Fake)
	typed := make(chan string, len(lines))
	for _, l := range lines {
		typed <- l
	}
	close(typed)
	s.Session = stepper.Session{
		Observer: s.cluster, Query: observe.HoldQuery{Flow: observe.HoldFilter{Service: "web", Port: "80"}, Seconds: 5},
		Lines: typed, Screen: stepper.Screen{W: &s.screen, Messages: &s.messages},
	}
	return s
}

// catch gives the hold its flow.
func (s *session) catch(t *testing.T) {
	go s.holder.CatchNext(t.Context(), *s.cluster.Records()[1])
}

// expire ends the hold as its time does.
func (s *session) expire() { s.holder.Expire("node-a-1") }

// outcome is how the hold ended.
func (s *session) outcome(t *testing.T) *observe.Hold {
	t.Helper()
	holds, err := s.holder.Holds(t.Context())
	if err != nil || len(holds) != 1 {
		t.Fatalf("%v, %d holds", err, len(holds))
	}
	return &holds[0]
}

// TestCommands: what each does to the hold.
func TestCommands(t *testing.T) {
	tests := []struct {
		name    string
		lines   []string
		outcome string
		step    int
		to      string
		message string
	}{
		{name: "no line is typed", outcome: "released", to: "10.244.2.2:8080"},
		{name: "steps, then nothing", lines: []string{"n", "", "n", "b"}, outcome: "released", step: 2, to: "10.244.2.2:8080"},
		{name: "all steps", lines: []string{"n", "n", "n", "n", "n", "n"}, outcome: "released", step: 6, to: "10.244.2.2:8080"},
		{name: "chosen by number", lines: []string{"c 1", "g"}, outcome: "chosen", to: "10.244.1.2:8080"},
		{name: "chosen by address", lines: []string{" c  10.244.1.2:8080 ", "q", "never read"}, outcome: "chosen", to: "10.244.1.2:8080"},
		{name: "dropped", lines: []string{"n", "d"}, outcome: "dropped", step: 1, to: "10.244.2.2:8080"},
		{name: "no such command", lines: []string{"x", "n 2"}, outcome: "released", to: "10.244.2.2:8080",
			message: "\"x\": want " + stepper.Help + "\n\"n 2\": want " + stepper.Help + "\n"},
		{name: "no such candidate", lines: []string{"c", "c 0", "c 3", "c 1 2"}, outcome: "released", to: "10.244.2.2:8080",
			message: "\"c\": want c and a number from 1 to 2\n\"c 0\": want c and a number from 1 to 2\n" +
				"\"c 3\": want c and a number from 1 to 2\n\"c 1 2\": want c and a number from 1 to 2\n"},
		{name: "no way back", lines: []string{"b"}, outcome: "released", to: "10.244.2.2:8080",
			message: "it is at the first step: there is no way back\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSession(tt.lines...)
			s.catch(t)
			if err := s.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			h := s.outcome(t)
			if h.Outcome != tt.outcome || h.Step != tt.step || h.Record.Endpoint != tt.to {
				t.Errorf("%s after %d steps to %s; want %s after %d to %s", h.Outcome, h.Step, h.Record.Endpoint, tt.outcome, tt.step, tt.to)
			}
			if chosen := strings.Contains(s.screen.String(), "c 1  10.244.1.2:8080  <- chosen"); chosen != (tt.outcome == "chosen") {
				t.Errorf("the choice shown: %v\n%s", chosen, &s.screen)
			}
			if got := s.messages.String(); got != tt.message {
				t.Errorf("messages %q, want %q", got, tt.message)
			}
			became := "State: established 340µs after the decision: traffic in both directions.\nDetails: nfqproxy flows f00002-node-a\n"
			if shown := strings.HasSuffix(s.screen.String(), became); shown != (tt.outcome != "dropped") {
				t.Errorf("its later state shown: %v\n%s", shown, &s.screen)
			}
		})
	}
}

// TestNoneComes: that no flow came is an error.
func TestNoneComes(t *testing.T) {
	s := newSession()
	s.Screen.W = onWrite{&s.screen, s.expire} // as soon as it is waited for
	err := s.Run(t.Context())
	if want := "no flow to service web, to port 80 in 5 seconds"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// onWrite does something with each write.
type onWrite struct {
	to *bytes.Buffer
	do func()
}

func (w onWrite) Write(b []byte) (int, error) {
	w.do()
	return w.to.Write(b)
}

// TestExpires: a user who types nothing sees how it ends.
func TestExpires(t *testing.T) {
	s := newSession()
	s.Lines = make(chan string)
	s.catch(t)
	writes := 0
	s.Screen.W = onWrite{&s.screen, func() {
		if writes++; writes == 2 {
			s.expire()
		}
	}}
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := "released as decided: timeout"; !strings.Contains(s.screen.String(), want) {
		t.Errorf("%s\nhas no %q", &s.screen, want)
	}
}

// TestInterrupted: the flow does not wait for one who has gone.
func TestInterrupted(t *testing.T) {
	for _, after := range []int{1, 2} { // waiting, holding
		s := newSession()
		s.Lines = make(chan string)
		if after == 2 {
			s.catch(t)
		}
		ctx, interrupt := context.WithCancel(t.Context())
		writes := 0
		s.Screen.W = onWrite{&s.screen, func() {
			if writes++; writes == after {
				interrupt()
			}
		}}
		if err := s.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if h := s.outcome(t); h.Outcome != "cancelled" {
			t.Errorf("after %d: outcome %s, want cancelled", after, h.Outcome)
		}
		interrupt()
	}
}

// TestUnreadable: where nothing can be shown the flow is released.
func TestUnreadable(t *testing.T) {
	s := newSession()
	s.catch(t)
	s.Screen.W = unreadable{}
	if err := s.Run(t.Context()); err == nil {
		t.Error("no error")
	}
	if h := s.outcome(t); h.Outcome != "cancelled" {
		t.Errorf("outcome %s, want cancelled", h.Outcome)
	}
}

type unreadable struct{}

func (unreadable) Write([]byte) (int, error) { return 0, context.DeadlineExceeded }

// noHolds is an observer that cannot hold.
type noHolds struct{ *observetest.Cluster }

func (noHolds) Holder() observe.Holder { return nil }

func TestNoHolds(t *testing.T) {
	s := newSession()
	s.Observer = noHolds{s.cluster}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "holding flows is not available") {
		t.Errorf("error %v", err)
	}
}

// TestInPlace: on a terminal a step takes the place of the one before; what was typed is
// counted, and no line wraps. A mistake leaves what there is.
func TestInPlace(t *testing.T) {
	s := newSession()
	typed := make(chan string)
	s.Lines = typed
	go func() {
		for _, l := range []string{"n", "x", "n", "d"} {
			typed <- l
		}
	}()
	s.catch(t)
	s.Screen.Prompt, s.Screen.Width, s.Screen.Messages = true, func() int { return 60 }, &s.screen
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := s.screen.String()
	for line := range strings.SplitSeq(out[strings.Index(out, "\n")+1:strings.LastIndex(out, "The flow")], "\n") {
		if n := len([]rune(strings.TrimPrefix(line, "\x1b[16F\x1b[J"))); n > 60 && !strings.HasPrefix(line, `> "x"`) {
			t.Errorf("a line of %d columns: %q", n, line)
		}
	}
	// A block has 15 line ends, and what is typed one more; after the mistake it is begun anew.
	if got := strings.Count(out, "\x1b[16F\x1b[J"); got != 1 || strings.Count(out, "\x1b[") != 2 {
		t.Errorf("%d times in place, want 1: %q", got, out)
	}
}

// TestRejected: a flow without steps or candidates can be shown.
func TestRejected(t *testing.T) {
	s := newSession("c 1")
	go func() {
		r := *s.cluster.Records()[3]
		r.Steps = nil
		s.holder.CatchNext(t.Context(), r)
	}()
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.screen.String(), "(no steps)") || !strings.Contains(s.messages.String(), "no candidates") {
		t.Errorf("%s\n%s", &s.screen, &s.messages)
	}
}

// TestFateIsRequested: what happened before is looked for, and only of that flow.
func TestFateIsRequested(t *testing.T) {
	s := newSession()
	s.catch(t)
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := s.cluster.Records()[1]
	want := observe.FlowQuery{Follow: true, Source: r.Source, Destination: r.Destination, Protocol: r.Protocol, Since: r.Time.Format(time.RFC3339Nano)}
	if q := s.cluster.Queries(); len(q) != 1 || q[0] != want {
		t.Errorf("query %+v, want %+v", q, want)
	}
}
