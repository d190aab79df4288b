package health

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// The methods of ServiceServer in this file are called with mu held, those of the
// goroutines they start aside.

// closeExtra closes the service's port where it is not to be open: on addresses that
// are not in the list, or of a family that is not the service's.
func (s *ServiceServer) closeExtra(c *service, addresses []netip.Addr) {
	for a, b := range c.bound {
		if c.local[decision.FamilyOf(a)] != nil && slices.Contains(addresses, a) {
			continue
		}
		delete(c.bound, a)
		delete(s.failing, place{c.name, a})
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
			s.open(place{c.name, a})
		}
	}
}

func (s *ServiceServer) openFailing() {
	for p := range s.failing {
		s.open(p)
	}
}

// open binds the service's port on the address and serves it.
func (s *ServiceServer) open(p place) {
	c := s.services[p.service]
	address := netip.AddrPortFrom(p.address, c.port)
	network := "tcp4"
	if p.address.Is6() {
		network = "tcp6"
	}
	l, err := s.listen(network, address.String())
	if errors.Is(err, syscall.EAFNOSUPPORT) && p.address.IsUnspecified() {
		return // all addresses of a family that the node does not have
	}
	if err != nil {
		s.fail(p, err)
		return
	}
	if _, failed := s.failing[p]; failed {
		delete(s.failing, p)
		s.config.Report(p.service, address, nil)
	}
	b := &binding{l, newHTTPServer(s.handler(p.service, c.local[decision.FamilyOf(p.address)]), s.config.Log)}
	c.bound[p.address] = b
	s.running.Go(func() {
		err := b.server.Serve(limit.Listen(l, s.config.Connections, limit.Text))
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.bound[p.address] == b { // it was not closed by us
			b.close()
			s.fail(p, err)
		}
	})
}

// fail notes and reports what could not be bound.
func (s *ServiceServer) fail(p place, err error) {
	c := s.services[p.service]
	c.bound[p.address] = nil
	if _, known := s.failing[p]; !known {
		s.failing[p] = struct{}{}
		s.config.Report(p.service, netip.AddrPortFrom(p.address, c.port), err)
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
