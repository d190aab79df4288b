package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns/programs"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

// The places of a session, in the lab's own /run, which disappears with the process.
const (
	root      = "/run/nfqproxy-learn"
	binDir    = root + "/bin"
	startFile = root + "/bashrc"
	unitDir   = root + "/unit"
	labFile   = "lab.yaml"
)

// commandScripts are the student's commands, besides the program itself.
var commandScripts = map[string]string{
	"on": `[ $# -gt 0 ] || { echo "on requires a host, as in: on HOST ip address" >&2; exit 2; }
host=$1; shift
[ $# -gt 0 ] || set -- bash --rcfile ` + startFile + `
exec nfqproxy lab exec "$host" -- "$@"`,
}

func init() {
	for _, name := range []string{"answer", "hint", "check", "next", "text", "solution", "reset", "again", "start", "units", "quit"} {
		command := name
		if name == "units" {
			command = "list"
		}
		commandScripts[name] = "exec nfqproxy learn " + command + ` -- "$@"` // an answer may begin with a dash
	}
}

// bashrc is the start file of the student's shell. The prompt begins with a mark (OSC 133;A, the start of a prompt in
// terminals that know it), which tests wait for.
const bashrc = `unset HISTFILE
PS1='\[\e]133;A\a\]${NFQPROXY_LAB_HOST#default/}:\W\$ '
PS2='\[\e]133;A\a\]> '
PROMPT_COMMAND=
`

// layOut writes the files of a unit, and returns the directory. It gives the lab's file its path.
func layOut(u *learn.Unit, file *lab.File) (string, error) {
	if err := os.RemoveAll(unitDir); err != nil {
		return "", err
	}
	for _, dir := range []string{binDir, unitDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	link := filepath.Join(binDir, "nfqproxy")
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	errs := []error{os.Symlink(self, link), os.WriteFile(startFile, []byte(bashrc), 0o644)}
	for name, script := range commandScripts {
		errs = append(errs, os.WriteFile(filepath.Join(binDir, name), []byte("#!/bin/bash\n"+script+"\n"), 0o755))
	}
	for _, name := range u.FileNames() {
		if name != u.Lab {
			errs = append(errs, os.WriteFile(filepath.Join(unitDir, name), u.File(name), 0o644))
		}
	}
	file.Path = filepath.Join(unitDir, labFile)
	return unitDir, errors.Join(append(errs, os.WriteFile(file.Path, file.Data, 0o644))...)
}

// environment is that of the student's shell on a host.
func environment(labName, host string) []string {
	env := []string{
		"PATH=" + strings.Join(append([]string{binDir, os.Getenv("PATH")}, programs.AdminPath...), ":"),
		"NFQPROXY_LAB=" + labName, "NFQPROXY_LAB_HOST=" + host, "HOSTNAME=" + host,
	}
	for _, e := range os.Environ() {
		switch name, _, _ := strings.Cut(e, "="); name {
		case "PATH", "NFQPROXY_LAB", "NFQPROXY_LAB_HOST", "HOSTNAME", "ENV", "BASH_ENV", "PROMPT_COMMAND", "PS1":
		default:
			env = append(env, e)
		}
	}
	return env
}

// command is a command on a host of the lab, in the student's directory; an empty host is that of his shell.
func (w *work) command(ctx context.Context, host string, args ...string) (*exec.Cmd, func() error, error) {
	if host == "" {
		host = w.unit.Shell
	}
	ns, err := w.lab.Namespace(host)
	if err != nil {
		return nil, nil, err
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, path, args[1:]...)
	cmd.Dir, cmd.Env = w.dir, environment(w.lab.Spec().Name, host)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second // processes that hold the output
	return cmd, func() error { return ns.Start(cmd) }, nil
}

// scriptTimeout is how long the script of a check or an answer may take.
const scriptTimeout = 10 * time.Second

// run runs a script, and returns what it wrote and its exit code. The error is one of the system, or of the context.
func (w *work) run(ctx context.Context, s learn.Script) (output string, code int, err error) {
	cmd, start, err := w.command(ctx, s.On, "bash", "-c", s.Text)
	if err != nil {
		return "", 0, err
	}
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	if err := start(); err != nil {
		return "", 0, err
	}
	err = cmd.Wait()
	if _, exited := errors.AsType[*exec.ExitError](err); exited || errors.Is(err, exec.ErrWaitDelay) {
		err = ctx.Err()
	}
	return strings.TrimRight(b.String(), "\n"), cmd.ProcessState.ExitCode(), err
}

// must runs a script that has to succeed, and returns what it wrote.
func (w *work) must(ctx context.Context, s learn.Script) (string, error) {
	output, code, err := w.run(ctx, s)
	switch {
	case err != nil:
		return "", fmt.Errorf("did not start, or did not end: %w\n%s", err, output)
	case code != 0:
		return "", fmt.Errorf("failed with exit code %d\n%s", code, output)
	}
	return output, nil
}

// startShell starts a shell on a terminal, with further variables of its environment.
func (s *Session) startShell(host string, terminal *os.File, env ...string) (*exec.Cmd, error) {
	w := s.running()
	if w == nil {
		return nil, errors.New("no unit is running")
	}
	cmd, start, err := w.command(w.ctx, host, "bash", "--rcfile", startFile, "-i")
	if err != nil {
		return nil, err
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	// With a hangup bash ends its jobs, too. It is killed a moment later, should it not end.
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGHUP) }
	if err := start(); err != nil {
		return nil, fmt.Errorf("starting a shell: %w", err)
	}
	return cmd, nil
}

// replay brings the lab to where the student left it: it runs the solutions of the steps before.
func (w *work) replay(ctx context.Context, steps int) error {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	// Answers, and the other commands of the course, are for the student.
	silent := ""
	for name := range commandScripts {
		if name != "on" {
			silent += name + "() { :; }\n"
		}
	}
	for _, step := range w.unit.Steps[:steps] {
		if step.Read() || len(step.Checks) == 0 {
			continue
		}
		since := time.Now()
		if _, _, err := w.run(ctx, learn.Script{Text: silent + step.Solution}); err != nil {
			return err
		}
		for _, c := range step.Checks {
			if met, detail := w.eventually(ctx, c, since); !met {
				return fmt.Errorf("step %s: %s: not met: %s", step.Name, c, detail)
			}
		}
	}
	return nil
}

// eventually waits shortly until a check is met.
func (w *work) eventually(ctx context.Context, c *learn.Check, since time.Time) (met bool, detail string) {
	ctx, cancel := context.WithTimeout(ctx, scriptTimeout)
	defer cancel()
	for {
		if met, detail = w.check(ctx, c, since); met {
			return met, detail
		}
		select {
		case <-ctx.Done():
			return false, detail
		case <-time.After(pollInterval):
		}
	}
}
