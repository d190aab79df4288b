package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	startTimeout = 2 * time.Minute        // of a component until it is ready
	stopTimeout  = 30 * time.Second       // of a component after a signal to end
	probePeriod  = 20 * time.Millisecond  // between readiness probes
	probeTimeout = 500 * time.Millisecond // of one probe
	tailBytes    = 4096                   // of the log in an error
)

// Component is one process of the control plane. Between its end and the next
// Start its port is free and its data stays. Methods may be called concurrently.
type Component struct {
	name  string
	path  string
	args  []string
	log   string
	spawn func(*exec.Cmd) error           // starts a process in the right namespace
	ready func(ctx context.Context) error // probes once

	mu     sync.Mutex // held while starting and stopping
	run    *run       // the last one; nil before the first
	failed error      // from the first run that exited unexpectedly
}

// run is one life of a component.
type run struct {
	process *os.Process
	exited  chan struct{} // closed after how is set
	how     string        // it ended
	stopped bool          // by request; guarded by Component.mu
}

func (r *run) alive() bool {
	if r == nil {
		return false
	}
	select {
	case <-r.exited:
		return false
	default:
		return true
	}
}

// Log is the path of the file with all that the component has written.
func (c *Component) Log() string { return c.log }

// Start starts the component and returns when it serves requests. It is an error
// if it is already running. Its network address and data are those of the run before.
func (c *Component) Start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run.alive() {
		return fmt.Errorf("%s is already running: stop or kill it first", c.name)
	}
	c.noteFailure()
	r, err := c.launch()
	if err != nil {
		return fmt.Errorf("starting %s: %w", c.name, err)
	}
	c.run = r
	if err := c.awaitReady(ctx, r); err != nil {
		c.end(unix.SIGKILL)
		return fmt.Errorf("starting %s: %w; its log ends with:\n%s", c.name, err, c.tail())
	}
	return nil
}

func (c *Component) launch() (*run, error) {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.path, c.args...)
	cmd.Dir = filepath.Dir(c.log)
	cmd.Stdout, cmd.Stderr = log, log
	// Most of an API server's work is its start. It needs less time with more memory.
	cmd.Env = append(os.Environ(), "GOGC=400")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}

	r := &run{exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The parent-death signal comes with the end of the thread that started the
		// process: keep it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.spawn(cmd)
		r.process = cmd.Process
		started <- err
		if err == nil {
			_ = cmd.Wait()
			r.how = cmd.ProcessState.String()
			close(r.exited)
		}
	}()
	return r, <-started
}

func (c *Component) awaitReady(ctx context.Context, r *run) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(probePeriod)
	defer tick.Stop()
	for {
		probe, done := context.WithTimeout(ctx, probeTimeout)
		err := c.ready(probe)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-r.exited:
			r.stopped = true // reported here
			return fmt.Errorf("it ended: %s", r.how)
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w (%w)", err, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// Stop stops the component with SIGTERM and waits until it has ended. If it takes
// longer than half a minute it is killed, which is an error. A component that
// does not run is left so.
func (c *Component) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end(unix.SIGTERM)
}

// Kill ends the component at once (SIGKILL) and waits until it has. A component
// that does not run is left so.
func (c *Component) Kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end(unix.SIGKILL)
}

func (c *Component) end(signal os.Signal) error {
	r := c.run
	if !r.alive() {
		return nil
	}
	r.stopped = true
	if err := r.process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: sending %v: %w", c.name, signal, err)
	}
	// A frozen process would not handle the signal.
	_ = r.process.Signal(unix.SIGCONT)
	limit := time.NewTimer(stopTimeout)
	defer limit.Stop()
	select {
	case <-r.exited:
		return nil
	case <-limit.C:
		_ = r.process.Kill()
		<-r.exited
		return fmt.Errorf("%s did not end within %v of %v and was killed; its log ends with:\n%s", c.name, stopTimeout, signal, c.tail())
	}
}

// Freeze suspends the component (SIGSTOP): its connections stay, without responses.
// It returns when no thread runs any more.
func (c *Component) Freeze() error {
	if err := c.signal(unix.SIGSTOP); err != nil {
		return err
	}
	c.mu.Lock()
	pid := c.run.process.Pid
	c.mu.Unlock()
	for {
		// Its exit ends the wait, too; WNOWAIT leaves the state to os.Process.
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("waitid", err)
		}
	}
}

// Thaw lets a frozen component go on.
func (c *Component) Thaw() error { return c.signal(unix.SIGCONT) }

func (c *Component) signal(s os.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.run.alive() {
		return fmt.Errorf("%s does not run: start it first", c.name)
	}
	return c.run.process.Signal(s)
}

// noteFailure records that the last run exited unexpectedly.
func (c *Component) noteFailure() {
	if c.run != nil && !c.run.alive() && !c.run.stopped && c.failed == nil {
		c.failed = fmt.Errorf("%s exited unexpectedly (%s); its log ends with:\n%s", c.name, c.run.how, c.tail())
	}
}

// close kills the component and reports whether it had ever exited unexpectedly.
func (c *Component) close() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteFailure()
	return errors.Join(c.failed, c.end(unix.SIGKILL))
}

func (c *Component) tail() string {
	text, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	if cut := len(text) - tailBytes; cut > 0 {
		text = text[cut:]
		text = text[bytes.IndexByte(text, '\n')+1:]
	}
	return string(text)
}
