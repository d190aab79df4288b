// Package node is a node of a cluster on one machine: containerd and kubelet in network, mount,
// process, host name and control group namespaces of their own. Its root directory is the
// machine's, on which what the node writes is laid over, so that nothing of the machine changes.
//
// [Config.Start] starts the running executable again as the first process of the node, which
// has to call [Main]. All that runs on the node ends with that process.
package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// Config describes a node.
type Config struct {
	Name string
	// Dir is a directory of the machine for the node's images and containers, its logs and
	// its socket. It has to be there, and may be removed when the node has ended.
	Dir string
	// Group is the control group of the node.
	Group string
	// Programs are the kubelet and others that are to be in the node's PATH.
	Programs []string
	// Addresses of the node, at most one per family.
	Addresses []netip.Addr
	// PodCIDRs are the ranges of its pods, one per family.
	PodCIDRs []netip.Prefix
	// ClusterDNS is the address of the service of the cluster's names.
	ClusterDNS netip.Addr
	// Pause is the image of pod sandboxes.
	Pause string
	// Images are archives of images, which the node has in [ImagesDir].
	Images []string
	// Authority (certificate of the cluster's authority) and Kubeconfig are files.
	Authority, Kubeconfig string
}

// The stages of a node's first process: it enters its control group and its namespace of
// those, and executes itself once more, because they belong to threads.
const (
	stageVariable = "NFQPROXY_E2E_NODE"
	groupStage    = "group"
	rootStage     = "root"
)

// Start starts the node in a network namespace. The process ends with this one.
func (c *Config) Start(in *netns.Namespace) (*os.Process, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(c.Dir, "node.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command("/proc/self/exe", string(text))
	cmd.Env = append(os.Environ(), stageVariable+"="+groupStage)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  unix.SIGKILL,
		Setsid:     true,
	}
	if err := in.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	return cmd.Process, nil
}

// Main is the node's first process, if this is one; it does not return then.
func Main() {
	stage := os.Getenv(stageVariable)
	if stage == "" {
		return
	}
	err := errors.New("the environment variable " + stageVariable + " is for internal use: unset it")
	var c Config
	if len(os.Args) == 2 && json.Unmarshal([]byte(os.Args[1]), &c) == nil && os.Getpid() == 1 {
		switch stage {
		case groupStage:
			err = c.enterGroup()
		case rootStage:
			err = c.run()
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// enterGroup goes on as the same process in the node's control group, which is the root of what
// it sees.
func (c *Config) enterGroup() error {
	runtime.LockOSThread()
	// In one more mount namespace: what is mounted for it is not for the node.
	if err := privateMounts(); err != nil {
		return err
	}
	work := "/run/" + c.Name
	if err := os.MkdirAll(work, 0o700); err != nil {
		return err
	}
	if err := join(c.Group, work); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := os.Setenv(stageVariable, rootStage); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
}

// run sets up the node and runs its programs.
func (c *Config) run() error {
	_ = os.Unsetenv(stageVariable)
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return os.NewSyscallError("sethostname", err)
	}
	listener, err := Listen(filepath.Join(c.Dir, Socket))
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := c.makeRoot(); err != nil {
		return err
	}
	if err := c.writeFiles(); err != nil {
		return err
	}
	return supervise()
}
