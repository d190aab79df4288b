package manifest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// slice makes an EndpointSlice of what describe prints. Of the conditions, it is Ready.
func (d *described) slice(metadata map[string]any) ([]document, error) {
	ports, endpoints := []any{}, []any{}
	for _, line := range d.linesOf("Ports") {
		if unset(line) == "" || isHead(line) {
			continue
		}
		port, err := describedRow(line)
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	var endpoint map[string]any
	for _, line := range d.linesOf("Endpoints") {
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

// isHead reports whether a line is of the head of a table of ports.
func isHead(line string) bool {
	return strings.HasPrefix(line, "----") || strings.HasPrefix(line, "Name ")
}

// describedRow reads a row of a table of ports: name, number and protocol.
func describedRow(line string) (port map[string]any, err error) {
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return nil, fmt.Errorf("%q below Ports: want a name, a number and a protocol", line)
	}
	port = map[string]any{"name": unset(fields[0]), "protocol": fields[2]}
	if text := unset(fields[1]); text != "" {
		if port["port"], err = strconv.ParseInt(text, 10, 32); err != nil {
			return nil, fmt.Errorf("%q below Ports: want a number", text)
		}
	}
	return port, nil
}

// portName is the name of the first port of Endpoints or an EndpointSlice; "": it has none.
func (d *described) portName() string {
	for _, line := range slices.Concat(d.lines...) {
		if f := strings.Fields(line); len(f) == 3 && slices.Contains([]string{"TCP", "UDP", "SCTP"}, f[2]) {
			return unset(f[0])
		}
	}
	return ""
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
	for _, line := range d.linesOf("Subsets") {
		name, value, found := strings.Cut(line, ":")
		switch {
		case line == "" || isHead(line):
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
			port, err := describedRow(line)
			if err != nil {
				return nil, err
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
