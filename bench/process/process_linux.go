// Package process runs the programs of a benchmark in network namespaces.
package process

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/traffic"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// Process is a program that runs in a namespace until it is stopped. Its standard
// output is read line by line, its standard error kept for error messages.
type Process struct {
	// Began is when it was started.
	Began time.Time

	cmd     *exec.Cmd
	out     *bufio.Scanner
	stderr  *tail
	waited  sync.Once
	waitErr error
}

// maxLine bounds a line of output: a record of a flow log names all endpoints.
const maxLine = 16 << 20

// Start starts a program in a namespace.
func Start(in *netns.Namespace, cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, stderr: &tail{}}
	cmd.Stderr = p.stderr
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = w
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.Began = time.Now()
	err = in.Start(cmd)
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p.out = bufio.NewScanner(r)
	p.out.Buffer(nil, maxLine)
	return p, nil
}

// StartSelf starts this program once more, as a side of the traffic: with two arguments, a
// word for its role and the description of its task, in JSON.
func StartSelf(in *netns.Namespace, word string, description any) (*Process, error) {
	text, err := json.Marshal(description)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", word, string(text))
	cmd.Env = append(os.Environ(), traffic.Env...)
	return Start(in, cmd)
}

// PID is its number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stderr is the end of its standard error.
func (p *Process) Stderr() string { return p.stderr.String() }

// Line reads the next line of output.
func (p *Process) Line() (string, error) {
	if p.out.Scan() {
		return p.out.Text(), nil
	}
	return "", fmt.Errorf("%s ended: %w: %s", p.cmd.Path, errors.Join(p.out.Err(), p.Wait()), p.stderr)
}

// Result reads the next line of output: a result in JSON.
func (p *Process) Result(into any) error {
	line, err := p.Line()
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(line), into)
}

// Await reads up to a line.
func (p *Process) Await(word string) error {
	for {
		line, err := p.Line()
		if err != nil || line == word {
			return err
		}
	}
}

// Drain lets the process write what it likes.
func (p *Process) Drain() {
	go func() {
		for p.out.Scan() {
		}
	}()
}

// Wait waits until the process has ended by itself. The error is that of its end.
func (p *Process) Wait() error {
	p.waited.Do(func() { p.waitErr = p.cmd.Wait() })
	return p.waitErr
}

// Stop kills the process. Its kernel state disappears with its namespace.
func (p *Process) Stop() error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = p.Wait()
	return nil
}

// End sends SIGTERM and waits until the process has ended. The error is that of its end.
func (p *Process) End() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return p.Wait()
}

// tail keeps the last that was written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4096

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if cut := len(t.text) - tailBytes; cut > 0 {
		t.text = append(t.text[:0], t.text[cut:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(bytes.ToValidUTF8(t.text, nil)))
}

// Get requests a page of a server in a namespace. The path begins with a slash; any status but 200
// is an error.
func Get(ctx context.Context, in *netns.Namespace, server netip.AddrPort, path string) ([]byte, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return in.Dial(ctx, network, netip.AddrPort{}, server)
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server.String()+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", request.URL, response.Status)
	}
	return page, err
}

// Isolated runs a benchmark in namespaces of its own, with a context that SIGINT and SIGTERM end,
// and exits. name begins the line of an error.
func Isolated(name string, run func(context.Context) error) {
	code, err := netns.Isolation{Main: func([]*os.File) int {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return report(name, run(ctx))
	}}.Run()
	if err != nil {
		code = report(name, err)
	}
	os.Exit(code)
}

// Exit ends a side of the traffic; see [StartSelf].
func Exit(name string, err error) { os.Exit(report(name, err)) }

// report prints an error, and returns the exit code.
func report(name string, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	return 1
}
