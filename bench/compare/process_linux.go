package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/traffic"
	"github.com/nfqproxy/nfqproxy/deploy/netns"
)

// process is a program that runs in a namespace until it is stopped. Its standard
// output is read line by line, its standard error kept for error messages.
type process struct {
	cmd     *exec.Cmd
	began   time.Time
	out     *bufio.Scanner
	stderr  *tail
	waited  sync.Once
	waitErr error
}

func startProcess(in *netns.Namespace, cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, stderr: &tail{}}
	cmd.Stderr = p.stderr
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = w
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.began = time.Now()
	err = in.Start(cmd)
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p.out = bufio.NewScanner(r)
	return p, nil
}

// startSide starts a side of the traffic. One that serves does so when this returns.
func startSide(in *netns.Namespace, s sideSpec) (*process, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", trafficArgument, string(text))
	cmd.Env = append(os.Environ(), traffic.Env...)
	p, err := startProcess(in, cmd)
	if err == nil && s.Echo != 0 {
		err = p.await(wordReady)
	}
	return p, err
}

// line reads the next line of output.
func (p *process) line() (string, error) {
	if p.out.Scan() {
		return p.out.Text(), nil
	}
	return "", fmt.Errorf("%s ended: %w: %s", p.cmd.Path, errors.Join(p.out.Err(), p.wait()), p.stderr)
}

// await reads up to a line.
func (p *process) await(word string) error {
	for {
		line, err := p.line()
		if err != nil || line == word {
			return err
		}
	}
}

// drain lets the process write what it likes.
func (p *process) drain() {
	go func() {
		for p.out.Scan() {
		}
	}()
}

func (p *process) wait() error {
	p.waited.Do(func() { p.waitErr = p.cmd.Wait() })
	return p.waitErr
}

// stop kills the process. What it leaves in the kernel goes with its namespace.
func (p *process) stop() error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = p.wait()
	return nil
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
