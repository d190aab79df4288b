package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

// defineComponents decides on the command lines.
func (c *Cluster) defineComponents() (err error) {
	if c.Etcd, err = c.component(Etcd, c.etcdFlags(), func(ctx context.Context) error {
		_, err := c.get(ctx, c.etcdURL+"/health")
		return err
	}); err != nil {
		return err
	}
	if c.APIServer, err = c.component(APIServer, c.apiServerFlags(), c.probeAPIServer); err != nil {
		return err
	}
	if len(c.config.Controllers) == 0 {
		return nil
	}
	if c.ControllerManager, err = c.component(ControllerManager, c.controllerManagerFlags(), c.probeControllerManager); err != nil || !c.config.Kubelets {
		return err
	}
	c.Scheduler, err = c.component(KubeScheduler, c.schedulerFlags(), func(ctx context.Context) error {
		_, err := c.get(ctx, fmt.Sprintf("https://127.0.0.1:%d/readyz", c.ports.scheduler))
		return err
	})
	return err
}

func (c *Cluster) component(name string, flags []string, ready func(context.Context) error) (*Component, error) {
	path, err := Binary(name)
	if err != nil {
		return nil, err
	}
	return &Component{name: name, path: path, args: flags, log: c.path(name + ".log"), spawn: c.spawn, ready: ready}, nil
}

func (c *Cluster) etcdFlags() []string {
	peer := fmt.Sprintf("http://127.0.0.1:%d", c.ports.peer)
	return slices.Concat([]string{
		"--name=etcd",
		"--data-dir=" + c.path("etcd"),
		"--listen-client-urls=" + c.etcdURL,
		"--advertise-client-urls=" + c.etcdURL,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=etcd=" + peer,
		"--unsafe-no-fsync", // what the process wrote survives its death, if not the machine's
		"--log-level=warn",
	}, c.config.EtcdFlags)
}

func (c *Cluster) apiServerFlags() []string {
	var cidrs []string
	for _, cidr := range c.config.ServiceCIDRs {
		cidrs = append(cidrs, cidr.String())
	}
	bind := netip.IPv4Unspecified()
	if slices.ContainsFunc(c.config.Addresses, netip.Addr.Is6) {
		bind = netip.IPv6Unspecified()
	}
	// Endpoints may not be loopback addresses, so there is none then.
	advertise, reconciler := loopback, "none"
	if i := slices.IndexFunc(c.config.Addresses, c.canAdvertise); i >= 0 {
		advertise, reconciler = c.config.Addresses[i], "lease"
	}
	return slices.Concat([]string{
		"--etcd-servers=" + c.etcdURL,
		"--bind-address=" + bind.String(),
		"--advertise-address=" + advertise.String(),
		"--endpoint-reconciler-type=" + reconciler,
		fmt.Sprintf("--secure-port=%d", c.ports.api),
		"--tls-cert-file=" + c.path(servingCert),
		"--tls-private-key-file=" + c.path(servingKey),
		"--token-auth-file=" + c.path(tokenFile),
		"--client-ca-file=" + c.path(authorityCert),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path(tokenKey),
		"--service-account-signing-key-file=" + c.path(tokenKey),
		"--service-cluster-ip-range=" + strings.Join(cidrs, ","),
		"--allow-privileged", // DaemonSets of the kube-system kind
		// Without it the end takes as long as a client keeps a watch open, up to a minute.
		"--shutdown-watch-termination-grace-period=1s",
	}, c.nodeFlags(), c.config.APIServerFlags)
}

// nodeFlags are the API server's flags that depend on whether kubelets join.
func (c *Cluster) nodeFlags() []string {
	if !c.config.Kubelets {
		// Pods need no service account; nodes get no taints that a kubelet takes away.
		return []string{"--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition"}
	}
	return []string{
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--kubelet-client-certificate=" + c.path(kubeletUserCert),
		"--kubelet-client-key=" + c.path(kubeletUserKey),
		"--kubelet-preferred-address-types=InternalIP",
	}
}

func (c *Cluster) canAdvertise(a netip.Addr) bool {
	return !a.IsLoopback() && a.Is4() == c.config.ServiceCIDRs[0].Addr().Is4()
}

func (c *Cluster) controllerManagerFlags() []string {
	return slices.Concat([]string{
		"--kubeconfig=" + c.Kubeconfig(),
		"--controllers=" + strings.Join(c.config.Controllers, ","),
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.ports.manager),
		"--cert-dir=" + c.path("controller-manager"),
		"--authentication-skip-lookup",
		"--leader-elect=false",
		// Many objects at once are the rule here.
		"--kube-api-qps=1000", "--kube-api-burst=2000",
	}, c.podFlags(), c.config.ControllerManagerFlags)
}

// podFlags are kube-controller-manager's flags that depend on whether kubelets join.
func (c *Cluster) podFlags() []string {
	if !c.config.Kubelets {
		// A node whose kubelet is silent is noticed soon (default: 40s).
		return []string{"--node-monitor-period=500ms", "--node-monitor-grace-period=4s", "--node-startup-grace-period=4s"}
	}
	return []string{
		"--root-ca-file=" + c.path(authorityCert),
		"--service-account-private-key-file=" + c.path(tokenKey),
	}
}

func (c *Cluster) schedulerFlags() []string {
	return []string{
		"--kubeconfig=" + c.Kubeconfig(),
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.ports.scheduler),
		"--cert-dir=" + c.path("scheduler"),
		"--authentication-skip-lookup",
		"--leader-elect=false",
	}
}

// probeControllerManager succeeds when the first controller runs. Before, kube-controller-manager is healthy, too, and it exits if it
// finds no healthy API server within ten seconds.
func (c *Cluster) probeControllerManager(ctx context.Context) error {
	controller := c.config.Controllers[0]
	if controller == "*" {
		controller = "endpointslice-controller"
	}
	checks, err := c.get(ctx, fmt.Sprintf("https://127.0.0.1:%d/healthz?verbose", c.ports.manager))
	if err == nil && !strings.Contains(checks, "[+]"+controller+" ok") {
		err = fmt.Errorf("%s does not run yet; healthy are:\n%s", controller, checks)
	}
	return err
}

// get wants a page with status 200, and returns what it says.
func (c *Cluster) get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := c.local.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s", url, response.Status, text)
	}
	return string(text), nil
}

// localClient connects to etcd and kube-controller-manager. Connections are not kept:
// after a restart they would be dead.
func (c *Cluster) localClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:       c.dial,
		DisableKeepAlives: true,
		// kube-controller-manager signs its certificate itself. Only its health is read.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// ports are those of the control plane, the same for its whole life.
type ports struct{ etcd, peer, api, manager, scheduler uint16 }

// Ports are chosen from this range, which is below the kernel's for outgoing
// connections (net.ipv4.ip_local_port_range) and that of NodePorts, so that none of
// these takes one while its component is down.
const firstPort, lastPort = 20000, 29999

func (c *Cluster) choosePorts() (ports, error) {
	// All are held until the last is found, to get different ones.
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	var chosen [5]uint16
	for port := firstPort + rand.IntN(lastPort-firstPort)/2; port <= lastPort; port++ {
		l, err := c.listen(uint16(port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return ports{}, fmt.Errorf("choosing ports: %w", err)
		}
		chosen[len(held)] = uint16(port)
		held = append(held, l)
		if len(held) == len(chosen) {
			return ports{chosen[0], chosen[1], chosen[2], chosen[3], chosen[4]}, nil
		}
	}
	return ports{}, fmt.Errorf("no free ports up to %d", lastPort)
}

func (c *Cluster) listen(port uint16) (net.Listener, error) {
	at := netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	if c.config.Namespace != nil {
		return c.config.Namespace.Listen(context.Background(), at)
	}
	return net.Listen("tcp4", at.String())
}

// dial connects from where the control plane runs.
func (c *Cluster) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c.config.Namespace == nil {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	return c.config.Namespace.Dial(ctx, network, netip.AddrPort{}, to)
}

// spawn starts a process where the control plane runs.
func (c *Cluster) spawn(cmd *exec.Cmd) error {
	if c.config.Namespace != nil {
		return c.config.Namespace.Start(cmd)
	}
	return cmd.Start()
}
