package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Marshal writes the spec as the first document of a lab file, which [Parse] reads as the
// same spec. The comment's lines precede it.
func (s *Spec) Marshal(comment []string) []byte {
	var b strings.Builder
	for _, line := range comment {
		b.WriteString(strings.TrimRight("# "+line, " ") + "\n")
	}
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n", APIVersion, Kind, scalar(s.Name))
	if len(s.ClusterCIDRs) > 0 {
		fmt.Fprintf(&b, "clusterCIDRs: %s\n", flowList(s.ClusterCIDRs, prefixText))
	}
	items(&b, "networks", s.Networks, func(n Network) string {
		return flowMap("cidr", prefixText(n.CIDR), "gateway", addrText(n.Gateway))
	})
	items(&b, "nodes", s.Nodes, func(n Node) string {
		return flowMap("name", scalar(n.Name), "addresses", flowList(n.Addresses, addrText), "podCIDRs", flowList(n.PodCIDRs, prefixText), "ports", flowList(n.Ports, portText))
	})
	items(&b, "pods", s.Pods, func(p Pod) string {
		return flowMap("name", scalar(p.Name), "namespace", scalar(p.Namespace), "node", scalar(p.Node),
			"addresses", flowList(p.Addresses, addrText), "ports", flowList(p.Ports, portText))
	})
	items(&b, "clients", s.Clients, func(c Client) string {
		routes := ""
		if c.RoutesToPods {
			routes = "true"
		}
		return flowMap("name", scalar(c.Name), "addresses", flowList(c.Addresses, addrText), "ports", flowList(c.Ports, portText), "routesToPods", routes)
	})
	if p := s.Proxy.text(); p != "{}" {
		fmt.Fprintf(&b, "proxy: %s\n", p)
	}
	items(&b, "objects", s.Objects, scalar)
	return []byte(b.String())
}

func (p *Proxy) text() string {
	var seed, queues, all, hairpin string
	if p.Seed != nil {
		seed = fmt.Sprint(*p.Seed)
	}
	if p.Queues > 0 {
		queues = fmt.Sprint(p.Queues)
	}
	if p.MasqueradeAll {
		all = "true"
	}
	if p.NoHairpinMasquerade {
		hairpin = "false"
	}
	return flowMap("seed", seed, "queues", queues, "masqueradeAll", all, "masqueradeHairpin", hairpin, "nodePortAddresses", flowList(p.NodePortAddresses, prefixText))
}

// items writes a list, one item on each line.
func items[T any](b *strings.Builder, name string, list []T, text func(T) string) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(b, "%s:\n", name)
	for _, item := range list {
		fmt.Fprintf(b, "- %s\n", text(item))
	}
}

// flowMap writes fields on one line, without those that are empty.
func flowMap(pairs ...string) string {
	var fields []string
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fields = append(fields, pairs[i]+": "+pairs[i+1])
		}
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// flowList writes a list on one line; nothing if it is empty.
func flowList[T any](list []T, text func(T) string) string {
	if len(list) == 0 {
		return ""
	}
	texts := make([]string, len(list))
	for i, item := range list {
		texts[i] = text(item)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

func addrText(a netip.Addr) string     { return scalar(a.String()) }
func prefixText(p netip.Prefix) string { return scalar(p.String()) }

func portText(p Port) string {
	protocol := ""
	if p.Protocol != decision.TCP {
		protocol = p.Protocol.String()
	}
	return flowMap("port", fmt.Sprint(p.Port), "protocol", protocol)
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
