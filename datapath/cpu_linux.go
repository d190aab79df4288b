package datapath

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// workerSlice is how long a worker wants to run at a time: the least the kernel grants, in
// nanoseconds. Who wants less than the running thread goes first when it is woken
// (kernel/sched/features.h, PREEMPT_SHORT).
const workerSlice = 100_000

// stayWithQueue keeps the calling goroutine's thread, which from then on is its alone, on
// the CPUs whose packets go to the index-th of the queues (xt_NFQUEUE.c, nfqueue_tg_v3: CPU
// modulo queues). The scheduler would rather have it run on an idle CPU than where the
// packet's sender is about to go to sleep; to wake an idle CPU takes longer than to decide
// the flow.
//
// On a CPU that others keep busy the thread has to go before them. Where the kernel does
// not know how (before 6.12), or none of the CPUs is ours to use, it runs where it may.
func stayWithQueue(index, queues int) {
	runtime.LockOSThread()
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return
	}
	attr.Runtime = workerSlice
	if unix.SchedSetAttr(0, attr, 0) != nil {
		return
	}
	if attr, err = unix.SchedGetAttr(0, 0); err != nil || attr.Runtime != workerSlice {
		return
	}
	var cpus unix.CPUSet
	for cpu := index; cpu < 64*len(cpus); cpu += queues {
		cpus.Set(cpu)
	}
	_ = unix.SchedSetaffinity(0, &cpus)
}
