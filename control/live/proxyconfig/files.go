package proxyconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Files reads and writes the small files of /proc/sys and /sys with one number in them.
// [KernelFiles] are the real ones.
type Files interface {
	Read(path string) (int, error)
	Write(path string, value int) error
}

// KernelFiles are the files of the running kernel.
type KernelFiles struct {
	// Host is put before the path of a file that is read-only: in a container that is
	// not privileged /proc/sys is, and no mount can be put over it, but the host's
	// /proc/sys/net can be mounted elsewhere. Empty: there is no such place.
	Host string
}

// Read reads a number.
func (KernelFiles) Read(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// Write writes a number to a file that is there.
func (k KernelFiles) Write(path string, value int) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if k.Host != "" && (errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission)) {
		if host, hostErr := os.OpenFile(k.Host+path, os.O_WRONLY, 0); hostErr == nil {
			file, err = host, nil
		}
	}
	if err != nil {
		return err
	}
	_, err = file.WriteString(strconv.Itoa(value))
	return errors.Join(err, file.Close())
}

const routeLocalnet = "/proc/sys/net/ipv4/conf/all/route_localnet"

// EnsureRouteLocalnet sets the sysctl that node ports on 127.0.0.1 need
// (Config.Node.LocalhostNodePorts), as kube-proxy does in mode iptables. Without it the
// kernel takes the replies for martians. Call it before the rules are there (datapath.Config.Prepare).
func EnsureRouteLocalnet(files Files) error {
	if now, err := files.Read(routeLocalnet); err == nil && now == 1 {
		return nil
	}
	if err := files.Write(routeLocalnet, 1); err != nil {
		return fmt.Errorf("node ports on 127.0.0.1 need route_localnet: %w; set it on the node (echo 1 > %s) or set iptables.localhostNodePorts to false", err, routeLocalnet)
	}
	return nil
}
