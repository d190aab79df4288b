package machine

import (
	"os"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestUsage: a process that computes uses CPU time, and so does the machine.
func TestUsage(t *testing.T) {
	if err := CheckProc(); err != nil {
		netnstest.Missing(t, err.Error())
	}
	read := func() (process, all time.Duration) {
		t.Helper()
		process, err1 := ProcessTime(os.Getpid())
		all, err2 := Time()
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		return process, all
	}
	process, all := read()
	now, then := process, all
	for n := 0; now < process+20*time.Millisecond || then == all; now, then = read() {
		if n++; n > 1_000_000 {
			t.Fatalf("after %d rounds the process has used %v, the machine %v", n, now-process, then-all)
		}
	}
	resident, peak, err := Memory(os.Getpid())
	if err != nil || resident < 1 || resident > 1<<20 || peak < resident {
		t.Errorf("memory %.1f MiB, at most %.1f MiB, %v", resident, peak, err)
	}
	if _, err := ProcessTime(1 << 22); err == nil {
		t.Error("a process that does not exist has used CPU time")
	}
	if _, _, err := Memory(1 << 23); err == nil {
		t.Error("a process that does not exist has memory")
	}
}
