package lab

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// DaemonState is the state of a node's daemon.
type DaemonState string

// The states of a daemon.
const (
	Starting DaemonState = "starting"
	Ready    DaemonState = "ready"
	Stopped  DaemonState = "stopped" // on request
	Dead     DaemonState = "dead"    // exited unexpectedly
	Frozen   DaemonState = "frozen"  // stopped by a signal (SIGSTOP), or by a debugger
)

// DaemonError is the error for a daemon that exited unexpectedly or did not get ready.
type DaemonError struct {
	Node string
	Err  error    // the cause
	Log  []string // the last lines of its log
	// Program is kube-proxy, or the observer; empty: the daemon that is the node's proxy.
	Program string
}

// Error includes the last lines of the log.
func (e *DaemonError) Error() string {
	s := fmt.Sprintf("%s on node %s: %v", cmp.Or(e.Program, "the daemon"), e.Node, e.Err)
	if len(e.Log) > 0 {
		s += "; its log ends:\n    " + strings.Join(e.Log, "\n    ")
	}
	return s
}

// Unwrap returns the cause.
func (e *DaemonError) Unwrap() error { return e.Err }

const (
	logTail = 40      // lines kept of a daemon's log
	maxLine = 4 << 20 // bytes of a line that a daemon writes
)

// daemon is the daemon of one node, over all its starts.
type daemon struct {
	node   string
	what   string // as DaemonError.Program
	ns     *netns.Namespace
	hub    *hub
	socket string           // the path of its flow API
	start  func() *exec.Cmd // makes the command, with arguments and environment only
	// probe, of kube-proxy, is successful when it is ready; nil: the daemon reports that on file descriptor 3.
	probe func(context.Context) error

	mu     sync.Mutex // guards what follows
	run    *process   // nil: never started
	closed bool       // no more starts
}

func (d *daemon) fail(err error, log []string) *DaemonError {
	return &DaemonError{Node: d.node, Err: err, Log: log, Program: d.what}
}

// kubeconfig is the path of the daemon's kubeconfig.
func (d *daemon) kubeconfig() string { return strings.TrimSuffix(d.socket, ".sock") + ".kubeconfig" }

// process is one run of a daemon.
type process struct {
	cmd   *exec.Cmd
	ready chan struct{} // closed when it is ready
	done  chan struct{} // closed when it has ended; exit and err are valid then
	exit  error         // of Wait
	err   error         // nil: it was stopped

	mu      sync.Mutex // guards what follows
	stopped bool
	tail    []string // of the log
}

// Start starts the daemon and waits until it is ready.
func (d *daemon) Start(ctx context.Context) error {
	p, err := d.startProcess(nil)
	if err != nil {
		return err
	}
	return d.awaitReady(ctx, p)
}

// Replace starts another process that takes over from the running one, and waits until it is ready and
// the other has ended.
func (d *daemon) Replace(ctx context.Context) error {
	old := d.current()
	if old == nil || old.ended() {
		return d.fail(errors.New("not running"), nil)
	}
	p, err := d.startProcess(old)
	if err != nil {
		return err
	}
	if err := d.awaitReady(ctx, p); err != nil {
		return err
	}
	select {
	case <-old.done:
		if old.exit != nil {
			return d.fail(fmt.Errorf("failed when it was replaced: %w", old.exit), old.log())
		}
		return nil
	case <-ctx.Done():
		return d.fail(fmt.Errorf("did not end when it was replaced: %w", context.Cause(ctx)), old.log())
	}
}

func (d *daemon) awaitReady(ctx context.Context, p *process) error {
	select {
	case <-p.ready:
		return nil
	case <-p.done:
		if p.err == nil {
			return d.fail(errors.New("stopped before it was ready"), nil)
		}
		return p.err
	case <-ctx.Done():
		p.signal(unix.SIGKILL)
		<-p.done
		return d.fail(fmt.Errorf("not ready: %w", context.Cause(ctx)), p.log())
	}
}

// startProcess starts a process; old is the running one that it replaces.
func (d *daemon) startProcess(old *process) (*process, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.fail(os.ErrClosed, nil)
	}
	if d.run != old && d.run != nil && !d.run.ended() {
		return nil, d.fail(errors.New("already running"), nil)
	}
	p := &process{cmd: d.start(), ready: make(chan struct{}), done: make(chan struct{})}
	if old != nil {
		p.cmd.Args = append(p.cmd.Args, "--when-served=replace")
		old.expectEnd()
	}
	var ours, theirs [3]*os.File // the ends of the pipes for stdout, stderr and readiness
	var err error
	for i := range ours {
		if err == nil {
			ours[i], theirs[i], err = os.Pipe()
		}
	}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles = theirs[0], theirs[1], theirs[2:]
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if err == nil {
		err = d.ns.Start(p.cmd)
	}
	closeFiles(theirs[:]) // also nil ones
	if err != nil {
		closeFiles(ours[:])
		return nil, d.fail(err, nil)
	}
	d.run = p
	go d.watch(p, ours[0], ours[1], ours[2])
	if d.probe != nil {
		go d.awaitProbe(p)
	}
	return p, nil
}

// awaitProbe probes until the program is ready or has ended.
func (d *daemon) awaitProbe(p *process) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-p.done
		cancel()
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if d.probe(ctx) == nil {
			close(p.ready)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// watch reads the output of the process, until it has ended.
func (d *daemon) watch(p *process, stdout, stderr, ready *os.File) {
	var wg sync.WaitGroup
	publish := func(line []byte) { d.hub.publish(Event{Node: d.node, Log: string(line)}) }
	wg.Go(func() { lines(stdout, publish) })
	wg.Go(func() {
		lines(stderr, func(line []byte) {
			p.note(string(line))
			publish(line)
		})
	})
	wg.Go(func() {
		defer ready.Close()
		if line, _ := bufio.NewReader(io.LimitReader(ready, 64)).ReadString('\n'); line == "ready\n" && d.probe == nil {
			close(p.ready)
		}
	})
	wg.Wait()
	p.exit = p.cmd.Wait()
	p.mu.Lock()
	stopped := p.stopped
	p.mu.Unlock()
	if !stopped {
		p.err = d.fail(cmp.Or(p.exit, errors.New("exited unexpectedly")), p.log())
	}
	close(p.done)
	if p.err != nil {
		d.hub.publish(Event{Node: d.node, Died: p.err})
	}
}

// lines calls f for each line; it drops everything after a line that is too long.
func lines(r *os.File, f func([]byte)) {
	defer r.Close()
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), maxLine)
	for s.Scan() {
		if line := bytes.TrimSpace(s.Bytes()); len(line) > 0 {
			f(line)
		}
	}
	// The writer must not block on a full pipe after a read error.
	_, _ = io.Copy(io.Discard, r)
}

// Stop stops the daemon with SIGTERM, if it runs, and waits. When ctx ends it is killed.
func (d *daemon) Stop(ctx context.Context) error {
	p := d.current()
	if p == nil || p.ended() {
		return nil
	}
	p.stop(unix.SIGTERM)
	select {
	case <-p.done:
		if p.exit != nil && (d.probe == nil || !endedBy(p.exit, unix.SIGTERM)) { // kube-proxy has no handler
			return d.fail(fmt.Errorf("failed on SIGTERM: %w", p.exit), p.log())
		}
		return nil
	case <-ctx.Done():
		p.signal(unix.SIGKILL)
		<-p.done
		return d.fail(fmt.Errorf("did not stop on SIGTERM: %w", context.Cause(ctx)), p.log())
	}
}

// endedBy reports whether a process ended by a signal.
func endedBy(exit error, s unix.Signal) bool {
	e, ok := errors.AsType[*exec.ExitError](exit)
	if !ok {
		return false
	}
	status, ok := e.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == s
}

// Kill ends the daemon with SIGKILL and waits.
func (d *daemon) Kill() {
	if p := d.current(); p != nil {
		p.stop(unix.SIGKILL)
		<-p.done
	}
}

// Close stops the daemon for good.
func (d *daemon) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	return d.Stop(ctx)
}

func (d *daemon) current() *process {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.run
}

// state returns the state, the process ID (0: none) and the error of a dead daemon.
func (d *daemon) state() (DaemonState, int, error) {
	p := d.current()
	switch {
	case p == nil:
		return Stopped, 0, nil
	case p.ended() && p.err == nil:
		return Stopped, 0, nil
	case p.ended():
		return Dead, 0, p.err
	}
	select {
	case <-p.ready:
		return Ready, p.cmd.Process.Pid, nil
	default:
		return Starting, p.cmd.Process.Pid, nil
	}
}

// status is the state for users.
func (d *daemon) status() labapi.DaemonStatus {
	state, pid, err := d.state()
	if state == Ready && isStopped(pid) {
		state = Frozen
	}
	s := labapi.DaemonStatus{State: string(state), PID: pid}
	if err != nil {
		s.Error = err.Error()
	}
	return s
}

// isStopped reports whether a process is stopped by a signal or a debugger (proc_pid_stat(5)).
func isStopped(pid int) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	name := bytes.LastIndexByte(b, ')') // the name of the program may have any characters
	state, _, _ := bytes.Cut(bytes.TrimSpace(b[name+1:]), []byte{' '})
	return string(state) == "T" || string(state) == "t"
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop ends the process with a signal.
func (p *process) stop(s unix.Signal) {
	p.expectEnd()
	p.signal(s)
}

// expectEnd makes the end of the process no error.
func (p *process) expectEnd() {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
}

// signal sends a signal, if the process still exists.
func (p *process) signal(s unix.Signal) {
	_ = p.cmd.Process.Signal(s)
}

func (p *process) note(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tail = append(p.tail, line)
	if len(p.tail) > logTail {
		p.tail = p.tail[1:]
	}
}

func (p *process) log() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.tail...)
}
