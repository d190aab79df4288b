package experiment

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// lab takes the nodes and services of a lab.
func (p *reader) lab(from *Cluster, into *traffic.Cluster) {
	p.Want("cluster.nodes", from.Nodes == 0 && from.Zones == 0, "the lab has its own nodes")
	p.Want("cluster.services", len(from.Services) == 0, "the lab has its own services")
	var stdin io.Reader
	paths := []string{"-"}
	if slices.Contains(labs.Names(), from.Lab) {
		data, err := labs.File(from.Lab)
		if err != nil {
			p.Fail("cluster.lab", "%w", err)
			return
		}
		p.digest.Write(data)
		stdin = bytes.NewReader(data)
	} else {
		if hint := nearest.Hint(from.Lab, labs.Names()); hint != "" && !p.sealed {
			if _, err := os.Stat(p.relative(from.Lab)); errors.Is(err, os.ErrNotExist) {
				p.Fail("cluster.lab", "no file and no built-in lab %q%s", from.Lab, hint)
				return
			}
		}
		data, at, ok := p.input(from.Lab, "cluster.lab")
		if !ok {
			return
		}
		if paths[0] = at; p.sealed && namesFiles(data) {
			p.Fail("cluster.lab", "%s names files with objects, which results do not keep: put the objects into it, after a line ---", from.Lab)
			return
		}
	}
	objects, err := labfile.LoadOnce(stdin, paths)
	if err != nil {
		p.Fail("cluster.lab", "%w", err)
		return
	}
	numbers := make(map[string]int)
	for i, n := range objects.Nodes {
		numbers[n.Name] = i
		into.Nodes = append(into.Nodes, traffic.Node{Name: n.Name, Zone: n.Labels[corev1.LabelTopologyZone]})
	}
	var config servicetable.NodeConfig
	file := labfile.Of(objects)
	file.Configure(&config)
	if file != nil {
		for _, s := range file.Proxy.Scripts {
			p.script("cluster.lab", s)
		}
	}
	config.Algorithms = p.registry("cluster.lab")
	ports, _ := servicetable.Build(&objects.Objects, config)
	for _, port := range ports {
		if port.Family != decision.IPv4 || port.Protocol != decision.TCP {
			continue
		}
		s := traffic.Service{
			Namespace: port.Name.Namespace, Name: port.Name.Name, ClusterIP: port.ClusterIP, Port: port.Port, Algorithm: port.Balance,
			Concurrency: orElse(from.Concurrency, 1), Backlog: backlog(from.Backlog),
		}
		if port.Name.Port != "" {
			s.Name += ":" + port.Name.Port
		}
		for k, e := range port.Endpoints {
			if e.Ready {
				node, ok := numbers[e.NodeName]
				if !ok {
					node = k % max(len(objects.Nodes), 1)
				}
				s.Endpoints = append(s.Endpoints, traffic.Endpoint{AddrPort: e.AddrPort, Node: node, Weight: max(e.Weight, 1)})
			}
		}
		if len(s.Endpoints) > 0 {
			into.Services = append(into.Services, s)
		}
	}
	p.Want("cluster.lab", len(into.Services) > 0, "%s has no TCP service over IPv4 with endpoints", from.Lab)
}
