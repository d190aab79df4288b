package manifest

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/yamlfile"
)

// This file reads what "kubectl describe" prints of Services, Endpoints, EndpointSlices, Pods and Nodes, and knows other texts of kubectl for messages.

var (
	errTable     = errors.New("is a table of kubectl get without Services: give the output of kubectl get svc,endpointslices,nodes,pods -A -o yaml")
	errNotAll    = errors.New("is not all: give the output of kubectl get svc,endpointslices -o yaml")
	errDescribed = errors.New("is the output of kubectl describe of another kind than Service, Endpoints, EndpointSlice, Pod and Node: give that of kubectl get with -o yaml")
)

var (
	tableHead = regexp.MustCompile(`^(NAMESPACE +)?NAME +[A-Z]`)
	prompt    = regexp.MustCompile(`^(?:[^\n:]*|[\w.-]+@[^\s:]+:\S*?|PS [A-Z]:\\[^\n:]*)[$#%>] *(kubectl|oc|k|microk8s|k3s|minikube)\b[^\n]*\n`)
	// lead is what may be above the output besides prompts: blank lines, warnings of kubectl, and fences of Markdown.
	lead      = regexp.MustCompile("^([ \t]*|Warning: [^\n]*|```[a-z]*)\n")
	blockHead = regexp.MustCompile(`(?m)^Name: `)
	// describedHead is the beginning of an object.
	describedHead = regexp.MustCompile(`\AName: [^\n]*\n(Namespace|Labels|Roles): `)
	columns       = regexp.MustCompile(` {2,}`)
)

// kubectlText takes a text apart that kubectl prints for people. ok: it is one.
func kubectlText(data []byte) (docs []document, ok bool) {
	text := strings.ReplaceAll(strings.TrimLeft(string(data[:min(len(data), 4096)]), " \t\r\n"), "\r\n", "\n")
	for before := ""; before != text; {
		before = text
		text = lead.ReplaceAllString(prompt.ReplaceAllString(text, ""), "")
	}
	switch {
	case tableHead.MatchString(text):
		t := readTables(strings.ReplaceAll(string(data), "\r\n", "\n"))
		docs, err := t.documents()
		if err != nil {
			docs = []document{failed(err)}
		} else if blockHead.Match(data) {
			docs[0].note = "below tables of kubectl get, what kubectl describe prints is not read: give it as a file of its own, or the output of kubectl get with -o yaml"
		}
		return docs, true
	case !describedHead.MatchString(text):
		return nil, false
	}
	text = strings.ReplaceAll(string(data), "\r\n", "\n")
	starts := blockHead.FindAllStringIndex(text, -1)
	var blocks []described
	var left []string
	for i, at := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		blocks = append(blocks, readDescribed(text[at[0]:end]))
	}
	for i := range blocks {
		d := &blocks[i]
		if !d.isService() && !d.isEndpoints() && !d.isSlice() && !d.isPod() && !d.isNode() && slices.ContainsFunc(blocks, func(d described) bool { return d.isService() }) {
			left = append(left, d.field("Name"))
			continue
		}
		// Endpoints and EndpointSlices list all addresses, also those that are not ready: what the Service lists is among them.
		shown := slices.ContainsFunc(blocks, func(e described) bool {
			of := e.field("Name")
			if e.isSlice() {
				of, _ = e.pairs("Labels")["kubernetes.io/service-name"].(string)
			}
			return (e.isEndpoints() || e.isSlice()) && of == d.field("Name") && e.field("Namespace") == d.field("Namespace")
		})
		docs = append(docs, d.documents(shown)...)
	}
	if len(left) > 0 {
		docs[0].note = fmt.Sprintf("of kubectl describe, only Services, Endpoints, EndpointSlices, Pods and Nodes are read, and not: %s", nearest.Few(left))
	}
	return docs, true
}

// ReadyOnly is the annotation of EndpointSlices that were made of what kubectl prints for people of a Service or of Endpoints: it lists the
// endpoints that are ready, and no others.
const ReadyOnly = "nfqproxy.io/ready-endpoints-only"

// NotShown is the annotation of a Service whose endpoints kubectl did not print, or not all of them: the reason, and what to do. A Pod
// has it if the names of its ports were not printed, and perhaps not all Pods.
const NotShown = "nfqproxy.io/endpoints-not-shown"

func made(value map[string]any) document {
	return document{Document: yamlfile.Document{Value: value}}
}

func failed(err error) document { return document{Document: yamlfile.Document{Err: err}} }

// described are the fields of one object, each with its lines: the first one and those that are indented below it.
type described struct {
	order []string // names of fields; those of ports repeat
	lines [][]string
}

func readDescribed(text string) (d described) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n \t")
		switch name, value, found := strings.Cut(line, ":"); {
		case line == "":
		case line[0] == ' ' || line[0] == '\t':
			if n := len(d.lines); n > 0 {
				d.lines[n-1] = append(d.lines[n-1], strings.TrimSpace(line))
			}
		case found:
			d.order, d.lines = append(d.order, name), append(d.lines, []string{strings.TrimSpace(value)})
		}
	}
	return d
}

// field is the first line of a field; empty: there is none, or its value is "<none>".
func (d *described) field(names ...string) string {
	if i := slices.IndexFunc(d.order, func(n string) bool { return slices.Contains(names, n) }); i >= 0 {
		return unset(d.lines[i][0])
	}
	return ""
}

func unset(value string) string {
	if value == "<none>" || value == "<unset>" || value == "<nil>" {
		return ""
	}
	return value
}

func (d *described) has(name string) bool { return slices.Contains(d.order, name) }

// list are the parts of a field between commas.
func (d *described) list(names ...string) (parts []any) {
	for _, p := range strings.Split(d.field(names...), ",") {
		if p = strings.TrimSpace(p); p != "" {
			parts = append(parts, p)
		}
	}
	return parts
}

func (d *described) isService() bool { return d.has("Session Affinity") && d.has("Type") }

func (d *described) isEndpoints() bool { return d.has("Subsets") }

func (d *described) isPod() bool { return d.has("Containers") && d.has("Node") && d.has("Status") }

func (d *described) isNode() bool { return d.has("Unschedulable") && d.has("Addresses") }

func (d *described) isSlice() bool { return d.has("AddressType") && d.has("Endpoints") }

// documents are one object, and of a Service its endpoints, unless they are shown elsewhere.
func (d *described) documents(shown bool) []document {
	metadata := map[string]any{"name": d.field("Name"), "namespace": d.field("Namespace"), "resourceVersion": "0"} // it is from a cluster
	if labels := d.pairs("Labels"); len(labels) > 0 {
		metadata["labels"] = labels
	}
	if annotations := d.annotations(); len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	var docs []document
	var err error
	switch {
	case d.isEndpoints():
		docs, err = d.endpoints(metadata)
	case d.isSlice():
		docs, err = d.slice(metadata)
	case d.isService():
		docs, err = d.service(metadata, shown)
	case d.isPod():
		docs = d.pod(metadata)
	case d.isNode():
		docs = d.node(metadata)
	default:
		err = errDescribed
	}
	if err != nil {
		return []document{failed(fmt.Errorf("the object with Name: %s: %w", d.field("Name"), err))}
	}
	return docs
}

// pairs are lines, or parts between commas, of the form key=value.
func (d *described) pairs(name string) map[string]any {
	pairs := make(map[string]any)
	i := slices.Index(d.order, name)
	if i < 0 {
		return nil
	}
	for _, line := range d.lines[i] {
		for _, part := range strings.Split(line, ",") {
			if key, value, ok := strings.Cut(strings.TrimSpace(part), "="); ok {
				pairs[key] = value
			}
		}
	}
	return pairs
}

// annotations are lines of the form "key: value", which stands below its key if it is long.
func (d *described) annotations() map[string]any {
	annotations, last := make(map[string]any), ""
	i := slices.Index(d.order, "Annotations")
	if i < 0 {
		return nil
	}
	for _, line := range d.lines[i] {
		if key, value, ok := strings.Cut(line, ":"); ok && !strings.ContainsAny(key, " {\"") {
			last = key
			annotations[key] = strings.TrimSpace(value)
		} else if last != "" && annotations[last] == "" {
			annotations[last] = line
		}
	}
	return annotations
}

// describedPort is a port of a Service.
type describedPort struct {
	name, protocol, target string
	number, nodePort       int64
	endpoints              []netip.AddrPort
	notShown               error // some are missing
}

// service makes a Service of what describe prints and, unless its endpoints are shown elsewhere, EndpointSlices.
func (d *described) service(metadata map[string]any, shown bool) ([]document, error) {
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
		q := map[string]any{"port": p.number, "protocol": p.protocol}
		if p.name != "" {
			q["name"] = p.name
		}
		if n, err := strconv.ParseInt(p.target, 10, 32); err == nil {
			q["targetPort"] = n
		} else if p.target != "" {
			q["targetPort"] = p.target
		}
		if p.nodePort != 0 {
			q["nodePort"] = p.nodePort
		}
		list = append(list, q)
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
		if p.notShown != nil {
			annotations := map[string]any{NotShown: p.notShown.Error()}
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
				"name": fmt.Sprintf("%s-described-%d-%d", service["name"], i, j), "namespace": service["namespace"], "resourceVersion": "0",
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

// node makes a Node of what describe prints.
func (d *described) node(metadata map[string]any) []document {
	delete(metadata, "namespace")
	rows := func(field string, least int, add func(row []string)) {
		if i := slices.Index(d.order, field); i >= 0 {
			for _, line := range d.lines[i] {
				if row := columns.Split(line, -1); len(row) >= least && row[0] != "Type" && row[0] != "----" {
					add(row)
				}
			}
		}
	}
	var addresses, conditions []any
	rows("Addresses", 2, func(row []string) {
		addresses = append(addresses, map[string]any{"type": strings.TrimSuffix(row[0], ":"), "address": row[1]})
	})
	rows("Conditions", 2, func(row []string) {
		condition := map[string]any{"type": row[0], "status": row[1]}
		if len(row) > 5 {
			condition["reason"], condition["message"] = row[4], row[5]
		}
		conditions = append(conditions, condition)
	})
	spec := map[string]any{}
	if cidrs := d.list("PodCIDRs", "PodCIDR"); len(cidrs) > 0 {
		spec["podCIDR"], spec["podCIDRs"] = cidrs[0], cidrs
	}
	return []document{made(map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": map[string]any{"addresses": addresses, "conditions": conditions},
	})}
}

// slice makes an EndpointSlice of what describe prints. Of the conditions, it is Ready.
func (d *described) slice(metadata map[string]any) ([]document, error) {
	ports, endpoints := []any{}, []any{}
	if i := slices.Index(d.order, "Ports"); i >= 0 {
		for _, line := range d.lines[i] {
			fields := strings.Fields(line)
			if len(fields) == 0 || unset(line) == "" || strings.HasPrefix(line, "----") || strings.HasPrefix(line, "Name ") {
				continue
			}
			if len(fields) != 3 {
				return nil, fmt.Errorf("%q below Ports: want a name, a number and a protocol", line)
			}
			port := map[string]any{"name": unset(fields[0]), "protocol": fields[2]}
			if text := unset(fields[1]); text != "" {
				number, err := strconv.ParseInt(text, 10, 32)
				if err != nil {
					return nil, fmt.Errorf("%q below Ports: want a number", text)
				}
				port["port"] = number
			}
			ports = append(ports, port)
		}
	}
	var endpoint map[string]any
	for _, line := range d.lines[slices.Index(d.order, "Endpoints")] {
		name, value, _ := strings.Cut(line, ":")
		value = unset(strings.TrimSpace(value))
		switch {
		case unset(line) == "":
		case name == "- Addresses":
			var addresses []any
			for _, a := range strings.Split(value, ",") {
				addresses = append(addresses, strings.TrimSpace(a))
			}
			endpoint = map[string]any{"addresses": addresses}
			endpoints = append(endpoints, endpoint)
		case endpoint == nil:
			return nil, fmt.Errorf("%q below Endpoints: want - Addresses", line)
		case name == "Ready" && value != "":
			endpoint["conditions"] = map[string]any{"ready": value == "true"}
		case name == "NodeName" && value != "":
			endpoint["nodeName"] = value
		case name == "Zone" && value != "":
			endpoint["zone"] = value
		case name == "TargetRef" && value != "":
			kind, of, _ := strings.Cut(value, "/")
			endpoint["targetRef"] = map[string]any{"kind": kind, "name": of, "namespace": metadata["namespace"]}
		}
	}
	return []document{made(map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
		"addressType": d.field("AddressType"), "ports": ports, "endpoints": endpoints,
	})}, nil
}

// endpoints makes an Endpoints object of what describe prints.
func (d *described) endpoints(metadata map[string]any) ([]document, error) {
	var subsets []any
	var subset map[string]any
	inPorts := false
	addresses := func(field, text string) {
		var list []any
		for _, a := range strings.Split(unset(strings.TrimSpace(text)), ",") {
			if a = strings.TrimSpace(a); a != "" {
				list = append(list, map[string]any{"ip": a})
			}
		}
		if len(list) > 0 {
			subset[field] = list
		}
	}
	for _, line := range d.lines[slices.Index(d.order, "Subsets")] {
		name, value, found := strings.Cut(line, ":")
		switch {
		case line == "" || strings.HasPrefix(line, "----") || strings.HasPrefix(line, "Name "):
		case found && name == "Addresses":
			subset, inPorts = make(map[string]any), false
			subsets = append(subsets, subset)
			addresses("addresses", value)
		case subset == nil:
			return nil, fmt.Errorf("%q below Subsets: want Addresses", line)
		case found && name == "NotReadyAddresses":
			addresses("notReadyAddresses", value)
		case found && name == "Ports":
			inPorts = true
		case inPorts:
			fields := strings.Fields(line)
			if len(fields) != 3 {
				return nil, fmt.Errorf("%q below Ports: want a name, a number and a protocol", line)
			}
			number, err := strconv.ParseInt(fields[1], 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%q below Ports: want a number", fields[1])
			}
			port := map[string]any{"port": number, "protocol": fields[2]}
			if n := unset(fields[0]); n != "" {
				port["name"] = n
			}
			ports, _ := subset["ports"].([]any)
			subset["ports"] = append(ports, port)
		}
	}
	o := map[string]any{"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata}
	if len(subsets) > 0 {
		o["subsets"] = subsets
	}
	return []document{made(o)}, nil
}
