package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// Status is the current state of the lab.
func (l *Lab) Status() *Status {
	now := l.state()
	t := topologyOf(now.Lab)
	s := &Status{Status: labapi.Status{Name: t.Lab, Clients: t.Hosts, Faults: l.Faults()}, Started: l.started, FlowAPI: l.FlowAPI}
	s.Pods, s.Deployments = now.PodStatus(t.Pods), now.DeploymentStatus()
	if files := l.files.Load(); files != nil {
		s.Files = *files
	}
	for _, n := range t.Nodes {
		d := l.daemons[n.Name].status()
		switch node := now.Lab.Node(n.Name); {
		case !node.HasProgram():
			d.State = node.Proxy
		case !node.HasDaemon():
			d.State = node.Proxy + " " + d.State
		}
		status := labapi.NodeStatus{Name: n.Name, Addresses: n.Addresses, PodCIDRs: n.PodCIDRs, Daemon: d}
		status.Down, status.Cordoned = now.Node(n.Name)
		if o := l.observers[n.Name]; o != nil {
			status.Observer = new(o.status())
		}
		s.Nodes = append(s.Nodes, status)
	}
	return s
}

// LabStatus is the part of the status that the flow API has, as [labapi.Lab].
func (l *Lab) LabStatus(context.Context) (*labapi.Status, error) {
	return &l.Status().Status, nil
}

// requestServer serves requests to a running lab.
type requestServer struct {
	lab    *Lab
	inside bool   // the clients are in hosts of the lab
	down   func() // stops the lab
	wg     sync.WaitGroup
}

// serveControl serves requests on a listening socket, that inside the lab or the one outside, until the context ends or
// a request stops the lab; then it calls down.
func (l *Lab) serveControl(ctx context.Context, listener *net.UnixListener, inside bool, down func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	c := requestServer{lab: l, inside: inside, down: func() {
		// Before the response: the client then waits on a second connection, which must not
		// be accepted.
		cancel()
		_ = listener.Close()
		down()
	}}
	defer c.wg.Wait()
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		c.wg.Go(func() { c.answer(ctx, conn) })
	}
}

func (c *requestServer) answer(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	if err := checkPeer(conn); err != nil {
		_ = writeMessage(conn, response{Error: err.Error()})
		return
	}
	// A request that is not complete must not outlive the lab.
	defer context.AfterFunc(ctx, func() { _ = conn.CloseRead() })()
	var r request
	files, err := readMessage(conn, &r)
	defer closeFiles(files)
	if err != nil {
		return
	}
	answer, err := c.carryOut(ctx, conn, &r, files)
	if err != nil {
		answer = response{Error: err.Error(), Exit: answer.Exit}
	}
	_ = writeMessage(conn, answer)
}

// carryOut does what a request asks for. An error may come with an exit code.
func (c *requestServer) carryOut(ctx context.Context, conn *net.UnixConn, r *request, files []*os.File) (response, error) {
	switch {
	case r.Status:
		s := c.lab.Status()
		if c.inside { // hosts have no way to the address outside
			s.FlowAPI.URL, s.FlowAPI.Browser = "unix:"+flowapi.DefaultSocket, s.FlowAPI.URL
		}
		return response{Status: s}, nil
	case r.Objects:
		o := c.lab.Objects()
		return response{Objects: o, Lab: labfile.Of(o)}, nil
	case r.Firewall != nil:
		rules, err := c.lab.Firewall(ctx, r.Firewall.Node, r.Firewall.To)
		return response{Firewall: rules}, err
	case r.Change != nil:
		changes, err := c.lab.Change(ctx, *r.Change)
		return response{Done: true, Changes: changes}, err
	case r.Fault != nil:
		faults, err := c.lab.fault(ctx, r.Fault)
		return response{Done: true, Faults: faults}, err
	case r.Down:
		c.down()
		return response{Done: true}, nil
	case r.Exec != nil:
		code, err := c.exec(conn, r.Exec, files)
		return response{Exit: &code}, err
	}
	return response{}, errors.New("unknown request: the lab runs another version of nfqproxy")
}

// fault answers a request about faults with those that it concerns.
func (l *Lab) fault(ctx context.Context, r *faultRequest) ([]Fault, error) {
	switch {
	case r.Add != nil:
		f, err := l.AddFault(ctx, *r.Add)
		return []Fault{f}, err
	case r.Remove != nil:
		return l.RemoveFault(ctx, *r.Remove)
	}
	return l.Faults(), nil
}

// Exit codes of a command that could not be run, as in a shell (POSIX, Shell Command
// Language, 2.8.2).
const (
	notExecutable = 126
	notFound      = 127
)

// exec runs a command in a host and returns its exit code, also with an error.
func (c *requestServer) exec(conn *net.UnixConn, r *execRequest, files []*os.File) (int, error) {
	ns, err := c.lab.Namespace(r.Host)
	if err != nil {
		return 1, err
	}
	if len(files) != 3 || len(r.Command) == 0 {
		return 1, errors.New("invalid request: want a command and three files")
	}
	path, err := lookPath(r.Command[0], r.Dir, r.Env)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return notFound, fmt.Errorf("%s: program not found (%s uses the files of this machine)", r.Command[0], r.Host)
	case err != nil:
		return notExecutable, fmt.Errorf("%s: %w", r.Command[0], err)
	}
	cmd := &exec.Cmd{
		Path: path, Args: r.Command, Dir: r.Dir, Env: append(r.Env, labVariable+"="+c.lab.Spec().Name, "NFQPROXY_LAB_HOST="+r.Host, "HOSTNAME="+ns.Hostname()),
		Stdin: files[0], Stdout: files[1], Stderr: files[2],
		// A process group of its own, so that signals reach all of it.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if r.Terminal {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	}
	if err := ns.Start(cmd); err != nil {
		return notExecutable, fmt.Errorf("starting %s in %s: %w", r.Command[0], r.Host, err)
	}
	closeFiles(files) // otherwise the reader of a pipe would wait for this process
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			var s signalMessage
			extra, err := readMessage(conn, &s)
			closeFiles(extra)
			select {
			case <-ended:
				return
			default:
			}
			// Until it is reaped, the process, and so its group, exists.
			if err != nil {
				// The client has disconnected, or the lab stops.
				_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
				return
			}
			_ = unix.Kill(-cmd.Process.Pid, unix.Signal(s.Signal))
		}
	})
	err = waitUnreaped(cmd.Process.Pid)
	close(ended)
	_ = conn.CloseRead() // ends the reader
	wg.Wait()
	waitErr := cmd.Wait()
	if err != nil {
		return 1, err
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	if cmd.ProcessState == nil {
		return 1, waitErr
	}
	return cmd.ProcessState.ExitCode(), nil
}

// waitUnreaped waits for the end of a child without reaping it, so that its process ID cannot
// be reused.
func waitUnreaped(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("waitid", err)
		}
	}
}

// lookPath finds a program as the caller's shell would. The error is [exec.ErrNotFound], or the
// reason why the file cannot be executed.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, isExecutable(name)
	}
	var path string
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	err := exec.ErrNotFound
	// Tools such as tcpdump and conntrack are often in directories that only root's PATH has.
	for _, d := range append(filepath.SplitList(path), "/usr/local/sbin", "/usr/sbin", "/sbin") {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		p := filepath.Join(d, name)
		if _, err := os.Stat(p); err != nil { // also where the directory cannot be searched
			continue
		}
		found := isExecutable(p)
		if found == nil {
			return p, nil
		}
		err = found
	}
	return "", err
}

// isExecutable returns the reason why a file cannot be executed; nil: it can.
func isExecutable(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return exec.ErrNotFound
	case err != nil:
		return errors.Unwrap(err)
	case info.IsDir():
		return unix.EISDIR
	case !info.Mode().IsRegular():
		return unix.EACCES
	}
	return unix.Access(path, unix.X_OK)
}
