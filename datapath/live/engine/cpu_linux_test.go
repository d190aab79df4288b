package engine

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestStayWithQueue: the threads of all queues together have all CPUs that the process has,
// each its own, and only where they go before others.
func TestStayWithQueue(t *testing.T) {
	type thread struct {
		cpus  unix.CPUSet
		slice uint64
		err   error
	}
	look := func() (th thread) {
		if th.err = unix.SchedGetaffinity(0, &th.cpus); th.err != nil {
			return th
		}
		attr, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			th.err = err
			return th
		}
		th.slice = attr.Runtime
		return th
	}
	free := look()
	if free.err != nil {
		t.Fatal(free.err)
	}
	for _, queues := range []int{1, 2, 3} {
		taken := make(map[int]int)
		for index := range queues {
			got := make(chan thread)
			go func() {
				stayWithQueue(index, queues)
				got <- look()
			}()
			th := <-got
			if th.err != nil {
				t.Fatal(th.err)
			}
			if th.slice != workerSlice && th.cpus != free.cpus {
				t.Errorf("queue %d of %d: kept on its CPUs, where it may have to wait for others", index, queues)
			}
			own := false
			for cpu := range 64 * len(free.cpus) {
				own = own || cpu%queues == index && free.cpus.IsSet(cpu)
			}
			for cpu := range 64 * len(free.cpus) {
				want := free.cpus.IsSet(cpu) && (cpu%queues == index || !own || th.slice != workerSlice)
				if th.cpus.IsSet(cpu) != want {
					t.Errorf("queue %d of %d, CPU %d: allowed %t, want %t", index, queues, cpu, !want, want)
				}
				if th.cpus.IsSet(cpu) {
					taken[cpu]++
				}
			}
		}
		for cpu := range 64 * len(free.cpus) {
			if free.cpus.IsSet(cpu) && taken[cpu] == 0 {
				t.Errorf("%d queues: no worker serves CPU %d", queues, cpu)
			}
		}
	}
	if now := look(); now.cpus != free.cpus {
		t.Error("another thread was kept on CPUs")
	}
}
