// Package dns is the DNS server of a lab's cluster: authoritative for cluster.local and the reverse zones, with the
// names of Services, endpoints and Pods as Kubernetes' specification has them
// (github.com/kubernetes/dns/blob/master/docs/specification.md), and a resolver that looks names up as the programs of
// a pod do.
//
// A [Zone] is made of objects and does not change. A [Server] answers queries from the current one. It has no upstream:
// names outside of its zones are refused.
package dns

import (
	"cmp"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// Domain is the domain of the cluster.
const Domain = "cluster.local."

// apexes are the zones of the server.
var apexes = []string{Domain, "in-addr.arpa.", "ip6.arpa."}

// schemaVersion is that of the specification, as CoreDNS has it.
const schemaVersion = "1.1.0"

// Times to live, in seconds: that of records is the one of kubeadm's CoreDNS; that of negative answers is shorter, so
// that a new Service is found soon.
const (
	recordTTL   = 30
	negativeTTL = 5
)

// Zone has the records of a cluster. It does not change.
type Zone struct {
	// names have their records by name, in lower case. A name without records has others below it.
	names map[string][]dns.RR
}

// NewZone makes the records of objects: of Services, of the endpoints in their EndpointSlices, and of Pods.
func NewZone(o *manifest.Objects) *Zone {
	z := &Zone{names: make(map[string][]dns.RR)}
	for _, apex := range apexes {
		z.names[apex] = []dns.RR{soa(apex), &dns.NS{Hdr: header(apex, dns.TypeNS), Ns: nameServer}}
	}
	for _, a := range Servers(o) {
		z.addAddress(nameServer, a)
	}
	z.add(&dns.TXT{Hdr: header("dns-version."+Domain, dns.TypeTXT), Txt: []string{schemaVersion}})
	slicesOf := make(map[string][]*discoveryv1.EndpointSlice)
	for _, s := range o.EndpointSlices {
		name := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
		slicesOf[name] = append(slicesOf[name], s)
	}
	for _, s := range o.Services {
		z.addService(s, slicesOf[s.Namespace+"/"+s.Name])
	}
	for _, p := range o.Pods {
		z.addPod(p)
	}
	return z
}

const nameServer = "ns.dns." + Domain

// Servers are the addresses of the cluster's DNS, as kubelet gives them to pods: the cluster IPs of Service
// kube-system/kube-dns; none: there is no such Service.
func Servers(o *manifest.Objects) []netip.Addr {
	for _, s := range o.Services {
		if s.Namespace == "kube-system" && s.Name == "kube-dns" {
			return clusterIPs(s)
		}
	}
	return nil
}

// clusterIPs are those of a Service; none: it is headless, or has a name only.
func clusterIPs(s *corev1.Service) (all []netip.Addr) {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	list := s.Spec.ClusterIPs
	if len(list) == 0 {
		list = []string{s.Spec.ClusterIP}
	}
	for _, ip := range list {
		if a, err := kubeaddr.Parse(ip); err == nil { // "None" is none
			all = append(all, a)
		}
	}
	return all
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: recordTTL}
}

// soa is the start of authority of a zone. Its serial number is of no use: there are no secondary servers.
func soa(apex string) dns.RR {
	return &dns.SOA{Hdr: header(apex, dns.TypeSOA), Ns: nameServer, Mbox: "hostmaster." + Domain, Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: negativeTTL}
}

// valid reports whether a text can be a name in a message.
func valid(name string) bool {
	_, ok := dns.IsDomainName(name)
	return ok
}

// target is the name that a record points to; the root if it has none.
func target(rr dns.RR) string {
	switch rr := rr.(type) {
	case *dns.CNAME:
		return rr.Target
	case *dns.PTR:
		return rr.Ptr
	case *dns.SRV:
		return rr.Target
	}
	return "."
}

// add adds a record, unless a name in it has no form in DNS.
func (z *Zone) add(rr dns.RR) {
	h := rr.Header()
	h.Name = strings.ToLower(h.Name)
	apex := apexOf(h.Name)
	if apex == "" || !valid(h.Name) || !valid(target(rr)) {
		return
	}
	for _, other := range z.names[h.Name] {
		if dns.IsDuplicate(other, rr) {
			return
		}
	}
	z.names[h.Name] = append(z.names[h.Name], rr)
	// The names above exist, too (RFC 8020).
	for name := h.Name; name != apex; {
		_, name, _ = strings.Cut(name, ".")
		if _, ok := z.names[name]; ok {
			return
		}
		z.names[name] = nil
	}
}

// apexOf is the zone that a name in lower case is in; empty: none.
func apexOf(name string) string {
	for _, apex := range apexes {
		if name == apex || strings.HasSuffix(name, "."+apex) {
			return apex
		}
	}
	return ""
}

func (z *Zone) addAddress(name string, a netip.Addr) {
	if a.Is4() {
		z.add(&dns.A{Hdr: header(name, dns.TypeA), A: a.AsSlice()})
	} else {
		z.add(&dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: a.AsSlice()})
	}
}

func (z *Zone) addPointer(a netip.Addr, name string) {
	if reverse, err := dns.ReverseAddr(a.String()); err == nil {
		z.add(&dns.PTR{Hdr: header(reverse, dns.TypePTR), Ptr: name})
	}
}

func (z *Zone) addPort(name, protocol, service string, number uint16, weight int, target string) {
	if name == "" {
		return
	}
	z.add(&dns.SRV{Hdr: header("_"+name+"._"+strings.ToLower(protocol)+"."+service, dns.TypeSRV), Weight: uint16(weight), Port: number, Target: target})
}

// allWeight is the sum of the weights of the SRV records of a port, as CoreDNS has it.
const allWeight = 100

func (z *Zone) addService(s *corev1.Service, slices []*discoveryv1.EndpointSlice) {
	name := s.Name + "." + s.Namespace + ".svc." + Domain
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		if s.Spec.ExternalName != "" {
			z.add(&dns.CNAME{Hdr: header(name, dns.TypeCNAME), Target: dns.Fqdn(s.Spec.ExternalName)})
		}
		return
	}
	ips := clusterIPs(s)
	for _, a := range ips {
		z.addAddress(name, a)
		z.addPointer(a, name)
	}
	if len(ips) > 0 {
		for _, p := range s.Spec.Ports {
			z.addPort(p.Name, cmp.Or(string(p.Protocol), "TCP"), name, uint16(p.Port), allWeight, name)
		}
	}
	all := endpoints(slices, s.Spec.PublishNotReadyAddresses)
	ports := make(map[discoveryPort]int) // the number of endpoints
	for _, e := range all {
		for _, p := range e.ports {
			ports[p]++
		}
	}
	headless := s.Spec.ClusterIP == corev1.ClusterIPNone
	for _, e := range all {
		host := e.hostname + "." + name
		z.addAddress(host, e.address)
		if !headless {
			continue
		}
		z.addAddress(name, e.address)
		z.addPointer(e.address, host)
		for _, p := range e.ports {
			z.addPort(p.name, p.protocol, name, p.number, max(1, allWeight/ports[p]), host)
		}
	}
}

// endpoint is an endpoint with a name in DNS.
type endpoint struct {
	hostname string
	address  netip.Addr
	ports    []discoveryPort
}

type discoveryPort struct {
	name, protocol string
	number         uint16
}

// endpoints are those of a Service that are ready, or all of them.
func endpoints(slices []*discoveryv1.EndpointSlice, all bool) (list []endpoint) {
	for _, s := range slices {
		var ports []discoveryPort
		for _, p := range s.Ports {
			if p.Port == nil {
				continue
			}
			ports = append(ports, discoveryPort{ptr.Deref(p.Name, ""), string(ptr.Deref(p.Protocol, corev1.ProtocolTCP)), uint16(*p.Port)})
		}
		for _, e := range s.Endpoints {
			if !all && !ptr.Deref(e.Conditions.Ready, true) {
				continue
			}
			for _, ip := range e.Addresses {
				a, err := kubeaddr.Parse(ip)
				if err != nil { // of type FQDN
					continue
				}
				list = append(list, endpoint{cmp.Or(ptr.Deref(e.Hostname, ""), dashed(a)), a, ports})
			}
		}
	}
	return list
}

// dashed is an address as a label.
func dashed(a netip.Addr) string { return strings.NewReplacer(".", "-", ":", "-").Replace(a.String()) }

func (z *Zone) addPod(p *corev1.Pod) {
	if servicetable.PodEnded(p) {
		return
	}
	ips := []string{p.Status.PodIP}
	for _, ip := range p.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	for _, ip := range ips {
		if a, err := kubeaddr.Parse(ip); err == nil {
			z.addAddress(dashed(a)+"."+cmp.Or(p.Namespace, "default")+".pod."+Domain, a)
		}
	}
}
