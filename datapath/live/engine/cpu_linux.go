package engine

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// workerSlice is the time slice that a worker requests: the shortest that the kernel grants, in
// nanoseconds. A woken thread with a shorter slice than the running one preempts it
// (kernel/sched/features.h, PREEMPT_SHORT).
const workerSlice = 100_000

// stayWithQueue locks the calling goroutine to its thread, and the thread to the CPUs whose
// packets go to the index-th of the queues (xt_NFQUEUE.c, nfqueue_tg_v3: CPU modulo queues).
// Otherwise the scheduler prefers an idle CPU to the one where the packet's sender is about to
// sleep; waking an idle CPU takes longer than deciding the flow.
//
// On a busy CPU the thread has to preempt others. If the kernel does not support that (before
// 6.12), or none of the CPUs is allowed for this process, it runs on any CPU.
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
