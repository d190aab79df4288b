package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/netns"
)

// Options are the options of a lab besides its Spec.
type Options struct {
	// Objects are the files and directories the daemons read Kubernetes objects
	// from; usually File.ObjectPaths.
	Objects []string
	// Executable is the program whose "run" command is the daemon; empty: this one.
	Executable string
	// Env is added to the daemons' environment.
	Env []string
	// Arguments are added to those of the daemons, "-v=4" for example.
	Arguments []string
	// NoDaemons leaves the nodes without daemons until StartDaemon.
	NoDaemons bool
}

// Lab is a running lab. Its methods may be called concurrently.
type Lab struct {
	// FlowAPI is set by OpenFlows. Status must not be called before.
	FlowAPI FlowAPIStatus

	spec     *Spec
	options  Options
	started  time.Time
	topology *topology
	servers  []*server
	daemons  map[string]*daemon
	// dir has the sockets of the daemons' flow APIs; token is their token.
	dir, token string
	cluster    cluster
	hub        hub
	files      atomic.Pointer[FilesStatus] // nil: all is in force
	patience   patience
	close      sync.Once
	closeErr   error
}

// How long a daemon may take. Both are far more than a daemon needs: after that time it
// hangs.
const (
	startTimeout = time.Minute
	stopTimeout  = 30 * time.Second
)

// Up starts a lab in the namespaces of this process: call it inside [netns.Isolation]. On an
// error it removes everything. The context is for the start only; the lab runs until Close.
func Up(ctx context.Context, spec *Spec, options Options) (*Lab, error) {
	l := &Lab{spec: spec, options: options, started: time.Now(), daemons: make(map[string]*daemon), patience: defaultPatience}
	var err error
	if l.topology, err = newTopology(spec); err != nil {
		return nil, fmt.Errorf("lab %s: %w", spec.Name, err)
	}
	if err = l.makeDir(); err == nil {
		err = errors.Join(l.follow(), l.serve(ctx))
	}
	for i, n := range spec.Nodes {
		// Node names can be too long for a socket's path.
		d := &daemon{node: n.Name, ns: l.topology.hosts[n.Name], hub: &l.hub, socket: filepath.Join(l.dir, fmt.Sprintf("node-%d.sock", i))}
		d.start = func() *exec.Cmd { return l.command(d) }
		l.daemons[n.Name] = d
	}
	if err == nil && !options.NoDaemons {
		err = l.startDaemons(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lab %s: %w", spec.Name, err), l.Close())
	}
	return l, nil
}

// serve starts the built-in servers of all hosts.
func (l *Lab) serve(ctx context.Context) error {
	for _, m := range l.spec.machines() {
		if len(m.ports) == 0 {
			continue
		}
		s := newServer(m.Answer)
		l.servers = append(l.servers, s)
		for _, a := range m.addresses {
			for _, p := range m.ports {
				if err := l.listen(ctx, s, l.topology.hosts[m.Who()], netip.AddrPortFrom(a, p.Port), p); err != nil {
					return fmt.Errorf("server of %s: %w", m.Who(), err)
				}
			}
		}
	}
	return nil
}

// listen serves an address of the server's host.
func (s *server) listen(ctx context.Context, ns *netns.Namespace, at netip.AddrPort, p decision.Protocol) error {
	if p == decision.UDP {
		c, err := ns.ListenPacket(ctx, at)
		if err == nil {
			s.serveUDP(c)
		}
		return err
	}
	l, err := ns.Listen(ctx, at)
	if err == nil {
		s.serveTCP(l)
	}
	return err
}

// startDaemons starts those of all nodes at once.
func (l *Lab) startDaemons(ctx context.Context) error {
	errs := make([]error, len(l.spec.Nodes))
	var wg sync.WaitGroup
	for i := range l.spec.Nodes {
		wg.Go(func() { errs[i] = l.StartDaemon(ctx, l.spec.Nodes[i].Name) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// command is the command line of a node's daemon. File descriptor 3 is the one on which it
// reports readiness.
func (l *Lab) command(d *daemon) *exec.Cmd {
	args := []string{"run", "--hostname-override", d.node, "--flow-log", "-", "--flow-log-steps", "--ready-fd", "3",
		"--flow-api", "unix:" + d.socket, "--flow-api-token-file", l.tokenFile(), "--flow-api-holds"}
	if len(l.spec.ClusterCIDRs) > 0 {
		args = append(args, "--cluster-cidr", joined(l.spec.ClusterCIDRs, ","))
	}
	for _, o := range l.options.Objects {
		args = append(args, "--objects", o)
	}
	p := l.spec.Proxy
	if p.Queues > 0 {
		args = append(args, "--queues", strconv.Itoa(int(p.Queues)))
	}
	if p.Seed != nil {
		args = append(args, "--seed", strconv.FormatUint(*p.Seed, 10))
	}
	if p.MasqueradeAll {
		args = append(args, "--masquerade-all")
	}
	if p.NoHairpinMasquerade {
		args = append(args, "--masquerade-hairpin=false")
	}
	if len(p.NodePortAddresses) > 0 {
		args = append(args, "--nodeport-addresses", joined(p.NodePortAddresses, ","))
	}
	executable := l.options.Executable
	if executable == "" {
		// Works even if the file was replaced or removed meanwhile.
		executable = "/proc/self/exe"
	}
	cmd := exec.Command(executable, append(args, l.options.Arguments...)...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), l.options.Env...)
	return cmd
}

// Spec is what the lab was made from: read only.
func (l *Lab) Spec() *Spec { return l.spec }

// Namespace is the network namespace of a host; see [Spec.Resolve] for the names.
func (l *Lab) Namespace(name string) (*netns.Namespace, error) {
	full, err := l.spec.Resolve(name)
	if err != nil {
		return nil, err
	}
	return l.topology.hosts[full], nil
}

// StartDaemon starts a node's daemon, which must not be running, and waits until it is
// ready.
func (l *Lab) StartDaemon(ctx context.Context, node string) error {
	d, err := l.daemon(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("took longer than %s", startTimeout))
	defer cancel()
	if err := d.Start(ctx); err != nil {
		return err
	}
	// Again: only now connection tracking is certainly loaded.
	return setSysctls(d.ns, conntrackAccounting)
}

// StopDaemon stops a node's daemon with SIGTERM and waits. If the daemon does not end, it is
// killed, which is an error.
func (l *Lab) StopDaemon(ctx context.Context, node string) error {
	d, err := l.daemon(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stopTimeout, fmt.Errorf("took longer than %s", stopTimeout))
	defer cancel()
	return d.Stop(ctx)
}

// ReplaceDaemon starts another daemon of a node, which takes over from the running one without a gap,
// and waits until that has ended.
func (l *Lab) ReplaceDaemon(ctx context.Context, node string) error {
	d, err := l.daemon(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("took longer than %s", startTimeout))
	defer cancel()
	return d.Replace(ctx)
}

// KillDaemon ends a node's daemon with SIGKILL and waits.
func (l *Lab) KillDaemon(node string) error {
	d, err := l.daemon(node)
	if err != nil {
		return err
	}
	d.Kill()
	return nil
}

func (l *Lab) daemon(node string) (*daemon, error) {
	if d, ok := l.daemons[node]; ok {
		return d, nil
	}
	var names []string
	for i := range l.spec.Nodes {
		names = append(names, l.spec.Nodes[i].Name)
	}
	return nil, &UnknownHostError{node, names}
}

// Subscribe returns the events of all nodes from now on. The buffer is the number of events
// that may wait; see [Subscription].
func (l *Lab) Subscribe(buffer int) *Subscription { return l.hub.subscribe(buffer) }

// Close stops the lab. It is safe to call Close more than once.
func (l *Lab) Close() error {
	l.close.Do(func() {
		ctx, cancel := context.WithTimeoutCause(context.Background(), stopTimeout, fmt.Errorf("took longer than %s", stopTimeout))
		defer cancel()
		var errs []error
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, d := range l.daemons {
			wg.Go(func() {
				err := d.Close(ctx)
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
		}
		wg.Wait()
		errs = append(errs, l.cluster.close())
		for _, s := range l.servers {
			s.Close()
		}
		l.hub.close()
		l.closeErr = errors.Join(append(errs, l.topology.Close(), os.RemoveAll(l.dir))...)
	})
	return l.closeErr
}
