package labfile

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Marshal writes the lab as the first document of a lab file, which [Parse] reads as the
// same lab. The comment's lines precede it.
func (l *Lab) Marshal(comment []string) []byte {
	var b strings.Builder
	for _, line := range comment {
		b.WriteString(strings.TrimRight("# "+line, " ") + "\n")
	}
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n", yamlfile.APIVersion, Kind, scalar(l.Name))
	line := func(name string, value any) {
		if text := oneLine(reflect.ValueOf(value)); text != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, text)
		}
	}
	line("clusterCIDRs", l.ClusterCIDRs)
	items(&b, "networks", l.Networks)
	items(&b, "nodes", l.Nodes)
	items(&b, "pods", l.Pods)
	items(&b, "clients", l.Clients)
	line("proxy", l.Proxy)
	items(&b, "objects", l.Objects)
	return []byte(b.String())
}

// items writes a list, one item on each line.
func items[T any](b *strings.Builder, name string, list []T) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(b, "%s:\n", name)
	for _, item := range list {
		fmt.Fprintf(b, "- %s\n", oneLine(reflect.ValueOf(item)))
	}
}

// oneLine writes a value on one line; nothing if it is the default.
func oneLine(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case netip.Addr, netip.Prefix:
		return scalar(fmt.Sprint(x))
	case decision.Protocol:
		if x == decision.TCP {
			return ""
		}
	case Negated:
		if x {
			return "false"
		}
	}
	switch {
	case v.IsZero():
		return ""
	case v.Kind() == reflect.String:
		return scalar(v.String())
	case v.Kind() == reflect.Pointer:
		return fmt.Sprint(v.Elem())
	case v.Kind() == reflect.Slice:
		var texts []string
		for i := range v.Len() {
			texts = append(texts, oneLine(v.Index(i)))
		}
		return "[" + strings.Join(texts, ", ") + "]"
	case v.Kind() == reflect.Struct:
		var fields []string
		for i := range v.NumField() {
			if text := oneLine(v.Field(i)); text != "" {
				fields = append(fields, v.Type().Field(i).Tag.Get("json")+": "+text)
			}
		}
		return "{" + strings.Join(fields, ", ") + "}"
	}
	return fmt.Sprint(v)
}

// plain is text that YAML reads as a string without quotes: names with a hyphen or a dot in
// them, IPv4 addresses with their four numbers.
var plain = regexp.MustCompile(`^([a-z][a-z0-9]*[-.][-.a-z0-9]*[a-z0-9]|[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+(/[0-9]+)?)$`)

// word is a name without either: plain, except for YAML's own words.
var (
	word  = regexp.MustCompile(`^[a-z][a-z0-9]+$`)
	words = map[string]bool{"null": true, "true": true, "false": true, "yes": true, "no": true, "on": true, "off": true}
)

// scalar writes text, in quotes if necessary. JSON's quoting is valid YAML.
func scalar(s string) string {
	if plain.MatchString(s) || word.MatchString(s) && !words[s] {
		return s
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always has a JSON form
	}
	return string(b)
}
