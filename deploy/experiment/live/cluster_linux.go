package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	ctnetlink "github.com/ti-mo/conntrack"

	"github.com/nfqproxy/nfqproxy/datapath/balance/script"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// podPort is the port of all endpoints.
const podPort = 8080

// device is the device of a pod.
const device = "eth0"

// firstClient is where the clients' addresses begin in the range of a node's pods, after those of endpoints.
const firstClient = 150

// cluster is a lab with the cluster of an experiment.
type cluster struct {
	*lab.Lab
	config    *traffic.Config
	changes   *traffic.Script
	endpoints []netip.AddrPort  // of the changes
	weights   map[uint16]bool   // that there are
	scripts   []*script.Script  // of balancing
	dir       string            // for the lab file and the scripts, which the daemons watch
	failures  *lab.Subscription // has the failures of scripts; nil: there are none
}

// startCluster starts a lab, with all endpoints that there will ever be.
func startCluster(ctx context.Context, b *Backend, x *experiment.Experiment, config *traffic.Config, changes *traffic.Script, algorithm string) (_ *cluster, err error) {
	k := &cluster{config: config, changes: changes, weights: make(map[uint16]bool), scripts: x.Scripts}
	onNode := make(map[int]int)
	for _, e := range changes.Endpoints {
		k.weights[e.Weight] = true
		onNode[e.Node]++
		k.endpoints = append(k.endpoints, netip.AddrPortFrom(podAddress(e.Node, 1+onNode[e.Node]), podPort))
	}
	if k.dir, err = os.MkdirTemp("", "nfqproxy-experiment-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = k.Close()
		}
	}()
	file, err := k.write(algorithm)
	if err != nil {
		return nil, err
	}
	file.Path = "" // the lab has its own copy
	k.Lab, err = lab.Up(ctx, file, lab.Options{Executable: b.Executable, Env: b.Env})
	if err != nil {
		return nil, err
	}
	if len(k.scripts) > 0 {
		k.failures = k.Subscribe(logBuffer)
	}
	return k, k.prepare()
}

// write writes the lab file and the scripts, and loads them.
func (k *cluster) write(algorithm string) (*lab.File, error) {
	for _, s := range k.scripts {
		if err := os.WriteFile(filepath.Join(k.dir, s.Name()), s.Source(), 0o600); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(k.dir, "experiment.yaml")
	if err := os.WriteFile(path, []byte(k.file(algorithm)), 0o600); err != nil {
		return nil, err
	}
	return lab.Load(path)
}

// Close ends the lab, if it was started.
func (k *cluster) Close() (err error) {
	if k.Lab != nil {
		err = k.Lab.Close()
	}
	return errors.Join(err, os.RemoveAll(k.dir))
}

// podAddress is the n-th address of a node's pods, from 1; the first is their gateway.
func podAddress(node, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 244, byte(node), byte(n)})
}

// clientAddress is that of a client.
func (k *cluster) clientAddress(client int) netip.Addr {
	perNode := k.config.PerNode()
	return podAddress(client/perNode, firstClient+client%perNode)
}

func clientPod(node int) string { return fmt.Sprintf("clients-%d", node+1) }

func endpointPod(i int) string { return fmt.Sprintf("endpoint-%d", i+1) }

// file is the lab file.
func (k *cluster) file(algorithm string) string {
	var b strings.Builder
	name, second := strings.CutSuffix(algorithm, traffic.SecondChance)
	fmt.Fprintf(&b, "apiVersion: nfqproxy.io/v1alpha1\nkind: Lab\nmetadata: {name: experiment}\nclusterCIDRs: [10.244.0.0/16]\n"+
		"networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}]\nproxy: {balance: %q, secondChance: %t, scripts: %s}\nnodes:\n", name, second, k.scriptNames())
	for i, n := range k.config.Cluster.Nodes {
		fmt.Fprintf(&b, "- {name: %q, addresses: [192.0.2.%d], podCIDRs: [10.244.%d.0/24], labels: {topology.kubernetes.io/zone: %q}}\n", n.Name, 2+i, i, n.Zone)
	}
	b.WriteString("pods:\n")
	for i, n := range k.config.Cluster.Nodes {
		fmt.Fprintf(&b, "- {name: %s, node: %q, addresses: [%s]}\n", clientPod(i), n.Name, podAddress(i, firstClient))
	}
	for i, e := range k.changes.Endpoints {
		fmt.Fprintf(&b, "- {name: %s, node: %q, addresses: [%s]}\n", endpointPod(i), k.config.Cluster.Nodes[e.Node].Name, k.endpoints[i].Addr())
	}
	sets := make([]traffic.Set, len(k.config.Cluster.Services))
	for i := range sets {
		sets[i].Service = i
	}
	for i, e := range k.changes.Endpoints {
		if e.Initial {
			sets[e.Service].Endpoints = append(sets[e.Service].Endpoints, i)
		}
	}
	for i := range k.config.Cluster.Services {
		s := &k.config.Cluster.Services[i]
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: %q, namespace: %q, annotations: {%s}}\nspec:\n  clusterIP: %s\n  ports: [{port: %d, targetPort: %d}]\n",
			objectName(s), s.Namespace, annotation(s), s.ClusterIP, s.Port, podPort)
		if s.SameZone {
			b.WriteString("  trafficDistribution: PreferSameZone\n")
		}
	}
	return b.String() + k.slices(sets)
}

// scriptNames are the names of the scripts as a list of YAML.
func (k *cluster) scriptNames() string {
	var names []string
	for _, s := range k.scripts {
		names = append(names, strconv.Quote(s.Name()))
	}
	return "[" + strings.Join(names, ", ") + "]"
}

func annotation(s *traffic.Service) string {
	if s.Algorithm == "" {
		return ""
	}
	return fmt.Sprintf("nfqproxy.io/balance: %q", s.Algorithm)
}

// objectName is the name of a service's object. In a cluster of a lab, the name may have a port.
func objectName(s *traffic.Service) string { return strings.ReplaceAll(s.Name, ":", "-") }

// slices are the EndpointSlices of sets of endpoints: one for each weight, also without endpoints.
func (k *cluster) slices(sets []traffic.Set) string {
	var b strings.Builder
	for _, set := range sets {
		s := &k.config.Cluster.Services[set.Service]
		for _, weight := range slices.Sorted(maps.Keys(k.weights)) {
			fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %q, namespace: %q, labels: {kubernetes.io/service-name: %q}, annotations: {nfqproxy.io/weight: %q}}\n"+
				"addressType: IPv4\nports: [{port: %d, protocol: TCP}]\nendpoints:", fmt.Sprintf("%s-%d", objectName(s), weight), s.Namespace, objectName(s), fmt.Sprint(weight), podPort)
			some := false
			for _, i := range set.Endpoints {
				e := &k.changes.Endpoints[i]
				if e.Weight != weight {
					continue
				}
				some = true
				node := k.config.Cluster.Nodes[e.Node]
				hints := ""
				if s.SameZone && node.Zone != "" {
					hints = fmt.Sprintf(", hints: {forZones: [{name: %q}]}", node.Zone)
				}
				fmt.Fprintf(&b, "\n- {addresses: [%s], nodeName: %q, zone: %q, conditions: {ready: true}%s}", k.endpoints[i].Addr(), node.Name, node.Zone, hints)
			}
			if !some {
				b.WriteString(" []")
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// prepare gives the clients their addresses, and the nodes their time of closed connections.
func (k *cluster) prepare() error {
	for i, n := range k.config.Cluster.Nodes {
		node, err := k.Namespace(n.Name)
		if err != nil {
			return err
		}
		pod, err := k.Namespace(clientPod(i))
		if err != nil {
			return err
		}
		if t := k.config.Workload.TimeWait; t > 0 {
			if err := node.SetSysctl("net.netfilter.nf_conntrack_tcp_timeout_time_wait", fmt.Sprint(max(int(t.Seconds()), 1))); err != nil {
				return err
			}
		}
		// Clients use a source port again as soon as they have used all others.
		if err := pod.SetSysctl("net.ipv4.tcp_tw_reuse", "1"); err != nil {
			return err
		}
		var more []netip.Addr
		for c := 1; c < k.config.PerNode(); c++ {
			more = append(more, podAddress(i, firstClient+c))
		}
		if err := k.AddAddresses("default/"+clientPod(i), more...); err != nil {
			return err
		}
	}
	return nil
}

// publish sends sets of endpoints to the nodes. When it returns, all of them have the table.
func (k *cluster) publish(ctx context.Context, sets []traffic.Set) error {
	_, err := k.Change(ctx, lab.Change{Apply: strings.TrimPrefix(k.slices(sets), "---\n")})
	return err
}

// flush empties the connection tables of the first nodes.
func (k *cluster) flush(nodes int) error {
	for _, n := range k.config.Cluster.Nodes[:nodes] {
		node, err := k.Namespace(n.Name)
		if err != nil {
			return err
		}
		c, err := ctnetlink.Dial(&netlink.Config{NetNS: node.FD()})
		if err != nil {
			return err
		}
		if err := errors.Join(c.Flush(), c.Close()); err != nil {
			return fmt.Errorf("node %s: cannot empty the connection table: %w", n.Name, err)
		}
	}
	return nil
}
