package health

import (
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Service is the health check of a Service with externalTrafficPolicy Local.
type Service struct {
	Port uint16 // spec.healthCheckNodePort; 0: none
	// LocalEndpoints has an entry for each address family of the Service: how many
	// distinct IPs its ready endpoints on this node have, over all its ports. Terminating
	// ones do not count, even if they still serve. The port is open in these families
	// only, and each answers with its own number.
	LocalEndpoints map[decision.Family]int
}

// ServiceServerConfig configures a ServiceServer. All fields must be set.
type ServiceServerConfig struct {
	// Healthy reports whether the proxy is; see [Proxy.Healthy].
	Healthy func() bool
	// Report is called when a port cannot be bound: once, however often it is retried,
	// and with a nil error when it could be bound after all. Calls do not overlap. It
	// must neither block nor call the ServiceServer.
	Report func(service types.NamespacedName, address netip.AddrPort, err error)
	// Connections bounds how many there are at a time, of all ports together; see [CheckConnections].
	Connections *limit.Quota
	Log         *slog.Logger
}

// ServiceServer serves the health check node ports. A port that cannot be bound on an
// address is tried again every [RebindInterval]; all others are served meanwhile. It is
// safe for concurrent use.
type ServiceServer struct {
	config  ServiceServerConfig
	listen  func(network, address string) (net.Listener, error)
	done    chan struct{}
	running sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	addresses []netip.Addr // sorted, each once
	services  map[types.NamespacedName]*service
}

// service is a Service that has a port.
type service struct {
	name  types.NamespacedName
	port  uint16
	local map[decision.Family]*atomic.Int64 // endpoints
	bound map[netip.Addr]*binding           // nil: the port could not be bound there
}

// binding is a port that is open on one address.
type binding struct {
	listener net.Listener
	server   *http.Server
}

// NewServiceServer returns a ServiceServer without services and addresses. It has to be closed.
func NewServiceServer(config ServiceServerConfig) *ServiceServer {
	return newServiceServer(config, net.Listen)
}

func newServiceServer(config ServiceServerConfig, listen func(network, address string) (net.Listener, error)) *ServiceServer {
	s := &ServiceServer{config: config, listen: listen, done: make(chan struct{}), services: make(map[types.NamespacedName]*service)}
	s.running.Go(s.retry)
	return s
}

func normal(addresses []netip.Addr) []netip.Addr {
	list := make([]netip.Addr, 0, len(addresses))
	for _, a := range addresses {
		list = append(list, a.Unmap())
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// Update takes changes: a Service is added or replaced, or removed if it is nil or has no
// port. Others stay as they are. Ports are open when it returns, save those reported.
func (s *ServiceServer) Update(changes map[types.NamespacedName]*Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	// All that is to go goes first: one Service may get what another had.
	changed := make([]*service, 0, len(changes))
	for name, c := range changes {
		have := s.services[name]
		if c == nil || c.Port == 0 {
			if have != nil {
				s.closeExtra(have, nil)
				delete(s.services, name)
			}
			continue
		}
		if have == nil {
			have = &service{name: name, local: make(map[decision.Family]*atomic.Int64), bound: make(map[netip.Addr]*binding)}
			s.services[name] = have
		}
		if have.port != c.Port {
			s.closeExtra(have, nil)
			have.port = c.Port
		}
		have.setLocal(c.LocalEndpoints)
		s.closeExtra(have, s.addresses)
		changed = append(changed, have)
	}
	for _, c := range changed {
		s.openMissing(c)
	}
}

// SetAddresses sets the node's addresses on which the ports are open; 0.0.0.0 and ::
// stand for all of their family, and an empty list for none. See [ListenAddresses].
func (s *ServiceServer) SetAddresses(addresses []netip.Addr) {
	addresses = normal(addresses)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || slices.Equal(addresses, s.addresses) {
		return
	}
	s.addresses = addresses
	for _, c := range s.services {
		s.closeExtra(c, addresses)
	}
	for _, c := range s.services {
		s.openMissing(c)
	}
}

// Close closes all ports and waits until none is served.
func (s *ServiceServer) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
		for _, c := range s.services {
			s.closeExtra(c, nil)
		}
	}
	s.mu.Unlock()
	s.running.Wait()
}

// retry tries again what failed, until Close.
func (s *ServiceServer) retry() {
	tick := time.NewTicker(RebindInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
			s.mu.Lock()
			for _, c := range s.services {
				for a, b := range c.bound {
					if b == nil && !s.closed {
						s.open(c, a)
					}
				}
			}
			s.mu.Unlock()
		}
	}
}

// setLocal takes the numbers of endpoints over, and with them the families.
func (c *service) setLocal(endpoints map[decision.Family]int) {
	maps.DeleteFunc(c.local, func(f decision.Family, _ *atomic.Int64) bool {
		_, ok := endpoints[f]
		return !ok
	})
	for f, n := range endpoints {
		if c.local[f] == nil {
			c.local[f] = new(atomic.Int64)
		}
		c.local[f].Store(int64(n))
	}
}

// The following methods of ServiceServer are called with mu held, those of the
// goroutines they start aside.

// closeExtra closes the service's port where it is not to be open: on addresses that
// are not in the list, or of a family that is not the service's.
func (s *ServiceServer) closeExtra(c *service, addresses []netip.Addr) {
	for a, b := range c.bound {
		if c.local[decision.FamilyOf(a)] != nil && slices.Contains(addresses, a) {
			continue
		}
		delete(c.bound, a)
		if b != nil {
			b.close()
		}
	}
}

// close frees the port. The listener goes by itself: until Serve was called, the
// server does not know it.
func (b *binding) close() {
	_ = b.listener.Close()
	_ = b.server.Close()
}

// openMissing opens the service's port where it is to be open and is not.
func (s *ServiceServer) openMissing(c *service) {
	for _, a := range s.addresses {
		if _, tried := c.bound[a]; !tried && c.local[decision.FamilyOf(a)] != nil {
			s.open(c, a)
		}
	}
}

// open binds the service's port on the address and serves it.
func (s *ServiceServer) open(c *service, a netip.Addr) {
	address := netip.AddrPortFrom(a, c.port)
	network := "tcp4"
	if a.Is6() {
		network = "tcp6"
	}
	l, err := s.listen(network, address.String())
	if errors.Is(err, syscall.EAFNOSUPPORT) && a.IsUnspecified() {
		return // all addresses of a family that the node does not have
	}
	if err != nil {
		s.fail(c, address, err)
		return
	}
	if c.failed(a) {
		s.config.Report(c.name, address, nil)
	}
	b := &binding{l, newHTTPServer(s.handler(c.name, c.local[decision.FamilyOf(a)]), s.config.Log)}
	c.bound[a] = b
	s.running.Go(func() {
		err := b.server.Serve(limit.Listen(l, s.config.Connections, limit.Text))
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.bound[a] == b { // it was not closed by us
			b.close()
			s.fail(c, address, err)
		}
	})
}

// failed reports whether the port could not be bound on the address.
func (c *service) failed(a netip.Addr) bool {
	b, tried := c.bound[a]
	return tried && b == nil
}

// fail notes and reports what could not be bound.
func (s *ServiceServer) fail(c *service, address netip.AddrPort, err error) {
	if !c.failed(address.Addr()) {
		c.bound[address.Addr()] = nil
		s.config.Report(c.name, address, err)
	}
}

// serviceAnswer is the body of a health check (kube-proxy: hcHandler).
type serviceAnswer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int64 `json:"localEndpoints"`
	ServiceProxyHealthy bool  `json:"serviceProxyHealthy"`
}

// handler answers on any path: 200 if there are endpoints here and the proxy works, else
// 503.
func (s *ServiceServer) handler(name types.NamespacedName, endpoints *atomic.Int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		a := serviceAnswer{LocalEndpoints: endpoints.Load(), ServiceProxyHealthy: s.config.Healthy()}
		a.Service.Namespace, a.Service.Name = name.Namespace, name.Name
		code := http.StatusServiceUnavailable
		if a.LocalEndpoints != 0 && a.ServiceProxyHealthy {
			code = http.StatusOK
		}
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(a.LocalEndpoints, 10))
		writeJSON(w, code, &a, "\t")
	})
}

// Changes returns the argument of [ServiceServer.Update] for the change from one table to the next;
// nil: there was none.
func Changes(t, since *decision.Table) map[types.NamespacedName]*Service {
	changes := make(map[types.NamespacedName]*Service)
	t.ChangedServices(since, func(name decision.ServiceName, before, after []*decision.ServicePort) {
		// Among the Services there may be some that are the same as before.
		if old, service := serviceOf(before), serviceOf(after); !old.equal(service) {
			changes[types.NamespacedName(name)] = service
		}
	})
	return changes
}

// equal reports whether the health checks are the same.
func (s *Service) equal(other *Service) bool {
	if s == nil || other == nil {
		return s == other
	}
	return s.Port == other.Port && maps.Equal(s.LocalEndpoints, other.LocalEndpoints)
}

// serviceOf sums up the service ports of a Service; nil: it has no
// health check.
func serviceOf(ports []*decision.ServicePort) *Service {
	var service *Service
	addresses := make(map[netip.Addr]bool)
	for _, p := range ports {
		if p.HealthCheckNodePort == 0 {
			continue
		}
		if service == nil {
			service = &Service{Port: p.HealthCheckNodePort, LocalEndpoints: make(map[decision.Family]int)}
		}
		service.LocalEndpoints[p.Family] += 0 // there is an entry even without endpoints
		for i := range p.Endpoints {
			e := &p.Endpoints[i]
			a := e.AddrPort.Addr()
			if e.Local && e.Ready && decision.FamilyOf(a) == p.Family && !addresses[a] {
				addresses[a] = true
				service.LocalEndpoints[p.Family]++
			}
		}
	}
	return service
}

// ListenAddresses returns the listen addresses of health check node ports: the addresses that node
// ports are restricted to, loopback ones included, or all of a family, as its unspecified address
// (kube-proxy: NodePortAddresses).
func ListenAddresses(t *decision.Table) []netip.Addr {
	var list []netip.Addr
	for f, all := range map[decision.Family]netip.Addr{decision.IPv4: netip.IPv4Unspecified(), decision.IPv6: netip.IPv6Unspecified()} {
		if t.AllNodePortAddresses(f) {
			list = append(list, all)
			continue
		}
		for _, a := range append(t.NodePortAddresses(), loopbacks...) {
			// Binding a link-local address requires its interface, which is not known here.
			if decision.FamilyOf(a) == f && !(a.Is6() && a.IsLinkLocalUnicast()) && slices.ContainsFunc(t.Node().NodePortAddresses, func(p netip.Prefix) bool { return p.Contains(a) }) {
				list = append(list, a)
			}
		}
	}
	return normal(list)
}

var loopbacks = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
