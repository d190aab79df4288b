package session_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
	"github.com/nfqproxy/nfqproxy/deploy/learn/session"
)

// prove proves a unit, with the times that a line and the end of a step may take.
func prove(t *testing.T, u *learn.Unit, line, end time.Duration) error {
	t.Helper()
	netnstest.Require(t)
	for _, variable := range e2etest.CommandEnv() { // of the shell
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	return session.ProveWithin(t.Context(), u, line, end)
}

// TestProof: a unit whose solutions work. Solutions have all that a person types: loops, files, editors' commands, jobs.
func TestProof(t *testing.T) {
	steps := `- name: read
` + ask + `  hints: [a, b, c]
  solution: |
    for i in 1 2
    do
      echo $i
    done
    cat > lines.txt <<'END'
    one
    two
    END
    answer $(grep -c . lines.txt)
- name: number
  question:
    text: Which share?
    answer: {number: {value: 0.5, within: 0.01}}
    wrong: [{answer: 100%, because: not all}]
` + task("answer 1/2") + `- name: output
  question:
    text: Which address?
    answer: {run: {on: outside, script: 'ip -4 -o address show eth0 | cut -d" " -f7'}}
    wrong: [{answer: 10.244.0.9, because: that is the pod}]
` + task("on outside ip address\nanswer ${right}") + `- name: lines
  question:
    text: Which two words?
    answer: {run: {script: "echo \"one's; exit\"; echo '$HOME'"}}
    wrong: [{answer: one, because: two}]
` + task("answer ${right}") + `- name: explain
  question:
    text: Which verdict?
    answer: {command: explain --objects lab.yaml --protocol tcp --source 10.244.0.9 --destination 10.96.0.80:80, field: verdict}
    wrong: [{answer: drop, because: no}]
` + task("answer ${right}") + holding + task("curl -s http://10.96.0.80/ > answer.txt &\nanswer ${right}\nwait") + `- name: checks
  checks:
  - run: {script: "test $(cat /proc/sys/kernel/hostname) = shell"}
  - flow: {service: default/web, from: outside, count: 2, state: answered}
` + task("for i in 1 2; do on outside curl -s http://172.20.0.2:30080/; done")
	for _, seed := range []uint64{1, 2} { // of different draws of the held packet
		u, err := courseOf(t, unit{"setup: echo ready > ready.txt\n", steps}).Units()[0].Draw(seed)
		if err != nil {
			t.Fatal(err)
		}
		if err := prove(t, u, e2etest.Timeout, e2etest.Timeout); err != nil {
			t.Error(err)
		}
	}
}

// TestNoProof: what a proof finds. It ends whatever the solution does, and leaves nothing behind.
func TestNoProof(t *testing.T) {
	const short = 300 * time.Millisecond
	question := func(answer, wrong string) string {
		return "- name: a\n  question:\n    text: What?\n    answer: " + answer + "\n    wrong: " + wrong + "\n"
	}
	never := "- name: a\n  checks: [{run: {script: 'test -e done.txt'}}]\n"
	for _, tc := range []struct {
		name, fields, steps string
		line, end           time.Duration
		want                string
	}{
		{"green before its solution", "", "- name: a\n  checks: [{run: {script: 'true'}}]\n" + task("true"), 0, 0, "step a: it ends before its solution is typed\nthe terminal ends:\n"},
		{"green before its solution, by a check that must not hold", "", "- name: a\n  checks: [{not: true, flow: {service: default/web}}]\n" + task("true"), 0, 0, "step a: it ends before its solution is typed\n"},
		{"a wrong answer that is right", "", question("{run: {script: echo 1}}", "[{answer: '1', because: x}]") + task("answer 1"), 0, 0, `step a: the wrong answer "1" is judged right`},
		{"a wrong answer with the reason of another", "", question("{is: a}", "[{answer: b, because: x}, {answer: B, because: y}]") + task("answer a"), 0, 0, `step a: the wrong answer "B" gets no reason: wrong: x`},
		{"a solution that does nothing", "", never + task("echo nothing"), 0, short, "step a: its solution does not end it:\n[to do] this succeeds: test -e done.txt\n"},
		{"a solution with a wrong answer", "", question("{is: a}", "[{answer: b, because: x}]") + task("answer c"), 0, short, "step a: its solution does not end it:\n[to do] What?  (answer ...)\nwrong: That is not right."},
		{"a command that never ends", "", never + task("sleep 98766; touch done.txt"), short, 0, "step a: sleep 98766; touch done.txt: the command does not end: context deadline exceeded\nthe terminal ends:\n"},
		{"a command that no signal of the terminal ends", "", never + task("nohup setsid -w sleep 98766"), short, 0, "step a: nohup setsid -w sleep 98766: the command does not end"},
		{"a line that goes on", "", never + task("cat <<'X'"), short, short, "step a: its solution does not end it:\n"},
		{"a solution that ends the shell", "", never + task("exit"), short, 0, "step a: exit: the command does not end"},
		{"a solution that begins anew", "", never + task("reset\ntouch done.txt"), short, short, "step a: "},
		{"a right answer that cannot be found", "", question("{run: {script: 'echo why; exit 4'}}", "[{answer: b, because: x}]") + task("answer c"), 0, 0, "step a: the wrong answer \"b\": the script with the right answer failed with exit code 4\nwhy\n"},
		{"a field that there is not", "", question("{command: explain --objects lab.yaml --protocol tcp --source 10.244.0.9 --destination 10.96.0.80:80, field: nothing}", "[{answer: b, because: x}]") + task("answer c"), 0, 0, "step a: the wrong answer \"b\": field nothing: nothing is not found"},
		{"a command that fails", "", question("{command: explain nothing, field: verdict}", "[{answer: b, because: x}]") + task("answer c"), 0, 0, "step a: the wrong answer \"b\": the command with the right answer failed with exit code 2\nnfqproxy: "},
		{"a setup that fails", "setup: echo why; false\n", "- name: a\n", 0, 0, "unit 1.1: its setup failed with exit code 1\nwhy"},
		{"a step after others", "", "- name: read\n" + ask + task("answer 2") + never + task("true"), 0, short, "step a: its solution does not end it"},
		{"missing programs", "requires: no-such-program\n", "- name: a\n", 0, 0, "unit 1.1 requires programs that this machine lacks: no-such-program"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			line, end := max(tc.line, time.Duration(0)), max(tc.end, time.Duration(0))
			if line == 0 {
				line = e2etest.Timeout
			}
			if end == 0 {
				end = e2etest.Timeout
			}
			err := prove(t, courseOf(t, unit{tc.fields, tc.steps}).Units()[0], line, end)
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) || strings.Contains(err.Error(), "%!") {
				t.Errorf("the error is\n%v, want\n%s", err, tc.want)
			}
			none(t, "98766")
		})
	}
}

// A proof that is interrupted ends.
func TestInterruptedProof(t *testing.T) {
	netnstest.Require(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := session.Prove(ctx, courseOf(t, unit{"", "- name: a\n"}).Units()[0]); err == nil {
		t.Error("no error")
	}
}
