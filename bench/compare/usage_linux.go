package main

import (
	"time"

	"github.com/nfqproxy/nfqproxy/bench/machine"
)

// usage is CPU time up to now.
type usage struct {
	process time.Duration // of a process, user and system, all threads
	machine time.Duration // of all CPUs, whatever it was for
}

func (u usage) since(before usage) usage {
	return usage{u.process - before.process, u.machine - before.machine}
}

// usageOf reads the clocks. pid 0: no process.
func usageOf(pid int) (u usage, err error) {
	if u.machine, err = machine.Time(); err == nil && pid != 0 {
		u.process, err = machine.ProcessTime(pid)
	}
	return u, err
}
