package lab

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// KubeProxyVariable is the environment variable with the path of kube-proxy.
const KubeProxyVariable = "NFQPROXY_KUBE_PROXY"

// FindKubeProxy is where the kube-proxy of labs is.
func FindKubeProxy() (string, error) { return kubeProxyPath("") }

// kubeProxyPath is where kube-proxy is: at the given path, at that of the environment, where "make peers" builds it in this
// repository, or in PATH.
func kubeProxyPath(given string) (string, error) {
	if given = cmp.Or(given, os.Getenv(KubeProxyVariable)); given != "" {
		path, err := exec.LookPath(given)
		if err != nil {
			return "", fmt.Errorf("kube-proxy not found: %w", err)
		}
		return filepath.Abs(path)
	}
	if path, err := exec.LookPath("./bench/peers/bin/kube-proxy"); err == nil {
		return filepath.Abs(path)
	}
	if path, err := exec.LookPath("kube-proxy"); err == nil {
		return path, nil
	}
	return "", errors.New("kube-proxy not found: give its path with --kube-proxy or " + KubeProxyVariable + ", or build it with \"make peers\"")
}

// runKubeProxy has a node's daemon be kube-proxy.
func (l *Lab) runKubeProxy(d *daemon, n *Node) error {
	program, err := kubeProxyPath(l.options.KubeProxy)
	if err != nil {
		return fmt.Errorf("node %s has proxy: %s: %w", n.Name, n.Proxy, err)
	}
	mode := cmp.Or(n.KubeProxyMode, "iptables")
	d.what = labfile.KubeProxy
	d.start = func() *exec.Cmd {
		return exec.Command(program, kubeProxyArguments(l.Spec(), n.Name, mode, d.kubeconfig())...)
	}
	d.probe = func(ctx context.Context) error { return synced(ctx, d) }
	return nil
}

func kubeProxyArguments(s *Spec, node, mode, config string) []string {
	args := []string{"--kubeconfig=" + config, "--kube-api-content-type=application/json", "--hostname-override=" + node, "--proxy-mode=" + mode,
		// The limits of connection tracking are the machine's.
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"}
	return append(args, s.proxyArguments()...)
}

// metricsPort is the default of kube-proxy's --metrics-bind-address, which is on the loopback address.
const metricsPort = 10249

// synced is an error until kube-proxy has written its rules.
func synced(ctx context.Context, d *daemon) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", metricsPort), nil)
	if err != nil {
		return err
	}
	r, err := transport(d.ns).RoundTrip(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		// Of one family or of each; it is 0 before the first time.
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && strings.HasPrefix(name, "kubeproxy_sync_proxy_rules_last_timestamp_seconds") {
			if seconds, err := strconv.ParseFloat(value, 64); err == nil && seconds > 0 {
				return nil
			}
		}
	}
	return errors.Join(lines.Err(), errors.New("kube-proxy has not written its rules"))
}
