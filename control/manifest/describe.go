package manifest

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/yamlfile"
)

// This file reads what "kubectl describe" prints of Services, Endpoints, EndpointSlices, Pods, Nodes and what has a template of Pods, and knows other texts of kubectl for messages.

var (
	errTable     = errors.New("is a table of kubectl get without Services: give the output of kubectl get svc,endpointslices,nodes,pods -A -o yaml")
	errNotAll    = errors.New("is not all: give the output of kubectl get svc,endpointslices -o yaml")
	errDescribed = errors.New("is the output of kubectl describe of another kind than Service, Endpoints, EndpointSlice, Pod, Deployment and Node: give that of kubectl get with -o yaml")
)

var (
	tableHead = regexp.MustCompile(`^(NAMESPACE[ \t]+)?NAME[ \t]+[A-Z]`)
	prompt    = regexp.MustCompile(`^(?:(?:[^\n:]*|[\w.-]+@[^\s:]+:\S*?|PS [A-Z]:\\[^\n:]*)[$#%>❯] *(?:sudo )?(?:kubectl|oc|k|microk8s|k3s|minikube)\b|(?:➜ [^\n:]*)?(?:kubectl|oc|microk8s|k3s|minikube) [a-z-])[^\n]*\n`)
	// lead is what may be above the output besides prompts: blank lines, warnings of kubectl, and fences of Markdown.
	lead      = regexp.MustCompile("^([ \t]*|Warning: [^\n]*|```[a-z]*)\n")
	blockHead = regexp.MustCompile(`(?m)^Name: `)
	// describedHead is the beginning of an object.
	describedHead = regexp.MustCompile(`\AName: [^\n]*\n(Namespace|Labels|Roles): `)
	yaml          = regexp.MustCompile(`(?m)^(apiVersion|kind): `)
	columns       = regexp.MustCompile(` {2,}`)
)

// kubectlText takes a text apart that kubectl prints for people. ok: it is one.
func kubectlText(data []byte) (docs []document, ok bool) {
	text := strings.ReplaceAll(strings.TrimLeft(string(data[:min(len(data), 4096)]), " \t\r\n"), "\r\n", "\n")
	for before := ""; before != text; {
		before = text
		text = lead.ReplaceAllString(prompt.ReplaceAllString(text, ""), "")
	}
	if !tableHead.MatchString(text) && !bareRow.MatchString(text) && !describedHead.MatchString(text) {
		return nil, false
	}
	return kubectlObjects(strings.ReplaceAll(string(data), "\r\n", "\n"), nil), true
}

// kubectlObjects are the objects of tables, and of what describe prints above or below them. known are objects besides them.
func kubectlObjects(text string, known []map[string]any) (docs []document) {
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
	others := known
	known = slices.DeleteFunc(slices.Clone(known), func(m map[string]any) bool { return m["kind"] != "Service" })
	t := readTables(text, namespaceOf(known))
	t.without(others)
	blocks = t.completeBy(blocks)
	services := len(known) > 0 || len(t.rows["Service"]) > 0 || slices.ContainsFunc(blocks, func(d described) bool { return d.isService() })
	if !services && len(blocks) == 0 {
		return []document{failed(errTable)}
	}
	docs = t.documents()
	for _, s := range known {
		docs = append(docs, t.endpointsFor(s)...)
	}
	for i := range blocks {
		d := &blocks[i]
		if !d.isService() && !d.isEndpoints() && !d.isSlice() && !d.isPod() && !d.isWorkload() && !d.isNode() && services {
			left = append(left, d.field("Name"))
			continue
		}
		// Endpoints and EndpointSlices list all addresses, also those that are not ready: what the Service lists is among them.
		shown := slices.ContainsFunc(blocks, func(e described) bool {
			return (e.isEndpoints() || e.isSlice()) && e.of() == d.field("Name") && e.field("Namespace") == d.field("Namespace")
		})
		docs = append(docs, d.documents(shown, &t)...)
		docs[len(docs)-1].note = d.warnings()
	}
	if yaml.MatchString(text) {
		left = append(left, "objects in YAML")
	}
	if len(left) > 0 && len(docs) > 0 {
		last := &docs[len(docs)-1]
		last.note = strings.TrimPrefix(fmt.Sprintf("%s. of what kubectl prints for people, only Services, Endpoints, EndpointSlices, Pods, Deployments and Nodes are read, and not: %s; give it as a file of its own", last.note, nearest.Few(left)), ". ")
	}
	return docs
}

// ReadyOnly is the annotation of EndpointSlices that were made of what kubectl prints for people of a Service or of Endpoints: it lists the
// endpoints that are ready, and no others.
const ReadyOnly = "nfqproxy.io/ready-endpoints-only"

// Printed is the resourceVersion of objects from what kubectl prints for people. API servers give none this one.
const Printed = "0"

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
		if prompt.MatchString(line+"\n") || tableHead.MatchString(line) || bareRow.MatchString(line) {
			break
		}
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

// linesOf are the lines of a field; none: it is not there.
func (d *described) linesOf(name string) []string {
	if i := slices.Index(d.order, name); i >= 0 {
		return d.lines[i]
	}
	return nil
}

func unset(value string) string {
	if slices.Contains([]string{"<none>", "<unset>", "<nil>", "<unnamed>"}, value) {
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

// of is the name of the Service whose Endpoints, or EndpointSlice, it is.
func (d *described) of() string {
	if !d.isSlice() {
		return d.field("Name")
	}
	name, _ := d.pairs("Labels")["kubernetes.io/service-name"].(string)
	return name
}

// warnings are the latest events of type Warning, for a note; "": there is none.
func (d *described) warnings() string {
	var all []string
	for _, line := range d.linesOf("Events") {
		if row := columns.Split(line, 5); len(row) == 5 && row[0] == "Warning" {
			all = append(all, row[1]+": "+row[4])
		}
	}
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprintf("warnings among the events of %s, which are not examined: %s", d.field("Name"), strings.Join(all[max(len(all)-3, 0):], "; "))
}

// documents are one object, and of a Service its endpoints, unless they are shown elsewhere. Tables may show the Pods.
func (d *described) documents(shown bool, t *tables) []document {
	metadata := map[string]any{"name": d.field("Name"), "namespace": d.field("Namespace"), "resourceVersion": Printed}
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
		docs, err = d.service(metadata, shown, t)
	case d.isPod():
		docs = d.pod(metadata)
	case d.isWorkload():
		docs = d.workload(metadata)
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
	return pairsOf(strings.Join(d.linesOf(name), ","))
}

// annotations are lines of the form "key: value", which stands below its key if it is long.
func (d *described) annotations() map[string]any {
	annotations, last := make(map[string]any), ""
	for _, line := range d.linesOf("Annotations") {
		if key, value, ok := strings.Cut(line, ":"); ok && !strings.ContainsAny(key, " {\"") {
			last = key
			annotations[key] = strings.TrimSpace(value)
		} else if last != "" && annotations[last] == "" {
			annotations[last] = line
		}
	}
	return annotations
}
