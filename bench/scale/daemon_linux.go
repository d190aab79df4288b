package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	healthAddress  = "127.0.0.1:10256"
	metricsAddress = "127.0.0.1:10249"
	pollPeriod     = 2 * time.Millisecond
	startPatience  = 2 * time.Minute
	// cpuProfile is how long the start is profiled.
	cpuProfile = 2 * time.Second
)

// daemon is a running nfqproxy.
type daemon struct {
	cmd     *exec.Cmd
	flows   *flows
	stderr  bytes.Buffer
	http    *http.Client
	began   time.Time
	atReady usage
}

// usage is what a process has used.
type usage struct {
	after     time.Duration // since its start
	cpu       time.Duration
	rss, peak uint64 // bytes: VmRSS and VmHWM
}

// start starts the proxy and waits until it is ready.
func (w *world) start(ctx context.Context, o *options) (_ *daemon, err error) {
	path, err := filepath.Abs(o.proxy)
	if err != nil {
		return nil, err
	}
	d := &daemon{flows: newFlows()}
	d.cmd = exec.Command(path, "run", "--kubeconfig", w.kubeconfig, "--hostname-override", ownNode, "--cluster-cidr", podCIDR,
		"--healthz-bind-address", healthAddress, "--metrics-bind-address", metricsAddress, "--flow-log", "-")
	if o.profile != "" {
		d.cmd.Args = append(d.cmd.Args, "--profiling")
	}
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	d.cmd.Stderr = &d.stderr
	stdout, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, err
		}
		return w.node.Dial(ctx, network, netip.AddrPort{}, to)
	}}}
	d.began = time.Now()
	if err := w.node.Start(d.cmd); err != nil {
		return nil, err
	}
	go d.flows.read(stdout)
	profiled := d.profileStart(o.profile)
	err = d.awaitReady(ctx)
	if err == nil {
		d.atReady, err = d.usage()
	}
	err = errors.Join(err, <-profiled)
	if err == nil {
		err = d.writeHeap(o.profile, "ready")
	}
	if err != nil {
		return nil, d.stop(err)
	}
	return d, nil
}

func (d *daemon) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		if _, err := d.get(ctx, "http://"+healthAddress+"/readyz"); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for nfqproxy to be ready: %w", ctx.Err())
		case <-d.flows.ended:
			return errors.New("nfqproxy ended")
		case <-time.After(pollPeriod):
		}
	}
}

// get reads a page that has to have status 200.
func (d *daemon) get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := d.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, response.Status)
	}
	return text, err
}

// usage reads what the proxy has used until now.
func (d *daemon) usage() (u usage, err error) {
	u.after = time.Since(d.began)
	pid := d.cmd.Process.Pid
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		var to *uint64
		switch {
		case len(fields) != 3:
			continue
		case fields[0] == "VmRSS:":
			to = &u.rss
		case fields[0] == "VmHWM:":
			to = &u.peak
		default:
			continue
		}
		kib, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil {
			return u, err
		}
		*to = kib << 10
	}
	u.cpu, err = cpuTime(pid)
	return u, err
}

// cpuTime is the time all threads of a process have used, in user space and kernel.
func cpuTime(pid int) (time.Duration, error) {
	// See proc_pid_stat(5); the command, which comes before, may have spaces in it. Ticks
	// are hundredths of a second on every architecture there is (USER_HZ).
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, stat)
	}
	var ticks uint64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// stop ends the proxy. The error is the given one or, without that, the proxy's.
func (d *daemon) stop(err error) error {
	_ = d.cmd.Process.Signal(unix.SIGTERM)
	<-d.flows.ended
	ended := d.cmd.Wait()
	d.http.CloseIdleConnections()
	if err == nil {
		err = ended
	}
	if err != nil {
		return fmt.Errorf("%w; standard error of nfqproxy:\n%s", err, d.stderr.String())
	}
	return nil
}

// profileStart profiles the CPU from the proxy's first response on; the channel returns the
// result.
func (d *daemon) profileStart(dir string) <-chan error {
	done := make(chan error, 1)
	if dir == "" {
		done <- nil
		return done
	}
	go func() {
		url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", metricsAddress, int(cpuProfile.Seconds()))
		for deadline := time.Now().Add(startPatience); ; time.Sleep(pollPeriod) {
			profile, err := d.get(context.Background(), url)
			if err == nil {
				done <- os.WriteFile(filepath.Join(dir, "start.cpu"), profile, 0o644)
				return
			}
			if time.Now().After(deadline) {
				done <- err
				return
			}
		}
	}()
	return done
}

// writeHeap writes a profile of the heap after a collection.
func (d *daemon) writeHeap(dir, what string) error {
	if dir == "" {
		return nil
	}
	profile, err := d.get(context.Background(), "http://"+metricsAddress+"/debug/pprof/heap?gc=1")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, what+".heap"), profile, 0o644)
}
