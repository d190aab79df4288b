package diagnose

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nfqproxy/nfqproxy/control/controllers"
	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/distinct"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// This file has findings about what people write by hand.

// isUnsubmitted reports whether a Service was written without what an API server adds: it is not in a cluster yet.
func (c *Cluster) isUnsubmitted(svc *corev1.Service) bool {
	return c.objects.Made != nil && c.objects.Made.Services[svc]
}

// badExternalName is the finding of an ExternalName that DNS cannot follow; nil: there is none.
func (c *Cluster) badExternalName(svc *corev1.Service) *Finding {
	if svc.Spec.Type != corev1.ServiceTypeExternalName {
		return nil
	}
	f := &Finding{Code: NoDNSName, Object: objectOf(svc), Field: "spec.externalName"}
	external := strings.TrimSuffix(svc.Spec.ExternalName, ".")
	parts := strings.Split(strings.ToLower(external), ".")
	_, noAddress := kubeaddr.Parse(kubeaddr.Unbracket(external))
	switch last := len(parts) - 1; {
	case external == "":
		f.Text = fmt.Sprintf("%s is of type ExternalName and has no externalName: the API server rejects it", objectOf(svc))
		f.Do = "write the DNS name of the host into spec.externalName"
	case noAddress == nil:
		f.Text = fmt.Sprintf("the externalName of %s is the address %s: DNS treats it as a name, which no server resolves, so clients get no address", objectOf(svc), external)
		f.Do = "use a Service without selector or type, and an EndpointSlice with the address; or a DNS name that resolves to it"
	case len(validation.IsDNS1123Subdomain(external)) > 0:
		f.Text = fmt.Sprintf("the externalName %q of %s is not a DNS name: the API server rejects it", external, objectOf(svc))
		f.Do = "write only a DNS name, without protocol, port or path"
	case last == 0 || last == 2 && parts[2] == "svc" || last == 1 && c.services[name{Namespace: parts[1], Name: parts[0]}] != nil:
		f.Text = fmt.Sprintf("the externalName %s of %s is not a whole name: DNS takes it for one, and does not try the domains in which Pods search", external, objectOf(svc))
		f.Do = "write the whole name; that of a Service is NAME.NAMESPACE.svc.DOMAIN, as web.default.svc.cluster.local"
	case last > 2 && parts[0] == svc.Name && parts[1] == svc.Namespace && parts[2] == "svc":
		f.Text = fmt.Sprintf("the externalName of %s is its own name, which DNS never resolves to an address", objectOf(svc))
		f.Do = "write the name of another host, or use a Service with a selector"
	default:
		return nil
	}
	return f
}

// furtherAddresses finds endpoints with several addresses.
func (e *examination) furtherAddresses(svc *corev1.Service) {
	for _, s := range e.slices[nameOf(svc)] {
		var ignored []string
		for i := range s.Endpoints {
			if a := s.Endpoints[i].Addresses; len(a) > 1 {
				ignored = append(ignored, a[1:]...)
			}
		}
		if len(ignored) > 0 {
			e.add(Finding{
				Code: FurtherAddresses, Object: "EndpointSlice " + s.Namespace + "/" + s.Name, Field: "endpoints",
				Text: fmt.Sprintf("endpoints of %s have several addresses, but only the first counts; kube-proxy and nfqproxy ignore %s", objectOf(svc), nearest.Few(ignored)),
				Do:   "write a separate endpoint for each address",
			})
		}
	}
}

// headlessAddress is the finding of a headless Service that is to have addresses all the same; nil: there is none.
func headlessAddress(svc *corev1.Service) *Finding {
	f := &Finding{Code: HeadlessAddress, Object: objectOf(svc), Do: "remove clusterIP: None, so that the Service gets a cluster IP"}
	switch {
	case svc.Spec.ClusterIP != corev1.ClusterIPNone:
		return nil
	case svc.Spec.Type == corev1.ServiceTypeNodePort, svc.Spec.Type == corev1.ServiceTypeLoadBalancer:
		f.Field, f.Text = "spec.type", fmt.Sprintf("%s is headless (clusterIP: None) and of type %s: the API server rejects this, because no proxy serves a headless Service", objectOf(svc), svc.Spec.Type)
		return f
	case len(svc.Spec.ExternalIPs) > 0:
		f.Field, f.Text = "spec.externalIPs", fmt.Sprintf("%s is headless (clusterIP: None): no proxy serves its externalIPs %s", objectOf(svc), nearest.Few(svc.Spec.ExternalIPs))
		return f
	}
	return nil
}

// The usual --service-node-port-range of API servers.
const (
	firstNodePort = 30000
	lastNodePort  = 32767
)

// nodePortRange finds node ports that an API server refuses with its usual --service-node-port-range.
func (e *examination) nodePortRange(svc *corev1.Service) {
	for i := range svc.Spec.Ports {
		if p := svc.Spec.Ports[i].NodePort; p != 0 && (p < firstNodePort || p > lastNodePort) && e.isUnsubmitted(svc) {
			e.add(Finding{
				Code: NodePortRange, Object: objectOf(svc), Field: "spec.ports",
				Text: fmt.Sprintf("node port %d of %s is not in the range %d to %d: the API server rejects the Service, unless its --service-node-port-range includes the port", p, objectOf(svc), firstNodePort, lastNodePort),
				Do:   fmt.Sprintf("write a nodePort from %d to %d, or leave it out", firstNodePort, lastNodePort),
			})
		}
	}
}

// fewReplicas is the finding of a Service with a policy Local whose templates make Pods for fewer nodes than there are;
// nil: they make enough, or it is not known. A cluster of unknown nodes has more than one.
func (e *examination) fewReplicas(svc *corev1.Service, s *decision.ServicePort, field string) *Finding {
	var of []*manifest.Template
	ready := 0
	for i := range s.Endpoints {
		pod := e.owners[s.Endpoints[i].AddrPort.Addr()]
		if pod == nil || e.templateOf(pod) == nil || e.templateOf(pod).EachNode {
			return nil
		}
		of = distinct.Append(of, e.templateOf(pod))
		ready++
	}
	nodes := len(e.objects.Nodes)
	if ready == 0 || nodes > 0 && ready >= nodes || nodes == 0 && ready > 1 {
		return nil
	}
	among := ""
	if nodes > 0 {
		among = fmt.Sprintf(" for %d nodes", nodes)
	}
	return &Finding{
		Code: FewReplicas, Object: objectOf(svc), Field: "spec." + field,
		Text: fmt.Sprintf("%s of %s is Local, and %s has %s%s: a node without its Pod drops the packets", field, objectOf(svc), strings.Join(texts(of), " with "), quantity.Count(ready, "replica"), among),
		Do:   fmt.Sprintf("set spec.%s to Cluster, or run a Pod on each node that gets packets, as a DaemonSet does", field),
	}
}

// mirrored is about objects of kind Endpoints that are somebody's own: those of a Service with a selector are a
// controller's.
func (e *examination) mirrored() {
	count := 0
	for _, o := range e.objects.Endpoints {
		if o.UID == "" || controllers.NotMirrored(o, e.services[nameOf(o)]) == "" {
			count++
		}
	}
	if count > 0 {
		e.add(Finding{
			Code: DeprecatedEndpoints, Text: fmt.Sprintf("there are %d objects of kind Endpoints, which is deprecated since Kubernetes 1.33", count),
			Do: "use EndpointSlices",
		})
	}
}
