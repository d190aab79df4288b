package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/control/executable"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/apiserver"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// Options are the options of a lab besides its file.
type Options struct {
	// NoObjects: the daemons do not get the lab's objects. They get others by Arguments.
	NoObjects bool
	// KubeProxy is the program to run on nodes with proxy: kube-proxy; empty: that of KubeProxyVariable, the one that "make peers"
	// builds in the current directory, or the one in PATH.
	KubeProxy string
	// ObserverArguments are further arguments of the daemons that only observe.
	ObserverArguments []string
	// Executable is the path of the daemon; empty: that of [executable.FindDaemon].
	Executable string
	// Env is added to the daemons' environment.
	Env []string
	// Arguments are added to those of the daemons, "-v=4" for example.
	Arguments []string
	// Token is the one of the flow APIs; empty: a random one.
	Token string
	// Teacher teaches a course in the lab, by its flow API; nil: none does.
	Teacher labapi.Teacher
	// NoDaemons leaves the nodes without daemons until StartDaemon.
	NoDaemons bool
}

// Lab is a running lab. Its methods may be called concurrently.
type Lab struct {
	// FlowAPI is set by OpenFlows. Status must not be called before.
	FlowAPI FlowAPIStatus
	// Observer observes all nodes. It is set by OpenFlows, and ends with what that returns.
	Observer observe.Observer

	file *File // with a path
	spec atomic.Pointer[Spec]
	// algorithms are those of the daemons.
	algorithms *balance.Registry
	options    Options
	started    time.Time
	topology   *topology
	servers    servers
	live       *live // nil: the lab did not start
	// api serves the objects to the proxies of the nodes, at a loopback address of each.
	api        apiserver.Server
	lastOwners atomic.Pointer[owners] // of an earlier spec, or of this one
	faults     faults
	daemons    map[string]*daemon
	// observers are those of nodes with another proxy that nfqproxyd observes.
	observers map[string]*daemon
	// dir has the sockets of the daemons' flow APIs; token is their token.
	dir, token string
	cluster    cluster
	hub        hub
	files      atomic.Pointer[FilesStatus] // nil: all is in force
	timeouts   timeouts
	close      sync.Once
	closeErr   error
}

// How long a daemon may take. Both are far more than a daemon needs: after that time it
// hangs.
const (
	startTimeout = time.Minute
	stopTimeout  = 30 * time.Second
)

// Up starts a lab in the namespaces of this process: call it inside [netns.Isolation]. The lab follows its file, and the
// files that it names. On an error Up removes everything. The context is for the start only; the lab runs until Close.
func Up(ctx context.Context, file *File, options Options) (*Lab, error) {
	spec := file.Spec
	l := &Lab{file: file, options: options, started: time.Now(), daemons: make(map[string]*daemon), observers: make(map[string]*daemon), timeouts: defaultTimeouts}
	l.spec.Store(spec)
	var err error
	if options.Executable == "" && slices.ContainsFunc(spec.Nodes, func(n labfile.Node) bool { return n.HasFlowAPI() }) {
		l.options.Executable, err = executable.FindDaemon()
	}
	if err == nil {
		l.algorithms, err = algorithmsOf(spec)
	}
	if err == nil {
		l.topology, err = newTopology(spec)
	}
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w", spec.Name, err)
	}
	l.servers.topology, l.servers.cluster = l.topology, &l.cluster
	l.cluster.now.Store(newClusterState(new(manifest.Objects)))
	if err = l.makeDir(); err == nil {
		err = l.materialize()
	}
	if err == nil {
		err = l.servers.add(ctx, machinesOf(spec)...)
	}
	if err == nil {
		err = l.goLive()
	}
	for i, n := range spec.Nodes {
		// Node names can be too long for a socket's path.
		d := &daemon{node: n.Name, ns: l.topology.find(n.Name).Namespace, hub: &l.hub, socket: filepath.Join(l.dir, fmt.Sprintf("node-%d.sock", i))}
		d.start = func() *exec.Cmd { return l.command(d) }
		if n.HasProgram() && err == nil {
			err = l.serveObjects(ctx, d)
		}
		if n.Proxy == labfile.KubeProxy && err == nil {
			err = l.runKubeProxy(d, &n)
		}
		l.daemons[n.Name] = d
		if n.Observe && err == nil {
			o := &daemon{node: n.Name, what: "the observer", ns: d.ns, hub: &l.hub, socket: filepath.Join(l.dir, fmt.Sprintf("observer-%d.sock", i))}
			o.start = func() *exec.Cmd { return l.observerCommand(o) }
			l.observers[n.Name] = o
			err = l.serveObjects(ctx, o)
		}
	}
	if err == nil && !options.NoDaemons {
		err = l.startDaemons(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lab %s: %w", spec.Name, err), l.Close())
	}
	l.live.followFiles()
	return l, nil
}

// materialize writes the file of a lab that has none, such as a built-in one, to the lab's directory.
func (l *Lab) materialize() error {
	if l.file.Path != "" {
		return nil
	}
	written := *l.file
	written.Path = filepath.Join(l.dir, l.file.Spec.Name+".yaml")
	l.file = &written
	return os.WriteFile(written.Path, written.Data, 0o644)
}

// servers are the built-in servers of the hosts. They are safe for concurrent use.
type servers struct {
	topology *topology
	cluster  *cluster

	mu     sync.Mutex
	byHost map[string]*server
}

// add starts the servers of machines.
func (s *servers) add(ctx context.Context, machines ...machine) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byHost == nil {
		s.byHost = make(map[string]*server)
	}
	for _, m := range machines {
		if len(m.ports) == 0 {
			continue
		}
		new := newServer(m.Answer)
		s.byHost[m.Who()] = new
		for _, a := range m.addresses {
			for _, p := range m.ports {
				if err := s.listen(ctx, new, s.topology.find(m.Who()).Namespace, netip.AddrPortFrom(a, p.Port), p); err != nil {
					return fmt.Errorf("server of %s: %w", m.Who(), err)
				}
			}
		}
	}
	return nil
}

// has reports whether the server of a host runs.
func (s *servers) has(host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byHost[host] != nil
}

// remove ends the server of a host, if it has one.
func (s *servers) remove(host string) {
	s.mu.Lock()
	own := s.byHost[host]
	delete(s.byHost, host)
	s.mu.Unlock()
	if own != nil {
		own.Close()
	}
}

func (s *servers) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, own := range s.byHost {
		own.Close()
	}
}

// startDaemons starts those of all nodes at once.
func (l *Lab) startDaemons(ctx context.Context) error {
	nodes := l.Spec().Nodes
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i := range nodes {
		if nodes[i].HasProgram() {
			wg.Go(func() { errs[i] = l.StartDaemon(ctx, nodes[i].Name) })
		}
	}
	wg.Wait()
	for i := range nodes {
		if nodes[i].Observe && errs[i] == nil {
			wg.Go(func() { errs[i] = l.StartObserver(ctx, nodes[i].Name) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// serveObjects serves the lab's objects to a node's daemon.
func (l *Lab) serveObjects(ctx context.Context, d *daemon) error {
	listener, err := d.ns.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		return err
	}
	return l.api.Serve(listener, d.kubeconfig())
}

// command is the command line of a node's daemon. File descriptor 3 is the one on which it
// reports readiness.
func (l *Lab) command(d *daemon) *exec.Cmd {
	args := append(l.daemonArguments(d), "--flow-api-holds")
	p := l.Spec().Proxy
	if p.Queues > 0 {
		args = append(args, "--queues", strconv.Itoa(int(p.Queues)))
	}
	if p.Seed != nil {
		args = append(args, "--seed", strconv.FormatUint(*p.Seed, 10))
	}
	if p.SecondChance {
		args = append(args, "--second-chance")
	}
	for _, s := range p.Scripts {
		args = append(args, "--balance-script", s)
	}
	if len(p.Shadow) > 0 {
		args = append(args, "--shadow", joined(p.Shadow, ","))
	}
	if p.Balance != "" {
		args = append(args, "--balance", string(p.Balance))
	}
	if p.NoHairpinMasquerade {
		args = append(args, "--masquerade-hairpin=false")
	}
	return l.daemonCommand(append(args, l.options.Arguments...))
}

// observerCommand is the command line of a daemon that observes.
func (l *Lab) observerCommand(d *daemon) *exec.Cmd {
	args := append(l.daemonArguments(d), "--observe", "--accounting", "--healthz-bind-address=", "--metrics-bind-address=")
	return l.daemonCommand(append(args, l.options.ObserverArguments...))
}

// daemonArguments are those of each daemon.
func (l *Lab) daemonArguments(d *daemon) []string {
	args := []string{"--hostname-override", d.node, "--ready-fd", "3", "--flow-api", "unix:" + d.socket,
		"--flow-api-token-file", l.tokenFile()}
	if !l.options.NoObjects {
		args = append(args, apiserver.DaemonFlags(d.kubeconfig())...)
	}
	return append(args, proxyArguments(l.Spec())...)
}

// proxyArguments are those that nfqproxyd and kube-proxy have in common.
func proxyArguments(s *Spec) (args []string) {
	if len(s.ClusterCIDRs) > 0 {
		args = append(args, "--cluster-cidr="+joined(s.ClusterCIDRs, ","))
	}
	if len(s.Proxy.NodePortAddresses) > 0 {
		args = append(args, "--nodeport-addresses="+joined(s.Proxy.NodePortAddresses, ","))
	}
	if s.Proxy.MasqueradeAll {
		args = append(args, "--masquerade-all")
	}
	return args
}

func (l *Lab) daemonCommand(args []string) *exec.Cmd {
	cmd := exec.Command(l.options.Executable, args...)
	cmd.Args[0] = executable.Daemon
	cmd.Env = append(os.Environ(), l.options.Env...)
	return cmd
}

// Spec is what the lab consists of now: read only.
func (l *Lab) Spec() *Spec { return l.spec.Load() }

// Namespace is the network namespace of a host; see [Spec.Resolve] for the names.
func (l *Lab) Namespace(name string) (*netns.Namespace, error) {
	full, err := l.Spec().Resolve(name)
	if err != nil {
		return nil, err
	}
	if h := l.topology.find(full); h != nil {
		return h.Namespace, nil
	}
	return nil, &labfile.UnknownHostError{Name: name, Names: l.Spec().Hosts()} // it has just ended
}

// AddAddresses gives a pod, by its full name, more addresses of its node's range: for programs with many
// addresses of their own. Neither the spec nor DNS has them.
func (l *Lab) AddAddresses(pod string, addresses ...netip.Addr) error {
	return l.topology.addAddresses(pod, addresses)
}

// StartObserver starts the daemon that observes a node, which must not be running, and waits until it does.
func (l *Lab) StartObserver(ctx context.Context, node string) error {
	o := l.observers[node]
	if o == nil {
		return &DaemonError{Node: node, Program: "the observer", Err: errors.New("the lab file has no observe: true for the node")}
	}
	return l.startTimely(ctx, o)
}

// StopObserver stops it.
func (l *Lab) StopObserver(ctx context.Context, node string) error {
	return l.observers[node].Stop(ctx)
}

// startTimely starts a daemon, and waits until it is ready, but not for ever.
func (l *Lab) startTimely(ctx context.Context, d *daemon) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("took longer than %s", startTimeout))
	defer cancel()
	return d.Start(ctx)
}

// StartDaemon starts a node's daemon, which must not be running, and waits until it is
// ready.
func (l *Lab) StartDaemon(ctx context.Context, node string) error {
	d, err := l.daemon(node)
	if err != nil {
		return err
	}
	if n := l.Spec().Node(node); !n.HasProgram() {
		return &DaemonError{Node: node, Err: fmt.Errorf("the node has %s instead", n.Proxy)}
	}
	if err := l.startTimely(ctx, d); err != nil {
		return err
	}
	// Again: only now is connection tracking certainly loaded.
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
	if n := l.Spec().Node(node); !n.HasDaemon() {
		return &DaemonError{Node: node, Err: fmt.Errorf("the node has %s instead", n.Proxy)}
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
	for _, n := range l.Spec().Nodes {
		names = append(names, n.Name)
	}
	return nil, &labfile.UnknownHostError{Name: node, Names: names}
}

// Subscribe returns the events of all nodes from now on. The buffer is the number of events
// that may wait; see [Subscription].
func (l *Lab) Subscribe(buffer int) *Subscription { return l.hub.subscribe(buffer) }

// Close stops the lab. It is safe to call Close more than once.
func (l *Lab) Close() error {
	l.close.Do(func() {
		if l.live != nil {
			l.live.close()
		}
		ctx, cancel := context.WithTimeoutCause(context.Background(), stopTimeout, fmt.Errorf("took longer than %s", stopTimeout))
		defer cancel()
		var errs []error
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, d := range slices.AppendSeq(slices.Collect(maps.Values(l.daemons)), maps.Values(l.observers)) {
			wg.Go(func() {
				err := d.Close(ctx)
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
		}
		wg.Wait()
		errs = append(errs, l.api.Close())
		l.servers.Close()
		l.hub.close()
		l.closeErr = errors.Join(append(errs, l.topology.Close(), os.RemoveAll(l.dir))...)
	})
	return l.closeErr
}
