package nfqueue

import (
	"bufio"
	"fmt"
	"io"
	"os"
)

// Counters are the kernel's counters of a queue (/proc/net/netfilter/nfnetlink_queue).
type Counters struct {
	PortID      uint32 // the netlink port that is bound to it, usually a process id
	Waiting     uint64 // packets in the queue now
	Dropped     uint64 // packets that did not fit into the queue
	UserDropped uint64 // packets that did not fit into the socket's buffer
	Sequence    uint64 // packets that entered the queue since it was bound
	// Refused counts verdicts that the kernel refused because it had flushed the packet meanwhile.
	// Only [Queue.Counters] sets it, once a later packet was received.
	Refused uint64
}

const countersFile = "/proc/thread-self/net/netfilter/nfnetlink_queue"

// ReadCounters reads the counters of a queue in the calling thread's network namespace. If no
// program is bound to it, the error is [os.ErrNotExist].
func ReadCounters(queue uint16) (Counters, error) {
	f, err := os.Open(countersFile)
	if err != nil {
		return Counters{}, fmt.Errorf("queue counters: %w", err)
	}
	defer f.Close()
	return readCounters(f, queue)
}

func readCounters(r io.Reader, queue uint16) (Counters, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var number, copyMode, copyRange uint64
		var c Counters
		if _, err := fmt.Sscan(lines.Text(), &number, &c.PortID, &c.Waiting, &copyMode, &copyRange, &c.Dropped, &c.UserDropped, &c.Sequence); err != nil {
			return c, fmt.Errorf("queue counters: line %q: %w", lines.Text(), err)
		}
		if number == uint64(queue) {
			return c, nil
		}
	}
	if err := lines.Err(); err != nil {
		return Counters{}, fmt.Errorf("queue counters: %w", err)
	}
	return Counters{}, fmt.Errorf("queue %d: %w", queue, os.ErrNotExist)
}
