package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostfilter"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

var errCapability = errors.New("capability CAP_NET_ADMIN is missing: it is needed to install nftables rules, bind netfilter queues and write connection entries; " +
	"run as root, or give the container the capability NET_ADMIN (the lab needs neither: nfqproxy lab demo)")

// Preflight checks, without lasting changes, whether this process can run the datapath in the
// calling thread's network namespace, and reports whether the kernel has nft's own queue
// expression. The error names what is missing, its purpose and the remedy.
func Preflight() (nativeQueue bool, err error) {
	var capabilities [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &capabilities[0]); err != nil {
		return false, fmt.Errorf("read the process's capabilities: %w", err)
	}
	if capabilities[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
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

// lockQueue is a netfilter queue that no rule leads to.
const lockQueue = 65535

// lockNamespace ensures that this is the only datapath of the calling thread's network namespace:
// two would replace and remove each other's rules. The lock is a bound netfilter queue: the kernel
// grants it to one socket, of a process with CAP_NET_ADMIN, and frees it when the process ends for
// any reason. If another process has it, the error is a servedError.
func lockNamespace() (*os.File, error) {
	q, err := nfqueue.Open(lockQueue, nfqueue.Config{MaxLen: 1, CopyRange: 20, ReadBuffer: 4096})
	var taken *nfqueue.TakenError
	switch {
	case errors.As(err, &taken):
		return nil, servedError{holder(taken.PortID)}
	case err != nil:
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	lock, err := q.File()
	return lock, errors.Join(err, q.Close())
}

// servedError: another process has the lock.
type servedError struct{ holder string }

func (e servedError) Error() string {
	return "another nfqproxy" + e.holder + " serves this network namespace: stop it first"
}

// awaitLock is lockNamespace, but waits until another process ends.
func awaitLock(ctx context.Context, log *slog.Logger) (*os.File, error) {
	tick := time.NewTicker(lockInterval)
	defer tick.Stop()
	for {
		lock, err := lockNamespace()
		var served servedError
		if !errors.As(err, &served) {
			return lock, err
		}
		log.Info("waiting until the other nfqproxy ends" + served.holder)
		// Naming the holder takes long, so that is done once for each.
		for taken := true; taken; {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-tick.C:
			}
			_, err := nfqueue.ReadCounters(lockQueue)
			taken = err == nil
		}
	}
}

// lockInterval is how often awaitLock tries: the kernel has no event of the end of a queue.
const lockInterval = 50 * time.Millisecond

// CheckLock does what Open does if another process is the datapath of the calling thread's network namespace, which a
// confined process cannot: it returns an error that names the process or, if it is to be replaced, a connection to it.
// It takes no lock.
func CheckLock(when WhenServed) (*Predecessor, error) {
	c, err := nfqueue.ReadCounters(lockQueue)
	switch {
	case err != nil || when == WaitWhenServed:
		return nil, nil // not bound, or Open finds the fault
	case when == ReplaceWhenServed:
		return connectToPredecessor()
	}
	return nil, servedError{holder(c.PortID)}.withHint()
}

// withHint adds what can be done besides.
func (e servedError) withHint() error { return fmt.Errorf("%w, or choose another --when-served", e) }

// holder names the process of a netlink socket, if /proc shows it.
func holder(portID uint32) string {
	table, err := os.ReadFile("/proc/thread-self/net/netlink")
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(table) {
		// sk, protocol, port ID, ..., inode (af_netlink.c, netlink_native_seq_show)
		const netfilter = "12"
		f := strings.Fields(string(line))
		if len(f) < 10 || f[1] != netfilter || f[2] != strconv.FormatUint(uint64(portID), 10) {
			continue
		}
		links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
		for _, l := range links {
			if to, err := os.Readlink(l); err == nil && to == "socket:["+f[9]+"]" {
				return fmt.Sprintf(" (process %s)", strings.Split(l, "/")[2])
			}
		}
	}
	return ""
}

// Cleanup removes the kernel rules that an earlier datapath left in the calling thread's network namespace, those in
// the host's firewall included, and returns what it removed, one line for each. It fails while a datapath runs there.
func Cleanup() (removed []string, err error) {
	if _, err := Preflight(); err != nil {
		return nil, err
	}
	lock, err := lockNamespace()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	tables, err := ruleset.Cleanup()
	for _, t := range tables {
		removed = append(removed, "nftables table "+t)
	}
	// After our tables, so that no flow is still translated and then dropped by a firewall.
	lines, e := hostfilter.Remove()
	return append(removed, lines...), errors.Join(err, e)
}
