package engine

import (
	"net"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
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

func TestHasCapability(t *testing.T) {
	status := func(effective string) string {
		return "Name:\tx\nCapPrm:\tffffffffffffffff\nCapEff:\t" + effective + "\nCapBnd:\tffffffffffffffff\n"
	}
	for text, want := range map[string]bool{
		status("000001ffffffffff"): true,
		status("0000000000001000"): true, // CAP_NET_ADMIN alone
		status("000001ffffffefff"): false,
		status("0000000000000000"): false,
		status("nonsense"):         false,
		"":                         false,
	} {
		if got := hasCapability(text, capNetAdmin); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
