//go:build !linux

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/view/noderules"
)

// errOtherSystem is the error of all commands on systems other than Linux.
var errOtherSystem = fmt.Errorf("labs require Linux network namespaces; this is %s: %w", runtime.GOOS, errors.ErrUnsupported)

// RunUp needs Linux.
func RunUp(RunOptions) (int, error) { return 1, errOtherSystem }

// RunDemo needs Linux.
func RunDemo(RunOptions) (int, error) { return 1, errOtherSystem }

// Exec needs Linux.
func Exec(labName, host string, command []string) (int, error) { return 1, errOtherSystem }

// ExecQuietly needs Linux.
func ExecQuietly(labName, host string, command []string, output *os.File) (int, error) {
	return 1, errOtherSystem
}

// StatusOf needs Linux.
func StatusOf(labName string) (*Status, error) { return nil, errOtherSystem }

// ObjectsOf needs Linux.
func ObjectsOf(labName string) (*manifest.Objects, error) { return nil, errOtherSystem }

// FirewallOf needs Linux.
func FirewallOf(labName, node string, to []netip.Addr) (*noderules.Rules, error) {
	return nil, errOtherSystem
}

// ChangeOf needs Linux.
func ChangeOf(labName string, c Change) ([]string, error) { return nil, errOtherSystem }

// AddFaultOf needs Linux.
func AddFaultOf(labName string, f Fault) (Fault, error) { return f, errOtherSystem }

// FaultsOf needs Linux.
func FaultsOf(labName string) ([]Fault, error) { return nil, errOtherSystem }

// RemoveFaultOf needs Linux.
func RemoveFaultOf(labName string, id int) ([]Fault, error) { return nil, errOtherSystem }

// Down needs Linux.
func Down(labName string) error { return errOtherSystem }

// RunningLabs are none here.
func RunningLabs() []string { return nil }

// FlowAPIOf returns the flow API of this user's running lab: none runs here.
func FlowAPIOf(labName string) (FlowAPIStatus, error) { return FlowAPIStatus{}, nil }
