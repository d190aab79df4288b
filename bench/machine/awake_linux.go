package machine

import (
	"errors"
	"os"
	"sync"
)

// KeepAwake has idle CPUs poll instead of halting, until release is called. A halted CPU of a virtual machine takes longer to wake
// than most steps of a connection, and how often that happens depends on where threads run more than on what is measured. It asks
// the kernel for a latency of 0 (Documentation/power/pm_qos_interface.rst). An error: they go on halting.
func KeepAwake() (release func(), err error) {
	if driver := FirstLine("/sys/devices/system/cpu/cpuidle/current_driver"); driver == "none" {
		return nil, errors.New("the kernel has no driver for idle CPUs")
	}
	f, err := os.OpenFile("/dev/cpu_dma_latency", os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(make([]byte, 4)); err != nil { // an int32, in microseconds
		return nil, errors.Join(err, f.Close())
	}
	return sync.OnceFunc(func() { _ = f.Close() }), nil
}
