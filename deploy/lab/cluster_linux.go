package lab

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/lab/dns"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// cluster is what a lab has of its objects, for its DNS and for the identities of its hosts.
type cluster struct {
	now atomic.Pointer[clusterState] // never nil
}

// clusterState is what the lab has of its objects. It does not change.
type clusterState struct {
	zone     *dns.Zone
	servers  []netip.Addr // of the DNS, for pods
	services []*decision.ServicePort
	pods     map[string]*corev1.Pod // by full name
}

func newClusterState(o *manifest.Objects) *clusterState {
	c := &clusterState{zone: dns.NewZone(o), servers: dns.Servers(o), pods: make(map[string]*corev1.Pod)}
	c.services, _ = servicetable.Build(&o.Objects, servicetable.NodeConfig{})
	for _, p := range o.Pods {
		c.pods[p.Namespace+"/"+p.Name] = p
	}
	return c
}

// identify gives all hosts of a spec their hostnames and files.
func (l *Lab) identify(spec *Spec) error {
	state := l.cluster.now.Load()
	var errs []error
	set := func(name string, i netns.Identity) {
		if h := l.topology.find(name); h != nil { // otherwise it has just ended
			errs = append(errs, h.SetIdentity(i))
		}
	}
	for i := range spec.Pods {
		p := &spec.Pods[i]
		set(p.FullName(), podIdentity(p, state.pods[p.FullName()], state.servers))
	}
	set(labfile.Router, machineIdentity(spec, labfile.Router))
	for i := range spec.Nodes {
		set(spec.Nodes[i].Name, machineIdentity(spec, spec.Nodes[i].Name))
	}
	for i := range spec.Clients {
		set(spec.Clients[i].Name, machineIdentity(spec, spec.Clients[i].Name))
	}
	return errors.Join(errs...)
}

// listen serves an address of the server's host.
func (s *servers) listen(ctx context.Context, own *server, ns *netns.Namespace, at netip.AddrPort, p Port) error {
	names := p.Server == labapi.DNSServer
	if names && own.names == nil {
		own.names = dns.NewServer(func() *dns.Zone { return s.cluster.now.Load().zone }, func(client, local net.Addr) []byte {
			return bytes.TrimSpace(own.identity.line(client, local))
		})
	}
	if p.Protocol == decision.UDP {
		c, err := ns.ListenPacket(ctx, at)
		if err != nil {
			return err
		}
		if names {
			return own.names.ServePacket(c)
		}
		own.serveUDP(c)
		return nil
	}
	listener, err := ns.Listen(ctx, at)
	if err != nil {
		return err
	}
	if names {
		return own.names.Serve(listener)
	}
	own.serveTCP(listener)
	return nil
}

// serverAt is the kind of the servers behind an address and port: of a host, or of a Service's endpoints.
func (l *Lab) serverAt(to netip.AddrPort, protocol decision.Protocol) labapi.Server {
	if kind, ok := serverOf(l.Spec(), to, protocol); ok {
		return kind
	}
	for _, svc := range l.cluster.now.Load().services {
		if svc.Protocol != protocol || !reaches(l.Spec(), svc, to) {
			continue
		}
		for _, e := range svc.Endpoints {
			if kind, ok := serverOf(l.Spec(), e.AddrPort, protocol); ok {
				return kind
			}
		}
	}
	return labapi.AnswerServer
}

// serverOf is the kind of the server of a host; false: none listens there.
func serverOf(s *Spec, at netip.AddrPort, protocol decision.Protocol) (labapi.Server, bool) {
	for _, m := range machinesOf(s) {
		if slices.Contains(m.addresses, at.Addr()) {
			if i := labfile.PortAt(m.ports, at.Port(), protocol); i >= 0 {
				return m.ports[i].Server, true
			}
		}
	}
	return labapi.AnswerServer, false
}

// reaches reports whether an address and port are those of a service port.
func reaches(s *Spec, svc *decision.ServicePort, to netip.AddrPort) bool {
	if to.Port() == svc.Port && (to.Addr() == svc.ClusterIP || slices.Contains(svc.ExternalIPs, to.Addr()) || slices.Contains(svc.LoadBalancerIPs, to.Addr())) {
		return true
	}
	return svc.NodePort != 0 && to.Port() == svc.NodePort && slices.ContainsFunc(s.Nodes, func(n Node) bool { return slices.Contains(n.Addresses, to.Addr()) })
}
