package learn

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
	"github.com/nfqproxy/nfqproxy/deploy/learn/units"
)

// student is a student of a class: his file, and the course as he has it.
func student(t *testing.T) (file string, c *learn.Course) {
	t.Helper()
	netnstest.Require(t)
	files, err := learn.WriteClass(t.TempDir(), learn.Class{Students: []learn.Student{{Name: "Ada"}}, Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	r, err := learn.OpenRecord(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if c, err = learn.Load(units.Files(), r.Seed); err != nil {
		t.Fatal(err)
	}
	return files[0], c
}

// typeLine types a line into the shell of the screen, and waits for the prompt after it.
func typeLine(p *e2etest.Pane, line string) {
	cursor := func(screen string) string {
		y, err := strconv.Atoi(strings.TrimSpace(p.Tmux("display-message", "-p", "#{cursor_y}")))
		lines := strings.Split(screen, "\n")
		if err != nil || y >= len(lines) {
			return ""
		}
		return strings.TrimRight(lines[y], " ")
	}
	prompt := func(screen string) bool { return strings.HasSuffix(cursor(screen), ":unit#") }
	p.Awaits("a prompt", prompt)
	line = strings.TrimRight(line, "\n ")
	p.Press("-l", line)
	p.Awaits("the line "+line, func(screen string) bool { return strings.HasSuffix(cursor(screen), line[max(0, len(line)-5):]) })
	p.Press("Enter")
	p.Awaits("the end of "+line, prompt)
}

// inFrontEnd are the units of the first chapter that a front end leads through. TestUnits proves the whole chapter.
func inFrontEnd(c *learn.Course) []*learn.Unit {
	all := c.Chapters[0].Units
	return all[:netnstest.Cases(len(all), 2)]
}

// TestScreen goes through a chapter on the full screen, by its solutions.
func TestScreen(t *testing.T) {
	file, c := student(t)
	chapter := inFrontEnd(c)
	p := e2etest.NewPane(t, nil, nil, "200", "50", "learn", "--record", file)
	for i, u := range chapter {
		requireProgramsOf(t, u)
		for n, step := range u.Steps {
			p.Sees(fmt.Sprintf("%s %s (step %d of %d)", u.ID, u.Title, n+1, len(u.Steps)), step.Title)
			if step.Read() {
				p.Press("F5")
				continue
			}
			for line := range strings.Lines(step.Solution) {
				typeLine(p, line)
			}
		}
		p.Sees(u.ID+" "+u.Title, "The unit is finished.")
		if i < len(chapter)-1 {
			p.Press("F5")
		}
	}
	p.Press("F10")
	p.Sees("exit code 0")
	r, err := learn.OpenRecord(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range chapter {
		if r.Progress(u.ID).Finished.IsZero() {
			t.Errorf("unit %s is not finished in the record", u.ID)
		}
	}
	if i := r.Verify(); i >= 0 {
		t.Errorf("event %d of the record does not follow", i)
	}
}

// TestSmallScreen: the keys in 80x24.
func TestSmallScreen(t *testing.T) {
	file, _ := student(t)
	p := e2etest.NewPane(t, nil, nil, "80", "24", "learn", "2.1", "--record", file)
	p.Sees("2.1 ", "(step 1 of", "F10 quit", ":unit#")
	p.Press("F3")
	p.Sees("Hint 1: ")
	p.Press("F2") // the whole text, without the shell
	p.Awaits("no shell", func(screen string) bool { return !strings.Contains(screen, ":unit#") })
	p.Press("F2")
	p.Sees(":unit#")
	p.Press("sh -c 'echo $((5*5)); exec sleep 100'", "Enter")
	p.Sees("\n25\n") // a Ctrl-C before it runs might not end it
	p.Press("C-c")   // to the shell, not to the course
	p.Sees("^C")     // the terminal discards what was typed before
	typeLine(p, "echo $((6*7))")
	p.Sees("42")
	p.Press("exit", "Enter")
	p.Awaits("another shell", func(screen string) bool { return !strings.Contains(screen, "42") }) // the old one has a prompt, too
	typeLine(p, "echo a new shell $((6*8))")
	p.Sees("a new shell 48")
	p.Press("F10")
	p.Sees("exit code 0")
}

// TestResume: a course that is killed leaves no process, and goes on where it was.
func TestResume(t *testing.T) {
	file, c := student(t)
	i := slices.IndexFunc(c.Units(), func(u *learn.Unit) bool {
		first := u.Steps[0]
		return first.Question != nil && len(first.Checks) == 0 && first.Hold == nil && first.Question.Answer.Text() != ""
	})
	if i < 0 {
		t.Fatal("no unit begins with a question only")
	}
	u := c.Units()[i]
	requireProgramsOf(t, u)
	cmd := e2etest.Command("learn", u.ID, "--plain", "--record", file)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	await := func(text string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("the output ends without %q", text)
	}
	await(fmt.Sprintf("(step 1 of %d)", len(u.Steps)))
	fmt.Fprintln(in, "answer", u.Steps[0].Question.Answer.Text())
	await(fmt.Sprintf("(step 2 of %d)", len(u.Steps)))
	processes := descendants(t, cmd.Process.Pid)
	if len(processes) < 2 {
		t.Fatalf("%d processes", len(processes))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	e2etest.Eventually(t, e2etest.Timeout, "no process is left", func() bool {
		for _, pid := range processes {
			if unix.Kill(pid, 0) == nil && !zombie(pid) {
				return false
			}
		}
		return true
	})
	again := e2etest.Command("learn", u.ID, "--plain", "--record", file)
	again.Stdin = strings.NewReader("quit\n")
	text, err := again.CombinedOutput()
	if err != nil || !strings.Contains(string(text), fmt.Sprintf("%s %s (step 2 of %d)", u.ID, u.Title, len(u.Steps))) {
		t.Errorf("%v\n%s", err, text)
	}
}

// descendants are the processes below one.
func descendants(t *testing.T, pid int) (all []int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range tasks {
		text, _ := os.ReadFile(file) // of a thread that may have ended
		for _, field := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			all = append(append(all, child), descendants(t, child)...)
		}
	}
	return all
}

func zombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(text), ") Z ")
}
