package session_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// shell is a shell of a student, on a terminal.
type shell struct {
	t        testing.TB
	terminal labapi.Terminal
	output   chan string // closed at the end of the shell
	rest     string      // what was read after the last prompt
}

// shell opens a shell on the unit's host. It is closed at the end of the test.
func (s *room) shell() *shell {
	s.t.Helper()
	terminal, err := s.OpenShell("", labapi.TerminalSize{Columns: 200, Rows: 24})
	if err != nil {
		s.t.Fatal(err)
	}
	sh := &shell{t: s.t, terminal: terminal, output: make(chan string, 1024)}
	go func() {
		defer close(sh.output)
		b := make([]byte, 4096)
		for {
			n, err := terminal.Read(b)
			sh.output <- string(b[:n])
			if err != nil {
				return
			}
		}
	}()
	s.t.Cleanup(sh.close)
	sh.read()
	return sh
}

func (sh *shell) close() { _ = sh.terminal.Close() }

// mark begins the prompt.
const mark = "\x1b]133;A\a"

// noise is what a shell on a terminal of xterm's kind writes besides text.
var noise = strings.NewReplacer("\r", "", "\x1b[?2004h", "", "\x1b[?2004l", "")

// read returns what is written up to the next prompt.
func (sh *shell) read() string {
	sh.t.Helper()
	late := time.After(e2etest.Timeout)
	for !strings.Contains(sh.rest, mark) {
		select {
		case more, ok := <-sh.output:
			if sh.rest += more; !ok {
				sh.t.Fatalf("the shell has ended: %s", sh.rest)
			}
		case <-late:
			sh.t.Fatalf("no prompt: %s", sh.rest)
		}
	}
	text, rest, _ := strings.Cut(sh.rest, mark)
	sh.rest = rest
	return noise.Replace(text)
}

// line types a line, and returns the prompt, the line and its output.
func (sh *shell) line(text string) string {
	sh.t.Helper()
	if _, err := sh.terminal.Write([]byte(text + "\n")); err != nil {
		sh.t.Fatal(err)
	}
	return sh.read()
}

var exitCode = regexp.MustCompile(`(?m)^exit=([0-9]+)$`)

// try runs a script in a new shell, and returns its exit code and output.
func (s *room) try(script string) (code int, output string) {
	s.t.Helper()
	requireProgramsOf(s.t, script)
	sh := s.shell()
	defer sh.close()
	output = sh.line(script)
	m := exitCode.FindStringSubmatch(sh.line("echo exit=$?"))
	if m == nil {
		s.t.Fatalf("%s: no exit code\n%s", script, output)
	}
	code, _ = strconv.Atoi(m[1]) // digits only
	return code, output
}

// run runs a script in the shell of the unit, on a terminal, as a student types it.
func (s *room) run(script string) {
	s.t.Helper()
	if code, output := s.try(script); code != 0 {
		s.t.Fatalf("%s: exit code %d\n%s", script, code, output)
	}
}

// TestShell: the commands that a student has in the shell, and what he sees there.
func TestShell(t *testing.T) {
	netnstest.RequireTool(t, "ip")
	c := courseOf(t, unit{"background: sleep 600\n", `- name: ask
  question:
    text: Which number?
    answer: {is: ["-5"]}
    wrong: [{answer: "--help", because: that is no number}]
` + task("answer -5") + "- name: read\n"})
	s := start(t, c, "1.1")
	sh := s.shell()
	for _, tc := range []struct{ line, want string }{
		{"pwd; ls", "/run/nfqproxy-learn/unit\ndata.txt  lab.yaml\n"},
		{"echo $NFQPROXY_LAB_HOST $HOSTNAME; cat data.txt", "shell shell\na file of the unit\n"},
		{"ip -4 -o address show eth0 | grep -o '10[.][0-9.]*/'", "10.244.0.9/\n"},
		{"on outside ip -4 -o address show eth0 | grep -o '192[.][0-9.]*/'", "192.0.2.10/\n"},
		{"on outside bash -c 'exit 7'; echo $?", "7\n"},
		{"on; echo $?", "on requires a host, as in: on HOST ip address\n2\n"},
		{"on nobody true", `no host "nobody" in this lab`},
		{"nfqproxy lab status | head -1", "lab small, up since"},
		{"nfqproxy lab status | grep Web", "Web page: http://"},
		{"text", "1.1 Unit 1 (step 1 of 2)\n\nStep 1\n\nText 1.\n\n[to do] Which number?  (answer ...)\n"},
		{"hint", "first\n"},
		{"answer --help", "wrong: that is no number\n"},
		{"answer", "nfqproxy: an answer is required, as in: answer 10.0.0.1\n"},
		{"nfqproxy learn answer 1 2  3", "wrong: That is not right.\n"},
		{"next; echo $?", "nfqproxy: this step has a task, and ends when it is done; \"hint\" helps\n2\n"},
		{"solution", "answer -5\n"},
		{"units", "1 Chapter\n  1.1  Unit 1  3 min  begun\n"},
		{"start 9.9", `nfqproxy: no unit "9.9"`},
		{"nfqproxy learn", "nfqproxy: a course is running already: \"nfqproxy learn quit\" ends it\n"},
		{"answer -5", "right: -5\ndone: Step 1\n"},
		{"next", "1.1 Unit 1\n\nThe unit is finished. All units are finished.\n"},
	} {
		_, got, _ := strings.Cut(sh.line(tc.line), "\n") // without what was typed
		if got != tc.want && !(!strings.HasSuffix(tc.want, "\n") && strings.Contains(got, tc.want)) {
			t.Errorf("%s prints\n%q, want\n%q", tc.line, got, tc.want)
		}
	}
	if want := "began hinted:ask answered:ask answered:ask solved:ask answered:ask passed:ask passed:read finished"; s.kinds() != want {
		t.Errorf("the record is %s, want %s", s.kinds(), want)
	}
	if prompt := sh.line("true"); !strings.Contains(prompt, "shell:unit# ") {
		t.Errorf("the prompt is %q", prompt)
	}
	sh.line("on outside") // a shell in it
	if got := sh.line("echo $NFQPROXY_LAB_HOST"); !strings.Contains(got, "outside:unit# echo") || !strings.HasSuffix(got, "\noutside\n") {
		t.Errorf("a shell on another host: %q", got)
	}
}

// A shell in which the student types nothing ends with the unit; there is none without a unit.
func TestShellEnds(t *testing.T) {
	s := start(t, courseOf(t, unit{"", "- name: read\n"}), "1.1")
	sh := s.shell()
	sh.line("trap '' HUP") // also one that does not want to
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	late := time.After(e2etest.Timeout)
	for ended := false; !ended; {
		select {
		case _, more := <-sh.output:
			ended = !more
		case <-late:
			t.Fatal("the shell goes on")
		}
	}
	if _, err := s.OpenShell("", labapi.TerminalSize{Columns: 80, Rows: 24}); err == nil || err.Error() != "no unit is running" {
		t.Errorf("a shell without a unit: %v", err)
	}
}
