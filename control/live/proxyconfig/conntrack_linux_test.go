package proxyconfig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestApplyToKernel sets a namespace's timeouts. nf_conntrack_max is not a
// namespace's: it cannot be written there.
func TestApplyToKernel(t *testing.T) {
	netnstest.Require(t)
	ns, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if _, err := ns.Sysctl("net.netfilter.nf_conntrack_udp_timeout"); err != nil {
		t.Fatalf("connection tracking is not loaded: %v", err)
	}
	c := Conntrack{
		TCPEstablishedTimeout: 1001 * time.Second, TCPCloseWaitTimeout: 1002 * time.Second,
		UDPTimeout: 1003 * time.Second, UDPStreamTimeout: 1004 * time.Second, TCPBeLiberal: true,
	}
	var changes []string
	var applied error
	check := func(want int, ok bool) {
		t.Helper()
		if err := ns.Do(func() error { changes, applied = c.Apply(KernelFiles{}, 1); return nil }); err != nil {
			t.Fatal(err)
		}
		if len(changes) != want || (applied == nil) != ok {
			t.Errorf("changes %q, error %v", changes, applied)
		}
	}
	check(5, true)
	for name, want := range map[string]int{
		"tcp_timeout_established": 1001, "tcp_timeout_close_wait": 1002, "udp_timeout": 1003, "udp_timeout_stream": 1004, "tcp_be_liberal": 1,
	} {
		if got, err := ns.Sysctl("net.netfilter.nf_conntrack_" + name); err != nil || got != fmt.Sprint(want) {
			t.Errorf("%s is %q (%v), want %d", name, got, err, want)
		}
	}
	check(0, true)
	// More than the kernel has here, whatever that is.
	now, err := KernelFiles{}.Read(maxFile)
	if err != nil {
		t.Fatal(err)
	}
	if now < maxScaled {
		c.MaxPerCore = now + 1
		check(0, false)
		if !strings.Contains(fmt.Sprint(applied), fmt.Sprintf("nf_conntrack_max is %d, want %d: ", now, now+1)) {
			t.Errorf("error %v", applied)
		}
	}
}

// TestKernelFilesOfHost: what is read-only is written where the host's is mounted.
func TestKernelFilesOfHost(t *testing.T) {
	netnstest.Require(t)
	dir, host := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "setting")
	for _, f := range []string{path, host + path} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(f), 0o755), os.WriteFile(f, []byte("1\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := (KernelFiles{}).Write(path, 2); !errors.Is(err, unix.EROFS) {
		t.Errorf("the test is worth nothing: %v", err)
	}
	files := KernelFiles{Host: host}
	if err := files.Write(path, 2); err != nil {
		t.Error(err)
	}
	if v, err := files.Read(host + path); v != 2 || err != nil {
		t.Errorf("the host's is %d, %v", v, err)
	}
	if err := (KernelFiles{Host: host + "/none"}).Write(path, 2); !errors.Is(err, unix.EROFS) {
		t.Errorf("without the host's: %v", err)
	}
}

// TestFlowAccountingInKernel switches it on in a namespace, once.
func TestFlowAccountingInKernel(t *testing.T) {
	netnstest.Require(t)
	ns, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := errors.Join(ns.SetSysctl("net.netfilter.nf_conntrack_acct", "0"), ns.SetSysctl("net.netfilter.nf_conntrack_timestamp", "0")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{2, 0} {
		var changes []string
		if err := ns.Do(func() (err error) { changes, err = FlowAccounting(KernelFiles{}); return err }); err != nil || len(changes) != want {
			t.Errorf("changes %q, error %v; want %d changes", changes, err, want)
		}
		for _, name := range []string{"acct", "timestamp"} {
			if v, err := ns.Sysctl("net.netfilter.nf_conntrack_" + name); err != nil || v != "1" {
				t.Errorf("nf_conntrack_%s is %q, error %v", name, v, err)
			}
		}
	}
}
