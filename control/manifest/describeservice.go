package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// describedPort is a port of a Service.
type describedPort struct {
	name, protocol, target string
	number, nodePort       int64
	endpoints              []netip.AddrPort
	notShown               error // some are missing
}

// object is the port in its Service.
func (p *describedPort) object() map[string]any {
	o := map[string]any{"port": p.number, "protocol": p.protocol}
	if p.name != "" {
		o["name"] = p.name
	}
	if n, err := strconv.ParseInt(p.target, 10, 32); err == nil {
		o["targetPort"] = n
	} else if p.target != "" {
		o["targetPort"] = p.target
	}
	if p.nodePort != 0 {
		o["nodePort"] = p.nodePort
	}
	return o
}

// service makes a Service of what describe prints and, unless its endpoints are shown elsewhere, EndpointSlices.
func (d *described) service(metadata map[string]any, shown bool, t *tables) ([]document, error) {
	spec := map[string]any{"type": d.field("Type")}
	set := func(field string, value any) {
		if value != "" {
			spec[field] = value
		}
	}
	setList := func(field string, values []any) {
		if len(values) > 0 {
			spec[field] = values
		}
	}
	if selector := d.pairs("Selector"); len(selector) > 0 {
		spec["selector"] = selector
	}
	set("clusterIP", d.field("IP"))
	setList("clusterIPs", d.list("IPs"))
	setList("ipFamilies", d.list("IP Families"))
	set("ipFamilyPolicy", d.field("IP Family Policy"))
	set("externalName", d.field("External Name"))
	set("loadBalancerIP", d.field("Desired LoadBalancer IP"))
	set("sessionAffinity", d.field("Session Affinity"))
	set("externalTrafficPolicy", d.field("External Traffic Policy"))
	set("internalTrafficPolicy", d.field("Internal Traffic Policy"))
	setList("externalIPs", d.list("External IPs"))
	setList("loadBalancerSourceRanges", d.list("LoadBalancer Source Ranges"))
	if n, err := strconv.ParseInt(d.field("HealthCheck NodePort"), 10, 32); err == nil && n > 0 {
		spec["healthCheckNodePort"] = n
	}
	ports, err := d.ports()
	if err != nil {
		return nil, err
	}
	var list []any
	for _, p := range ports {
		list = append(list, p.object())
	}
	setList("ports", list)
	service := map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
	var ingress []any
	for _, a := range d.list("LoadBalancer Ingress") {
		text, mode, hasMode := strings.Cut(a.(string), " ")
		field := "ip"
		if _, err := netip.ParseAddr(text); err != nil {
			field = "hostname"
		}
		of := map[string]any{field: text}
		if hasMode { // "(VIP)" or "(Proxy)"
			of["ipMode"] = strings.Trim(mode, " ()")
		}
		ingress = append(ingress, of)
	}
	if len(ingress) > 0 {
		service["status"] = map[string]any{"loadBalancer": map[string]any{"ingress": ingress}}
	}
	docs := []document{made(service)}
	if shown || !d.has("Endpoints") {
		return docs, nil
	}
	for i, p := range ports {
		if notShown := cmp.Or(p.notShown, t.contradicts(p.endpoints)); notShown != nil {
			annotations := map[string]any{NotShown: notShown.Error()}
			maps.Insert(annotations, maps.All(d.annotations()))
			metadata["annotations"] = annotations
			return docs[:1], nil
		}
		docs = append(docs, p.slices(i, metadata)...)
	}
	return docs, nil
}

// ports are the ports of a Service: each begins with a line "Port", which the others follow.
func (d *described) ports() (ports []describedPort, err error) {
	for i, name := range d.order {
		value := d.lines[i][0]
		if name == "Port" {
			ports = append(ports, describedPort{})
		}
		if len(ports) == 0 {
			continue
		}
		p := &ports[len(ports)-1]
		switch name {
		case "Port":
			p.name, p.number, p.protocol, err = describedNumber(value)
		case "NodePort":
			_, p.nodePort, _, err = describedNumber(value)
		case "TargetPort":
			p.target, _, _ = strings.Cut(unset(value), "/")
		case "Endpoints":
			if p.endpoints, err = describedEndpoints(value); errors.Is(err, errNotAll) {
				p.notShown, err = err, nil
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return ports, nil
}

// describedNumber reads "http  80/TCP" and "<unset>  80/TCP".
func describedNumber(text string) (name string, number int64, protocol string, err error) {
	fields := strings.Fields(text)
	if len(fields) == 2 {
		name, fields = unset(fields[0]), fields[1:]
	}
	if len(fields) != 1 {
		return "", 0, "", fmt.Errorf("%q: want a name and 80/TCP", text)
	}
	digits, protocol, ok := strings.Cut(fields[0], "/")
	if number, err = strconv.ParseInt(digits, 10, 32); err != nil || !ok {
		return "", 0, "", fmt.Errorf("%q: want a name and 80/TCP", text)
	}
	return name, number, protocol, nil
}

// describedEndpoints reads a list of addresses with ports. kubectl before 1.31 lists three at most.
func describedEndpoints(text string) (all []netip.AddrPort, err error) {
	if strings.Contains(text, " more...") {
		return nil, fmt.Errorf("%q %w", text, errNotAll)
	}
	for _, part := range strings.Split(unset(text), ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		a, err := netip.ParseAddrPort(part)
		if err != nil {
			// kubectl writes no brackets.
			if i := strings.LastIndexByte(part, ':'); i > 0 {
				a, err = netip.ParseAddrPort("[" + part[:i] + "]" + part[i:])
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%q: want addresses with ports", part)
		}
		all = append(all, a)
	}
	return all, nil
}

// slices are the EndpointSlices of a port, the i-th of the Service: one for each address family and number, and one without
// endpoints if there are none. Endpoints that are not ready are not shown by kubectl.
func (p *describedPort) slices(i int, service map[string]any) (docs []document) {
	type key struct {
		family string
		number uint16
	}
	endpoints := make(map[key][]any)
	var keys []key
	for _, e := range p.endpoints {
		k := key{string(familyOf(e.Addr())), e.Port()}
		if endpoints[k] == nil {
			keys = append(keys, k)
		}
		endpoints[k] = append(endpoints[k], map[string]any{"addresses": []any{e.Addr().String()}, "conditions": map[string]any{"ready": true}})
	}
	if len(keys) == 0 {
		keys = []key{{"IPv4", uint16(p.number)}}
	}
	for j, k := range keys {
		list := endpoints[k]
		if list == nil {
			list = []any{}
		}
		docs = append(docs, made(map[string]any{
			"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
			"metadata": map[string]any{
				"name": fmt.Sprintf("%s-described-%d-%d", service["name"], i, j), "namespace": service["namespace"], "resourceVersion": Printed,
				"labels":      map[string]any{"kubernetes.io/service-name": service["name"]},
				"annotations": map[string]any{ReadyOnly: "true"},
			},
			"addressType": k.family, "endpoints": list,
			"ports": []any{map[string]any{"name": p.name, "protocol": p.protocol, "port": int64(k.number)}},
		}))
	}
	return docs
}

// placeEndpoints gives endpoints that kubectl printed for people the nodes of the Pods with their addresses, which the columns and
// fields of Services do not show.
func (o *Objects) placeEndpoints() {
	var nodes map[string]string
	for _, s := range o.EndpointSlices {
		if s.Annotations[ReadyOnly] == "" {
			continue
		}
		if nodes == nil {
			nodes = make(map[string]string)
			for _, p := range o.Pods {
				for _, ip := range p.Status.PodIPs {
					if p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
						nodes[ip.IP] = p.Spec.NodeName
					}
				}
			}
			for _, n := range o.Nodes {
				for _, a := range n.Status.Addresses {
					nodes[a.Address] = n.Name
				}
			}
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if name := nodes[e.Addresses[0]]; name != "" && e.NodeName == nil {
				e.NodeName = &name
			}
		}
	}
}
