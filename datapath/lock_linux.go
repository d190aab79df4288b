package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/nfqueue"
)

// lockQueue is a netfilter queue that no rule leads to.
const lockQueue = 65535

// lockNamespace ensures that this is the only datapath of the calling thread's network namespace:
// two would replace and remove each other's rules. The lock is a bound netfilter queue: the kernel
// grants it to one socket, of a process with CAP_NET_ADMIN, and frees it when the process ends for
// any reason.
func lockNamespace() (io.Closer, error) {
	q, err := nfqueue.Open(lockQueue, nfqueue.Config{MaxLen: 1, CopyRange: 20, ReadBuffer: 4096})
	var taken *nfqueue.TakenError
	switch {
	case errors.As(err, &taken):
		return nil, errLocked(taken.PortID)
	case err != nil:
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	return q, nil
}

// CheckLock returns an error if another datapath serves the calling thread's network namespace. It
// takes no lock. Open finds the same, but a confined process cannot read in /proc which process it is.
func CheckLock() error {
	c, err := nfqueue.ReadCounters(lockQueue)
	if err != nil {
		return nil // not bound, or Open finds the fault
	}
	return errLocked(c.PortID)
}

func errLocked(portID uint32) error {
	return fmt.Errorf("another nfqproxy%s serves this network namespace: stop it first", holder(portID))
}

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
