package lab

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"text/tabwriter"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// isServed reports whether a service port has endpoints, and all of them are pods of the lab
// with servers that answer there.
func isServed(s *Spec, svc *decision.ServicePort) bool {
	return isServedBy(s, svc, labapi.AnswerServer)
}

// isServedBy is isServed for a kind of server.
func isServedBy(s *Spec, svc *decision.ServicePort, kind labapi.Server) bool {
	for _, e := range svc.UsableEndpoints(decision.Cluster) {
		p := s.PodAt(e.AddrPort.Addr())
		if p == nil {
			return false
		}
		if i := labfile.PortAt(p.Ports, e.AddrPort.Port(), svc.Protocol); i < 0 || p.Ports[i].Server != kind {
			return false
		}
	}
	return len(svc.UsableEndpoints(decision.Cluster)) > 0
}

// isEndpoint reports whether a pod is an endpoint of a service port.
func isEndpoint(svc *decision.ServicePort, p *Pod) bool {
	return slices.ContainsFunc(svc.UsableEndpoints(decision.Cluster), func(e decision.Endpoint) bool { return slices.Contains(p.Addresses, e.AddrPort.Addr()) })
}

// spreadOf is the number of nodes the endpoints of a service port are on.
func spreadOf(s *Spec, svc *decision.ServicePort) int {
	nodes := make(map[string]bool)
	for _, e := range svc.UsableEndpoints(decision.Cluster) {
		if p := s.PodAt(e.AddrPort.Addr()); p != nil {
			nodes[p.Node] = true
		}
	}
	return len(nodes)
}

// bestService finds the suitable service port with endpoints on most nodes; nil: none is
// suitable.
func bestService(s *Spec, services []*decision.ServicePort, suits func(*decision.ServicePort) bool) *decision.ServicePort {
	var best *decision.ServicePort
	for _, svc := range services {
		if suits(svc) && (best == nil || spreadOf(s, svc) > spreadOf(s, best)) {
			best = svc
		}
	}
	return best
}

// clientOf finds a pod to connect to a service port from: not an endpoint of it, on a suitable node, preferably one that
// serves nothing itself; nil: there is none.
func clientOf(s *Spec, svc *decision.ServicePort, suits func(*Node) bool) *Pod {
	var found *Pod
	for i := range s.Pods {
		p := &s.Pods[i]
		if _, ok := decision.AddressOf(p.Addresses, svc.Family); !ok || isEndpoint(svc, p) || !suits(s.Node(p.Node)) {
			continue
		}
		if found == nil || len(p.Ports) < len(found.Ports) {
			found = p
		}
	}
	return found
}

// outsiderOf finds a client without routes to pods; nil: there is none.
func outsiderOf(s *Spec, f decision.Family) *Client {
	for i := range s.Clients {
		if _, ok := decision.AddressOf(s.Clients[i].Addresses, f); ok && !s.Clients[i].RoutesToPods {
			return &s.Clients[i]
		}
	}
	return nil
}

// nodePortTarget finds a suitable node to connect to a node port of: preferably one without endpoints of
// the service. The address is the zero Addr if no node opens node ports.
func nodePortTarget(s *Spec, svc *decision.ServicePort, suits func(*Node) bool) (*Node, netip.Addr) {
	var found *Node
	var at netip.Addr
	for i := range s.Nodes {
		n := &s.Nodes[i]
		a, ok := decision.AddressOf(n.Addresses, svc.Family)
		if !ok || !suits(n) || !decision.ServesNodePorts(a, s.Proxy.NodePortAddresses) {
			continue
		}
		has := slices.ContainsFunc(svc.UsableEndpoints(decision.Cluster), func(e decision.Endpoint) bool {
			p := s.PodAt(e.AddrPort.Addr())
			return p != nil && p.Node == n.Name
		})
		if !has {
			return n, a
		}
		found, at = n, a
	}
	return found, at
}

// writeMap writes the hosts and services of a lab.
func writeMap(w io.Writer, s *Spec, services []*decision.ServicePort) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tADDRESS\tPODS")
	for _, n := range s.Nodes {
		var pods []string
		for _, p := range s.Pods {
			if p.Node == n.Name {
				pods = append(pods, p.Name+" "+texts(p.Addresses))
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", n.Name, texts(n.Addresses), nearest.Some(pods))
	}
	for _, c := range s.Clients {
		fmt.Fprintf(t, "%s\t%s\t(outside)\n", c.Name, texts(c.Addresses))
	}
	fmt.Fprintln(t, "\nSERVICE\tADDRESS\tENDPOINTS")
	for _, svc := range services {
		at := fmt.Sprintf("%s/%s", netip.AddrPortFrom(svc.ClusterIP, svc.Port), svc.Protocol)
		if svc.NodePort != 0 {
			at += fmt.Sprintf(", node port %d", svc.NodePort)
		}
		var endpoints []string
		for _, e := range svc.UsableEndpoints(decision.Cluster) {
			endpoints = append(endpoints, e.AddrPort.String())
		}
		if len(endpoints) == 0 {
			endpoints = []string{"none"}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", svc.Name, at, nearest.Some(endpoints))
	}
	if err := t.Flush(); err != nil || !s.Proxy.NoHairpinMasquerade {
		return err
	}
	_, err := fmt.Fprintln(w, "\nHairpin flows are not masqueraded: a pod that reaches itself through a Service gets no reply.")
	return err
}

// hasDNS reports whether pods of the lab find names in DNS.
func hasDNS(s *Spec, services []*decision.ServicePort) bool {
	return slices.ContainsFunc(services, func(svc *decision.ServicePort) bool {
		return svc.Name.Service() == labfile.ClusterDNS && isServedBy(s, svc, labapi.DNSServer)
	})
}

// urlHost is the host of a URL for a service port, by the name that a pod finds it by.
func urlHost(svc *decision.ServicePort, from *Pod) string {
	host := svc.Name.Name
	if svc.Name.Namespace != from.Namespace {
		host += "." + svc.Name.Namespace
	}
	if svc.Port == 80 {
		return host
	}
	return fmt.Sprintf("%s:%d", host, svc.Port)
}

// suggestions are example commands for another terminal, with the lab's own names
// and addresses.
func suggestions(s *Spec, services []*decision.ServicePort) []string {
	var lines []string
	tcp := func(svc *decision.ServicePort) bool { return svc.Protocol == decision.TCP && isServed(s, svc) }
	if svc := bestService(s, services, tcp); svc != nil {
		if p := clientOf(s, svc, (*Node).HasFlowAPI); p != nil {
			name := p.Name
			if _, err := s.Resolve(name); err != nil {
				name = p.FullName() // of several of that name
			}
			if hasDNS(s, services) {
				lines = append(lines, fmt.Sprintf(program()+" lab ask %s http://%s/", name, urlHost(svc, p)))
			}
			lines = append(lines, fmt.Sprintf(program()+" lab exec %s -- curl -s http://%s/", name, netip.AddrPortFrom(svc.ClusterIP, svc.Port)))
		}
	}
	if svc := bestService(s, services, func(svc *decision.ServicePort) bool { return tcp(svc) && svc.NodePort != 0 }); svc != nil {
		if c := outsiderOf(s, svc.Family); c != nil {
			if _, at := nodePortTarget(s, svc, (*Node).HasFlowAPI); at.IsValid() {
				lines = append(lines, fmt.Sprintf(program()+" lab exec %s -- curl -s http://%s/", c.Name, netip.AddrPortFrom(at, svc.NodePort)))
			}
		}
	}
	return append(lines, fmt.Sprintf(program()+" lab exec %s -- conntrack -L", s.Nodes[0].Name))
}
