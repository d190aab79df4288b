package netns

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnOneCPU calls f on a thread that stays on one CPU. Packets that f sends over loopback and
// veth devices then arrive in order: the kernel queues such packets on the sender's
// CPU (netif_rx).
func OnOneCPU(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	for cpu := range len(before) * 64 {
		if before.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	return errors.Join(f(), unix.SchedSetaffinity(0, &before))
}
