package session_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
	"github.com/nfqproxy/nfqproxy/deploy/learn/session"
)

func TestMain(m *testing.M) { e2etest.Main(m, cli.Main) }

// labFile is the lab of all units: one node with two pods that serve, and a client outside.
const labFile = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: small}
clusterCIDRs: [10.244.0.0/16]
networks: [{cidr: 172.20.0.0/16, gateway: 172.20.0.1}, {cidr: 192.0.2.0/24, gateway: 192.0.2.1}]
nodes:
- {name: node-a, addresses: [172.20.0.2], podCIDRs: [10.244.0.0/24]}
pods:
- {name: shell, node: node-a, addresses: [10.244.0.9]}
- {name: web-a, node: node-a, labels: {app: web}, addresses: [10.244.0.11], ports: [{port: 80}]}
- {name: web-b, node: node-a, labels: {app: web}, addresses: [10.244.0.12], ports: [{port: 80}]}
clients:
- {name: outside, addresses: [192.0.2.10]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  clusterIP: 10.96.0.80
  ports:
  - {name: http, port: 80, nodePort: 30080}
  - {name: closed, port: 81, targetPort: 81}
---
apiVersion: v1
kind: Service
metadata: {name: none}
spec:
  selector: {app: none}
  clusterIP: 10.96.0.81
  ports: [{port: 80}]
`

// task is the end of a step with a task.
func task(solution string) string {
	return "  hints: [\"\\x60first\\x60\", second, third]\n  solution: |\n    " + strings.ReplaceAll(strings.TrimSpace(solution), "\n", "\n    ") + "\n"
}

// unit is the YAML of a unit: fields besides those that all have, and steps.
type unit struct{ fields, steps string }

// requireProgramsOf ends a test that needs a script's programs, if one is missing.
func requireProgramsOf(t testing.TB, script string) {
	t.Helper()
	for _, program := range []string{"curl", "ip", "ping"} {
		if strings.Contains(script, program+" -") {
			netnstest.RequireTool(t, program)
		}
	}
}

// courseOf is a course with these units.
func courseOf(t testing.TB, units ...unit) *learn.Course {
	t.Helper()
	for _, u := range units {
		requireProgramsOf(t, u.fields+u.steps)
	}
	files := fstest.MapFS{"1-chapter/chapter.yaml": {Data: []byte("apiVersion: nfqproxy.io/v1alpha1\nkind: Chapter\ntitle: Chapter\n")}}
	for i, u := range units {
		dir := fmt.Sprintf("1-chapter/%d-unit", i+1)
		text := ""
		for n := range strings.Count("\n"+u.steps, "\n- ") {
			text += fmt.Sprintf("# Step %d\n\nText %[1]d.\n\n", n+1)
		}
		files[dir+"/text.md"] = &fstest.MapFile{Data: []byte(text)}
		files[dir+"/lab.yaml"] = &fstest.MapFile{Data: []byte(labFile)}
		files[dir+"/data.txt"] = &fstest.MapFile{Data: []byte("a file of the unit\n")}
		files[dir+"/unit.yaml"] = &fstest.MapFile{Data: fmt.Appendf(nil, "apiVersion: nfqproxy.io/v1alpha1\nkind: Unit\ntitle: Unit %d\nminutes: 3\nlab: lab.yaml\nshell: shell\n%ssteps:\n%s", i+1, u.fields, u.steps)}
	}
	c, err := learn.Load(files, 1)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// room is a session of a test.
type room struct {
	*session.Session
	t      testing.TB
	record *learn.Record
}

// open makes a session for a course, with a record in a file.
func open(t *testing.T, c *learn.Course, record string) *room {
	t.Helper()
	netnstest.Require(t)
	for _, variable := range e2etest.CommandEnv() { // of the shells
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	if record == "" {
		record = filepath.Join(t.TempDir(), "learn.json")
	}
	r, err := learn.OpenRecord(record)
	if err != nil {
		t.Fatal(err)
	}
	s := session.New(c, r, nil)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, nil) }()
	t.Cleanup(func() {
		err := s.Close()
		stop()
		if err := errors.Join(err, <-served); err != nil {
			t.Errorf("the end of the session: %v", err)
		}
	})
	return &room{s, t, r}
}

// start is open that starts a unit.
func start(t *testing.T, c *learn.Course, id string) *room {
	t.Helper()
	s := open(t, c, "")
	s.do("start", id)
	return s
}

// do carries out a command that must succeed.
func (s *room) do(command, argument string) string {
	s.t.Helper()
	text, err := s.Do(s.t.Context(), labapi.LessonCommand{Command: command, Argument: argument})
	if err != nil {
		s.t.Fatalf("%s %s: %v", command, argument, err)
	}
	return text
}

// refused carries out a command that must fail, and returns its message.
func (s *room) refused(command, argument string) string {
	s.t.Helper()
	text, err := s.Do(s.t.Context(), labapi.LessonCommand{Command: command, Argument: argument})
	if err == nil {
		s.t.Fatalf("%s %s succeeds: %s", command, argument, text)
	}
	return err.Error()
}

// lesson is the state now.
func (s *room) lesson() *labapi.Lesson {
	s.t.Helper()
	l, err := s.Lesson(s.t.Context(), 0)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// awaits waits until the lesson is as wanted.
func (s *room) awaits(what string, is func(*labapi.Lesson) bool) *labapi.Lesson {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), e2etest.Timeout)
	defer cancel()
	for after := uint64(0); ; {
		l, err := s.Lesson(ctx, after)
		switch {
		case err != nil:
			s.t.Fatal(err)
		case is(l):
			return l
		case ctx.Err() != nil:
			s.t.Fatalf("waited for %s: %+v", what, l)
		}
		after = l.Generation
	}
}

// step waits until a step, counted from 0, is under way.
func (s *room) step(n int) *labapi.Lesson {
	s.t.Helper()
	return s.awaits(fmt.Sprintf("step %d", n), func(l *labapi.Lesson) bool { return l.Unit != "" && l.Step == n })
}

// kinds are the events of the record, as "began passed:a".
func (s *room) kinds() string {
	var all []string
	for _, e := range s.record.Events {
		kind := string(e.Kind)
		if e.Step != "" {
			kind += ":" + e.Step
		}
		all = append(all, kind)
	}
	return strings.Join(all, " ")
}
