package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// This file reads the tables of "kubectl get": of Services, with Endpoints or EndpointSlices, Pods and Nodes. What a table leaves out
// must not be made up: readiness is that of Endpoints or Pods, and the endpoints of a Service without a row of them are not known.

// tableRow is one object of a table: its cells by the names of the columns.
type tableRow map[string]string

// between separates the cells of a row. One space may be in a cell: "2 (3m ago)".
var between = regexp.MustCompile(` {2,}|\t+`)

// namespaceFlag finds the namespace in a command of kubectl.
var namespaceFlag = regexp.MustCompile(` (?:-n|--namespace)[ =]?([a-z0-9][-a-z0-9]*)`)

// tables are the rows of a text, by kind.
type tables struct {
	rows map[string][]tableRow
	// guessed: neither a column nor the command shows the namespace of a table.
	guessed bool
}

// tableKind is the kind of the objects of a table, by its columns; empty: another one.
func tableKind(columns []string) string {
	has := make(map[string]bool)
	for _, c := range columns {
		has[c] = true
	}
	switch {
	case has["CLUSTER-IP"] && has["PORT(S)"]:
		return "Service"
	case has["ADDRESSTYPE"]:
		return "EndpointSlice"
	case has["ENDPOINTS"]:
		return "Endpoints"
	case has["READY"] && has["STATUS"] && has["RESTARTS"]:
		return "Pod"
	case has["ROLES"] && has["VERSION"]:
		return "Node"
	}
	return ""
}

// readTables takes a text apart. Lines of no table, as prompts, are left out. The usual namespace is that of objects which nothing
// else shows one of; empty: not known.
func readTables(text, usual string) tables {
	t := tables{rows: make(map[string][]tableRow)}
	var columns []string
	head, namespace := "", "" // of the table, and of the command
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		cells := between.Split(strings.TrimLeft(line, " "), -1)
		switch {
		case tableHead.MatchString(line):
			columns, head = cells, line
			for i := range columns { // CLUSTER_IP before kubectl 1.3
				columns[i] = strings.ReplaceAll(columns[i], "_", "-")
			}
		case prompt.MatchString(line + "\n"):
			columns, namespace = nil, ""
			if m := namespaceFlag.FindStringSubmatch(line); m != nil {
				namespace = m[1]
			}
		case line == "", blockHead.MatchString(line):
			columns = nil
		case len(cells) >= 2:
			of := columns
			if of == nil {
				of = bareColumns(line)
			} else {
				cells = inColumns(line, head, cells)
			}
			row := make(tableRow)
			for i, c := range cells[:min(len(cells), len(of))] {
				row[of[i]] = unset(c)
			}
			if _, name, ok := strings.Cut(row["NAME"], "/"); ok { // "service/web", of several kinds
				row["NAME"] = name
			}
			if kind := tableKind(of); kind != "" {
				if kind != "Node" && row["NAMESPACE"] == "" {
					row["NAMESPACE"] = cmp.Or(namespace, usual)
					t.guessed = t.guessed || row["NAMESPACE"] == ""
				}
				t.rows[kind] = append(t.rows[kind], row)
			}
		}
	}
	return t
}

// inColumns puts an empty cell where a line has none, as Endpoints without addresses that are ready have no cell ENDPOINTS: each
// other cell begins where the name of its column does.
func inColumns(line, head string, cells []string) (all []string) {
	starts := func(text string) (at []int) {
		for _, gap := range between.FindAllStringIndex(text, -1) {
			at = append(at, gap[1])
		}
		return at
	}
	of, at := starts(head), starts(line)
	if len(at) != len(cells)-1 || len(at) >= len(of) { // none is missing, or the text is indented
		return cells
	}
	all, next := cells[:1:1], 0
	for _, start := range of {
		if all = append(all, ""); next < len(at) && at[next] == start {
			all[len(all)-1] = cells[next+1]
			next++
		}
	}
	if next < len(at) {
		return cells
	}
	return all
}

func (r tableRow) namespace() string { return cmp.Or(r["NAMESPACE"], "default") }

func (r tableRow) metadata() map[string]any {
	m := map[string]any{"name": r["NAME"], "resourceVersion": Printed}
	if labels := pairsOf(r["LABELS"]); len(labels) > 0 {
		m["labels"] = labels
	}
	return m
}

func pairsOf(text string) map[string]any {
	pairs := make(map[string]any)
	for part := range strings.SplitSeq(text, ",") {
		if key, value, ok := strings.Cut(strings.TrimSpace(part), "="); ok {
			pairs[key] = value
		}
	}
	return pairs
}

// assumedOfTables is what has its default in a Service of a table, as no column shows it.
const assumedOfTables = "a table of kubectl get does not show traffic policies, source ranges, session affinity and target ports of Services: assumed are policy Cluster, all sources and no affinity. With Local or source ranges the answer may differ: give the output of kubectl get with -o yaml"

// completeBy takes the rows of objects out of which describe prints more, and returns what it prints. Endpoints and EndpointSlices give the
// row of their Service the name of their port; those of a row with several ports are left out, as it does not show which of them they have.
func (t *tables) completeBy(blocks []described) []described {
	for i := range blocks {
		d := &blocks[i]
		for kind, is := range map[string]bool{"Service": d.isService(), "Pod": d.isPod(), "Node": d.isNode()} {
			t.rows[kind] = slices.DeleteFunc(t.rows[kind], func(r tableRow) bool {
				return is && r["NAME"] == d.field("Name") && (kind == "Node" || r.namespace() == d.field("Namespace"))
			})
		}
	}
	return slices.DeleteFunc(blocks, func(d described) bool {
		for _, r := range t.rows["Service"] {
			if (d.isEndpoints() || d.isSlice()) && r["NAME"] == d.of() && r.namespace() == d.field("Namespace") {
				if strings.Contains(r["PORT(S)"], ",") {
					return true
				}
				r[endpointsDescribed], r[portName] = "true", d.portName()
			}
		}
		return false
	})
}

// The cells of a Service's row that are not from the table.
const (
	endpointsDescribed = "described" // its endpoints are described
	portName           = "port name"
)

// documents are the objects of the tables.
func (t *tables) documents() (docs []document) {
	for _, r := range t.rows["Node"] {
		docs = append(docs, r.node())
	}
	for _, r := range t.rows["Pod"] {
		docs = append(docs, r.pod())
	}
	noted := false
	for _, r := range t.rows["Service"] {
		service, ports, err := r.service()
		if err != nil {
			return []document{failed(fmt.Errorf("the table's Service %s/%s: %w", r.namespace(), r["NAME"], err))}
		}
		if r[endpointsDescribed] != "" {
			ports = nil
		} else if len(ports) > 0 && r["TYPE"] != "ExternalName" {
			if err := t.addEndpoints(r, ports); err != nil {
				service["metadata"].(map[string]any)["annotations"] = map[string]any{NotShown: err.Error()}
				ports = nil
			}
		}
		one := made(service)
		if !noted {
			one.note, noted = assumedOfTables, true
			if t.guessed && !t.ofDefault() {
				one.note += ". The tables show no namespace: default is assumed"
			}
		}
		docs = append(docs, one)
		for i := range ports {
			docs = append(docs, ports[i].slices(i, service["metadata"].(map[string]any))...)
		}
	}
	return docs
}

// ofDefault reports whether the Services are of namespace default for sure, as that of the API servers is among them.
func (t *tables) ofDefault() bool {
	return slices.ContainsFunc(t.rows["Service"], func(r tableRow) bool {
		return r["NAME"] == "kubernetes" && r.namespace() == "default" && r["PORT(S)"] == "443/TCP"
	})
}

// service makes a Service of a row, and its ports. The table has no names of ports, and no target ports.
func (r tableRow) service() (map[string]any, []describedPort, error) {
	metadata := r.metadata()
	metadata["namespace"] = r.namespace()
	spec := map[string]any{"type": r["TYPE"]}
	if selector := pairsOf(r["SELECTOR"]); len(selector) > 0 {
		spec["selector"] = selector
	}
	if ip := r["CLUSTER-IP"]; ip != "" {
		spec["clusterIP"], spec["clusterIPs"] = ip, []any{ip}
	}
	service := map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
	var external, ingress []any
	for a := range strings.SplitSeq(r["EXTERNAL-IP"], ",") {
		field := "hostname"
		if _, err := netip.ParseAddr(a); err == nil {
			field = "ip"
		}
		switch {
		case a == "" || strings.HasPrefix(a, "<"): // <pending>
		case r["TYPE"] == "ExternalName":
			spec["externalName"] = a
		case r["TYPE"] == "LoadBalancer":
			ingress = append(ingress, map[string]any{field: a})
		default:
			external = append(external, a)
		}
	}
	if len(external) > 0 {
		spec["externalIPs"] = external
	}
	if len(ingress) > 0 {
		service["status"] = map[string]any{"loadBalancer": map[string]any{"ingress": ingress}}
	}
	var ports []describedPort
	var list []any
	for text := range strings.SplitSeq(r["PORT(S)"], ",") {
		if text == "" {
			continue
		}
		numbers, protocol, ok := strings.Cut(text, "/")
		number, node, hasNode := strings.Cut(numbers, ":")
		p := describedPort{protocol: protocol}
		var err error
		if p.number, err = strconv.ParseInt(number, 10, 32); err == nil && hasNode {
			p.nodePort, err = strconv.ParseInt(node, 10, 32)
		}
		if err != nil || !ok {
			return nil, nil, fmt.Errorf("%q in column PORT(S): want 80/TCP or 80:30080/TCP", text)
		}
		ports = append(ports, p)
	}
	for i := range ports {
		p := &ports[i]
		if p.name = r[portName]; len(ports) > 1 {
			p.name = strings.ToLower(fmt.Sprintf("%d-%s", p.number, p.protocol))
		}
		list = append(list, p.object())
	}
	if len(list) > 0 {
		spec["ports"] = list
	}
	return service, ports, nil
}

// addEndpoints adds the endpoints of a Service to its ports.
func (t *tables) addEndpoints(service tableRow, ports []describedPort) error {
	endpoints, err := t.endpointsOf(service)
	switch {
	case err != nil:
		return err
	case len(endpoints) > 0 && len(ports) > 1:
		return fmt.Errorf("the table does not show which of them belong to which of its %d ports: give the output of kubectl get with -o yaml", len(ports))
	}
	ports[0].endpoints = endpoints
	return nil
}

var errNoEndpoints = errors.New("the tables have no endpoints of it: give the output of kubectl get svc,endpointslices,pods,nodes -A -o yaml")

func (t *tables) endpointsOf(service tableRow) ([]netip.AddrPort, error) {
	for _, r := range t.rows["Endpoints"] {
		if r["NAME"] == service["NAME"] && r.namespace() == service.namespace() {
			return describedEndpoints(r["ENDPOINTS"])
		}
	}
	found := false
	var ready []netip.AddrPort
	for _, r := range t.rows["EndpointSlice"] {
		own := r["NAME"] == service["NAME"] // that of the API servers
		if !own && r["NAME"][:max(strings.LastIndexByte(r["NAME"], '-'), 0)] != service["NAME"] || r.namespace() != service.namespace() {
			continue
		}
		if ip, err := netip.ParseAddr(service["CLUSTER-IP"]); err == nil && string(familyOf(ip)) != r["ADDRESSTYPE"] {
			continue // the table shows the first of the Service's families only
		}
		found = true
		all, err := sliceEndpoints(r)
		if err != nil {
			return nil, err
		}
		for _, a := range all {
			switch isReady, known := t.readiness(a.Addr()); {
			case isReady || own:
				ready = append(ready, a)
			case !known:
				return nil, fmt.Errorf("whether endpoint %s of EndpointSlice %s is ready is not in the tables: give the output of kubectl get with -o yaml", a, r["NAME"])
			}
		}
	}
	if !found {
		return nil, errNoEndpoints
	}
	return ready, nil
}

// sliceEndpoints are the endpoints in the row of an EndpointSlice, ready or not.
func sliceEndpoints(r tableRow) (all []netip.AddrPort, err error) {
	if r["ENDPOINTS"] == "" && !strings.Contains(r["PORTS"], " ") { // a space there is in a table whose columns are damaged
		return nil, nil
	}
	port, err := strconv.ParseUint(r["PORTS"], 10, 16)
	if err != nil || strings.Contains(r["ENDPOINTS"], " more...") {
		return nil, fmt.Errorf("the table does not show all endpoints of EndpointSlice %s with their ports: give the output of kubectl get with -o yaml", r["NAME"])
	}
	for text := range strings.SplitSeq(r["ENDPOINTS"], ",") {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%q in column ENDPOINTS: want addresses", text)
		}
		all = append(all, netip.AddrPortFrom(a, uint16(port)))
	}
	return all, nil
}

// readiness is that of the Pod with an address. known is false if no table of Pods has it.
func (t *tables) readiness(a netip.Addr) (ready, known bool) {
	for _, r := range t.rows["Pod"] {
		if r["IP"] == a.String() {
			return r.isReady(), true
		}
	}
	return false, false
}

// contradicts is the error about endpoints of Pods that are not ready, which kubectl describe from 1.30 to 1.31 lists, too.
func (t *tables) contradicts(endpoints []netip.AddrPort) error {
	for _, a := range endpoints {
		if ready, known := t.readiness(a.Addr()); known && !ready {
			return fmt.Errorf("kubectl describe lists %s, and its Pod is not ready (some versions of kubectl list such endpoints, too): give the output of kubectl get endpointslices -o yaml", a)
		}
	}
	return nil
}

func (r tableRow) isReady() bool {
	running, all, _ := strings.Cut(r["READY"], "/")
	met, gates, hasGates := strings.Cut(r["READINESS GATES"], "/")
	return running == all && r["STATUS"] == "Running" && (!hasGates || met == gates)
}

// pod makes a Pod of a row. Its containers' ports are not in the table.
func (r tableRow) pod() document {
	metadata := r.metadata()
	metadata["namespace"] = r.namespace()
	status := map[string]any{"phase": podPhase(r["STATUS"])}
	ready := map[string]any{"type": "Ready", "status": "True"}
	if !r.isReady() {
		ready["status"], ready["reason"] = "False", fmt.Sprintf("%s, %s ready", r["STATUS"], r["READY"])
		if gates := r["READINESS GATES"]; gates != "" {
			ready["reason"] = fmt.Sprintf("%s, readiness gates %s", ready["reason"], gates)
		}
	}
	status["conditions"] = []any{ready}
	if ip := r["IP"]; ip != "" {
		status["podIP"], status["podIPs"] = ip, []any{map[string]any{"ip": ip}}
	}
	spec := map[string]any{"containers": []any{map[string]any{"name": "unknown", "image": "unknown"}}}
	if node := r["NODE"]; node != "" {
		spec["nodeName"] = node
	}
	if s := r["STATUS"]; s == "Terminating" {
		metadata["deletionTimestamp"] = "1970-01-01T00:00:00Z"
	} else if status["phase"] == "Failed" {
		status["reason"] = s
	}
	return made(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status})
}

// podPhase is the phase of a Pod, of which the table shows what kubectl makes of it.
func podPhase(status string) string {
	switch status {
	case "Completed", "Succeeded":
		return "Succeeded"
	case "Evicted", "Failed", "NodeAffinity", "NodeShutdown", "OutOfcpu", "OutOfmemory", "OutOfpods", "UnexpectedAdmissionError", "Preempting":
		return "Failed"
	case "Pending", "ContainerCreating", "PodInitializing", "ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError", "InvalidImageName":
		return "Pending"
	}
	if strings.HasPrefix(status, "Init:") {
		return "Pending"
	}
	return "Running"
}

func (r tableRow) node() document {
	status := map[string]any{}
	if ip := r["INTERNAL-IP"]; ip != "" {
		status["addresses"] = []any{map[string]any{"type": "InternalIP", "address": ip}}
	}
	ready := "True"
	if strings.HasPrefix(r["STATUS"], "NotReady") {
		ready = "False"
	}
	status["conditions"] = []any{map[string]any{"type": "Ready", "status": ready}}
	return made(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": r.metadata(), "status": status})
}
