package engine

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// capNetAdmin is CAP_NET_ADMIN (linux/capability.h).
const capNetAdmin = 12

var errCapability = errors.New("capability CAP_NET_ADMIN is missing: it is needed to install nftables rules, bind netfilter queues and write connection entries; " +
	"run as root, or give the container the capability NET_ADMIN (the lab needs neither: nfqproxy lab demo)")

// Preflight checks, without lasting changes, whether this process can run the datapath in the
// calling thread's network namespace, and reports whether the kernel has nft's own queue
// expression. The error names what is missing, its purpose and the remedy.
func Preflight() (nativeQueue bool, err error) {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return false, fmt.Errorf("read the process's capabilities: %w (/proc has to be mounted)", err)
	}
	if !hasCapability(string(status), capNetAdmin) {
		return false, errCapability
	}
	nativeQueue, err = ruleset.Probe()
	switch {
	case errors.Is(err, unix.EPERM):
		// The process has the capability, but over another network namespace.
		return false, fmt.Errorf("%w (the network namespace belongs to another user namespace)", errCapability)
	case err != nil:
		return false, fmt.Errorf("%w; load the module or choose a kernel that has it", err)
	}
	return nativeQueue, conntrack.Probe()
}

// hasCapability reads the effective set from the text of /proc/PID/status.
func hasCapability(status string, capability uint) bool {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err == nil && set&(1<<capability) != 0
		}
	}
	return false
}
