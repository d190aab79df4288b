package health

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
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

// ServiceServerConfig configures a ServiceServer. All fields but Addresses and Connections must be set.
type ServiceServerConfig struct {
	// Addresses are where the ports are open at first; see [ServiceServer.SetAddresses].
	Addresses []netip.Addr
	// Healthy reports whether the proxy is; see [Proxy.Healthy].
	Healthy func() bool
	// Report is called when a port cannot be bound: once, however often it is retried,
	// and with a nil error when it could be bound after all. Calls do not overlap. It
	// must neither block nor call the ServiceServer.
	Report func(service types.NamespacedName, address netip.AddrPort, err error)
	// Connections bounds how many there are at a time, of all ports together; nil: as many as
	// [CheckConnections].
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
	failing   map[place]struct{} // where a binding is nil
}

// place is an address that a service is to be served on.
type place struct {
	service types.NamespacedName
	address netip.Addr
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

// NewServiceServer returns a ServiceServer without services. It has to be closed.
func NewServiceServer(config ServiceServerConfig) *ServiceServer {
	return newServiceServer(config, net.Listen)
}

func newServiceServer(config ServiceServerConfig, listen func(network, address string) (net.Listener, error)) *ServiceServer {
	if config.Connections == nil {
		config.Connections = new(limit.Set).Connections("health check node ports", CheckConnections)
	}
	s := &ServiceServer{
		config: config, listen: listen, done: make(chan struct{}), addresses: normal(config.Addresses),
		services: make(map[types.NamespacedName]*service), failing: make(map[place]struct{}),
	}
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
			if !s.closed {
				s.openFailing()
			}
			s.mu.Unlock()
		}
	}
}

// setLocal takes the numbers of endpoints over, and with them the families.
func (c *service) setLocal(endpoints map[decision.Family]int) {
	for f := range c.local {
		if _, ok := endpoints[f]; !ok {
			delete(c.local, f)
		}
	}
	for f, n := range endpoints {
		if c.local[f] == nil {
			c.local[f] = new(atomic.Int64)
		}
		c.local[f].Store(int64(n))
	}
}
