package apiserver

import (
	"bufio"
	"errors"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

// viewCommand is a command that a person runs beside the API server. The end of the test ends it.
type viewCommand struct {
	*viewed
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string // of its output and its messages; closed at their end
	last  string      // of the lines that were read
}

// begin starts a command about the cluster.
func (v *viewed) begin(args ...string) *viewCommand {
	v.Helper()
	c := &viewCommand{viewed: v, cmd: e2etest.Command(v.ofCluster(args)...), lines: make(chan string, 1000)}
	out, err1 := c.cmd.StdoutPipe()
	c.cmd.Stderr = c.cmd.Stdout
	in, err2 := c.cmd.StdinPipe()
	c.stdin = in
	if err := errors.Join(err1, err2); err != nil {
		v.Fatal(err)
	}
	if err := v.control.Start(c.cmd); err != nil {
		v.Fatal(err)
	}
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	v.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	return c
}

// ofCluster are the arguments of a command, with those of the cluster.
func (v *viewed) ofCluster(args []string) []string {
	return append(args, "--cluster", "--kubeconfig", v.kubeconfig)
}

// line waits for the next line.
func (c *viewCommand) line() string {
	c.Helper()
	select {
	case line, more := <-c.lines:
		if !more {
			c.Fatalf("%q has ended after the line %q", c.cmd.Args, c.last)
		}
		c.last = line
		return line
	case <-time.After(longTimeout):
		c.Fatalf("waited %s for a line after %q", longTimeout, c.last)
		return ""
	}
}

// until waits for a line with the text, and returns it and those before it.
func (c *viewCommand) until(text string) string {
	c.Helper()
	var all strings.Builder
	for line := ""; !strings.Contains(line, text); {
		line = c.line()
		all.WriteString(line + "\n")
	}
	return all.String()
}

// enter types a line.
func (c *viewCommand) enter(line string) {
	c.Helper()
	if _, err := io.WriteString(c.stdin, line+"\n"); err != nil {
		c.Fatal(err)
	}
}

// end waits for the end, and returns the exit code and the rest of the output.
func (c *viewCommand) end() (code int, rest string) {
	c.Helper()
	var all strings.Builder
	for line := range c.lines {
		all.WriteString(line + "\n")
	}
	_ = c.cmd.Wait()
	return c.cmd.ProcessState.ExitCode(), all.String()
}
