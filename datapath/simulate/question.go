package simulate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Question is a packet as people write it.
type Question struct {
	Protocol    string `json:"protocol"`    // tcp, udp or sctp
	Source      string `json:"source"`      // an address or a pod's name; the port may be left out
	Destination string `json:"destination"` // an address or a name, with a port
	Local       bool   `json:"local"`
	InInterface string `json:"inInterface"`
}

// anyPort stands for a source port that was left out.
const anyPort = 40000

// Questions reads one question from each line that is not empty and calls f with it and the
// number of the line, or with what is wrong with it. It ends at the first error of
// f, or of reading.
func Questions(in io.Reader, f func(line int, q Question, err error) error) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	n := 0
	for lines.Scan() {
		n++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var q Question
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		err := d.Decode(&q)
		if err == nil && d.More() {
			err = fmt.Errorf("more than one JSON object")
		}
		if err != nil {
			err = fmt.Errorf(`want {"protocol":"tcp","source":"10.244.1.9","destination":"10.96.0.1:443"}: %w`, err)
		}
		if err := f(n, q, err); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	return nil
}

// Names finds the addresses of pods and services.
type Names struct {
	table *decision.Table
	pods  map[string][]netip.Addr
}

// NamesOf knows the services of the table and the pods.
func NamesOf(t *decision.Table, pods []*corev1.Pod) *Names {
	n := &Names{table: t, pods: make(map[string][]netip.Addr)}
	for _, p := range pods {
		key := p.Namespace + "/" + p.Name
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				n.pods[key] = append(n.pods[key], a.Unmap())
			}
		}
		if a, err := netip.ParseAddr(p.Status.PodIP); err == nil && len(n.pods[key]) == 0 {
			n.pods[key] = append(n.pods[key], a.Unmap())
		}
	}
	return n
}

// Packet makes a packet of the question. The error says what is wrong, and with
// which part.
func (n *Names) Packet(q Question) (decision.Packet, error) {
	p := decision.Packet{Local: q.Local, InInterface: q.InInterface}
	var err error
	if p.Protocol, err = decision.ParseProtocol(q.Protocol); err != nil {
		return p, err
	}
	if q.Local && q.InInterface != "" {
		return p, fmt.Errorf("a packet that is made on the node comes in by no interface, not by %s", q.InInterface)
	}
	destinations, port, err := n.resolve(q.Destination, p.Protocol)
	if err == nil && port == 0 {
		err = fmt.Errorf("a port is missing: ADDRESS:PORT, or [ADDRESS]:PORT for IPv6")
	}
	if err != nil {
		return p, fmt.Errorf("destination %q: %w", q.Destination, err)
	}
	sources, sourcePort, err := n.resolve(q.Source, p.Protocol)
	if err != nil {
		return p, fmt.Errorf("source %q: %w", q.Source, err)
	}
	if sourcePort == 0 {
		sourcePort = anyPort
	}
	// Of several addresses, the first pair of one family.
	for _, d := range destinations {
		for _, s := range sources {
			if decision.FamilyOf(s) == decision.FamilyOf(d) {
				p.Source, p.Destination = netip.AddrPortFrom(s, sourcePort), netip.AddrPortFrom(d, port)
				return p, nil
			}
		}
	}
	return p, fmt.Errorf("source %q and destination %q are not of one address family", q.Source, q.Destination)
}

// resolve reads an address or name with an optional port; 0: none was given.
func (n *Names) resolve(s string, proto decision.Protocol) ([]netip.Addr, uint16, error) {
	switch kind, name, _ := strings.Cut(s, "/"); {
	case s == "":
		return nil, 0, fmt.Errorf("missing")
	case name == "":
		return address(s)
	case kind == "pod":
		return n.pod(name)
	case kind == "service" || kind == "svc":
		return n.service(name, proto)
	default:
		return nil, 0, fmt.Errorf("want an address, pod/NAMESPACE/NAME or service/NAMESPACE/NAME")
	}
}

func address(s string) ([]netip.Addr, uint16, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		if ap.Port() == 0 {
			return nil, 0, fmt.Errorf("port 0 is none")
		}
		return []netip.Addr{ap.Addr().Unmap()}, ap.Port(), nil
	}
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	if err != nil {
		return nil, 0, fmt.Errorf("not an address with or without a port, such as 10.96.0.10:53 or [fd00::10]:53")
	}
	return []netip.Addr{a.Unmap()}, 0, nil
}

// pod reads NAMESPACE/NAME[:PORT].
func (n *Names) pod(s string) ([]netip.Addr, uint16, error) {
	name, portText, hasPort := strings.Cut(s, ":")
	var port uint64
	if hasPort {
		var err error
		if port, err = strconv.ParseUint(portText, 10, 16); err != nil || port == 0 {
			return nil, 0, fmt.Errorf("%q is not a port number", portText)
		}
	}
	addrs, ok := n.pods[name]
	if !ok {
		return nil, 0, fmt.Errorf("no such Pod is among the objects, or it has no address yet%s", known("pods", sortedKeys(n.pods)))
	}
	return addrs, uint16(port), nil
}

// service reads NAMESPACE/NAME[:PORT], the port being a number or a name. A service
// with one port of the protocol needs none.
func (n *Names) service(s string, proto decision.Protocol) ([]netip.Addr, uint16, error) {
	name, port, _ := strings.Cut(s, ":")
	var addrs []netip.Addr
	var number uint16
	var ports, services []string
	for _, sp := range n.table.Services() {
		full := sp.Name.Namespace + "/" + sp.Name.Name
		if !slices.Contains(services, full) {
			services = append(services, full)
		}
		if full != name {
			continue
		}
		ports = append(ports, strings.TrimPrefix(fmt.Sprintf("%s/%d/%s", sp.Name.Port, sp.Port, sp.Protocol), "/"))
		if sp.Protocol == proto && (port == "" || port == sp.Name.Port || port == strconv.Itoa(int(sp.Port))) {
			if number != 0 && number != sp.Port {
				return nil, 0, fmt.Errorf("which port? there are %s", strings.Join(ports, ", "))
			}
			addrs, number = append(addrs, sp.ClusterIP), sp.Port
		}
	}
	switch {
	case len(ports) == 0:
		return nil, 0, fmt.Errorf("no such Service is in the table%s", known("services", services))
	case number == 0:
		return nil, 0, fmt.Errorf("it has no such %s port; there are %s", proto, strings.Join(ports, ", "))
	}
	return addrs, number, nil
}

func known(what string, names []string) string {
	if len(names) == 0 {
		return fmt.Sprintf("; there are no %s", what)
	}
	return "; there are " + some(names)
}

func sortedKeys(m map[string][]netip.Addr) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
