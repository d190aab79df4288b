package datapath

import (
	"github.com/nfqproxy/nfqproxy/datapath/ruleset"
)

// Cleanup removes the kernel rules that an earlier datapath left in the calling
// thread's network namespace, and says whether there were any. It fails while one runs
// there.
func Cleanup() (removed bool, err error) {
	if _, err := Preflight(); err != nil {
		return false, err
	}
	lock, err := lockNamespace()
	if err != nil {
		return false, err
	}
	defer lock.Close()
	return ruleset.Cleanup()
}
