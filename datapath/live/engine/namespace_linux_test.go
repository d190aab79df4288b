package engine

import (
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"golang.org/x/sys/unix"
)

// TestLock: one datapath of a namespace locks others out, and no user without rights does.
func TestLock(t *testing.T) {
	netnstest.Require(t)
	ns, err := netns.New("host")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(func() error {
		// Any user of the machine may listen at any abstract name.
		l, err := net.Listen("unix", "@nfqproxy-datapath")
		if err != nil {
			return err
		}
		defer l.Close()
		if _, err := CheckLock(FailWhenServed); err != nil {
			t.Errorf("without a lock: %v", err)
		}
		lock, err := lockNamespace()
		if err != nil {
			return err
		}
		if _, err := CheckLock(FailWhenServed); err == nil || !strings.Contains(err.Error(), "another nfqproxy (process ") {
			t.Errorf("with a lock: error %v", err)
		}
		if second, err := lockNamespace(); err == nil {
			t.Error("locked twice")
			_ = second.Close()
		} else if !strings.Contains(err.Error(), "another nfqproxy (process ") {
			t.Errorf("error %q does not name the process", err)
		}
		if err := lock.Close(); err != nil {
			return err
		}
		if lock, err = lockNamespace(); err != nil {
			return err
		}
		return lock.Close()
	}); err != nil {
		t.Fatal(err)
	}
}

// TestPreflightWithoutCapability: the error names what is missing.
func TestPreflightWithoutCapability(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread, which has lost a capability, ends with the test
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var capabilities [2]unix.CapUserData
	if err := unix.Capget(&header, &capabilities[0]); err != nil {
		t.Fatal(err)
	}
	capabilities[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&header, &capabilities[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := Preflight(); !errors.Is(err, errCapability) {
		t.Errorf("error %v, want %v", err, errCapability)
	}
}
