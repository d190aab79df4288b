package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"

	"github.com/nfqproxy/nfqproxy/bench/process"
	"github.com/nfqproxy/nfqproxy/bench/traffic"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// Addresses. The client is in the cluster's range, so that it is not masqueraded.
var (
	clientAddress = netip.MustParsePrefix("10.248.0.2/24")
	clientGateway = netip.MustParsePrefix("10.248.0.1/24")
	podGateway    = netip.MustParsePrefix("10.244.0.1/24")
	theService    = netip.MustParseAddrPort("10.96.0.10:80")
	podAddress    = netip.MustParseAddrPort("10.244.0.10:8080")
	anywhere      = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
)

const (
	clusterRange = "10.240.0.0/12"
	echoPort     = 8080
	objectsFile  = "/run/objects.yaml"
	// The argument that has this program be the pods' server, and what it writes when it is.
	echoSide, wordReady = "echo", "ready"
)

// objects are a service with four endpoints.
const objects = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ports: [{name: tcp, port: 80, targetPort: 8080, protocol: TCP}, {name: udp, port: 80, targetPort: 8080, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: tcp, port: 8080, protocol: TCP}, {name: udp, port: 8080, protocol: UDP}]
endpoints: [{addresses: [10.244.0.10]}, {addresses: [10.244.0.11]}, {addresses: [10.244.0.12]}, {addresses: [10.244.0.13]}]
`

// topology is a client and pods with a node in between. The route to forged sources uses
// another interface of the node, whose peer drops the packets.
type topology struct {
	client, node, pods *netns.Namespace
	echo, daemon       *process.Process
}

func newTopology() (_ *topology, err error) {
	t := &topology{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("topology: %w", err), t.close())
		}
	}()
	for name, n := range map[string]**netns.Namespace{"client": &t.client, "node": &t.node, "pods": &t.pods} {
		if *n, err = netns.New(name); err != nil {
			return nil, err
		}
	}
	steps := []error{
		t.node.AddVeth("clients", t.client, "eth0"), t.node.AddAddress("clients", clientGateway), t.client.AddAddress("eth0", clientAddress),
		t.client.AddRoute(netns.Route{Destination: anywhere, Via: clientGateway.Addr(), Link: "eth0"}),
		t.node.AddVeth("pods", t.pods, "eth0"), t.node.AddAddress("pods", podGateway),
		// Without ARP, packets get an Ethernet address that the other end does not have.
		t.node.AddVeth("void", t.client, "void"), t.node.Do(func() error { return arpOff("void") }),
		t.node.AddRoute(netns.Route{Destination: forged, Link: "void"}),
		t.node.SetSysctl("net.ipv4.ip_forward", "1"),
	}
	for i := range uint32(4) {
		steps = append(steps, t.pods.AddAddress("eth0", netip.PrefixFrom(traffic.Advance(podAddress.Addr(), i), podGateway.Bits())))
	}
	steps = append(steps, t.pods.AddRoute(netns.Route{Destination: anywhere, Via: podGateway.Addr(), Link: "eth0"}))
	for _, link := range []string{"all", "lo", "clients", "pods", "void"} {
		steps = append(steps, t.node.SetSysctl("net.ipv4.conf."+link+".rp_filter", "0"))
	}
	if err := errors.Join(steps...); err != nil {
		return nil, err
	}
	if t.echo, err = process.StartSelf(t.pods, echoSide, nil); err != nil {
		return nil, err
	}
	return t, t.echo.Await(wordReady)
}

func arpOff(link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	return netlink.LinkSetARPOff(l)
}

// entries counts those of the node's connection table.
func (t *topology) entries() (int, error) {
	text, err := t.node.Sysctl("net.netfilter.nf_conntrack_count")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// close ends everything, the node's connection entries first: they would go some time after
// the namespace, while the next is measured.
func (t *topology) close() error {
	err := errors.Join(t.daemon.Stop(), t.echo.Stop())
	if t.node != nil {
		err = errors.Join(err, t.node.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
	}
	for _, n := range []*netns.Namespace{t.client, t.node, t.pods} {
		if n != nil {
			err = errors.Join(err, n.Close())
		}
	}
	return err
}
