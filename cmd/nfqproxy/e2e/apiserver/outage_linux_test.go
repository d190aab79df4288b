package apiserver

import (
	"flag"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// outages is a service that is asked for all the time, whatever happens to the control
// plane: its two pods stay.
type outages struct {
	*apiCluster
	fronts []front
	pods   []*pod
	extra  int // services made by obeys so far
}

// testOutages takes the control plane away in several ways. Every connection to the
// service has to be served meanwhile, and changes made afterwards obeyed.
func (c *apiCluster) testOutages() {
	svc := c.service("steady", "steady", withNodePort)
	o := &outages{apiCluster: c, fronts: append(fronts(svc), nodePort(svc, c.AddressOf("node-a", v4)))}
	o.pods = []*pod{c.pod("steady-1", "steady", "node-a"), c.pod("steady-2", "steady", "node-b")}
	c.reaches(o.fronts, o.pods...)
	t := c.T
	for _, s := range []struct {
		name    string
		disturb func()
		lossy   bool
	}{
		{"API server restarted", o.restart, false},
		{"API server away", o.away, false},
		{"daemon restarted while the API server is away", o.restartedAway, false},
		{"changes missed and history compacted", o.compacted, false},
		// The kernel drops what is in the queues when a base chain is deleted (nf_queue_nf_hook_drop).
		{"rules flushed", o.flushed, true},
		{"etcd frozen", o.etcdFrozen, false},
		{"etcd killed", o.etcdKilled, false},
	} {
		if !netnstest.Selected(s.name, "API server away", "rules flushed", "etcd killed") {
			continue
		}
		c.run(t, s.name, func() {
			l := c.newLoad(s.lossy, o.fronts...)
			s.disturb()
			o.obeys()
			l.turn()
			l.stop()
		})
	}
}

// obeys makes sure that new changes come into force. They need no controller: that one
// has its own way to come back.
func (o *outages) obeys() {
	o.T.Helper()
	o.extra++
	list, remove := o.manualService(fmt.Sprintf("extra-%d", o.extra), o.pods[1])
	o.reaches(list, o.pods[1])
	remove()
	o.ignores(list)
}

func (o *outages) restart() {
	o.Must(o.control.APIServer.Stop(), o.control.APIServer.Start(o.T.Context()))
}

// freeze is how long etcd does not answer: longer than what its client does at once.
const freeze = 5 * time.Second

// outage is how long the API server is away.
var outage = flag.Duration("outage", 10*time.Second, "how long the API server is away in TestAPIServer; the longest pause of its clients is one minute")

// away has the API server killed for some time. The daemons stay healthy, and decide by
// the last table.
func (o *outages) away() {
	before := o.reaches(o.fronts, o.pods...)
	o.Must(o.control.APIServer.Kill())
	<-time.After(*outage) // this is the case itself, not a wait for anything
	for node, r := range o.reaches(o.fronts, o.pods...) {
		if r.Generation != before[node].Generation || r.TableAge < (*outage).Seconds() {
			o.T.Errorf("%s: decided by table %d of %g s; want table %d, which is at least %s old", node, r.Generation, r.TableAge, before[node].Generation, *outage)
		}
		for _, path := range []string{"/healthz", "/livez", "/readyz"} {
			if code, body := o.Get(node, e2etest.HealthPort, path); code != http.StatusOK {
				o.T.Errorf("%s%s: %d %s; want 200: traffic is served", node, path, code, body)
			}
		}
	}
	o.Must(o.control.APIServer.Start(o.T.Context()))
}

// restartedAway restarts the daemons while the API server is away: they decide by the objects that they
// have saved.
func (o *outages) restartedAway() {
	ctx := o.T.Context()
	o.Must(o.control.APIServer.Kill(), o.StopDaemon(ctx, "node-a"), o.StartDaemon(ctx, "node-a"))
	o.Logged("serving by the saved objects until it does")
	o.reaches(o.fronts, o.pods...)
	o.Must(o.control.APIServer.Start(ctx))
}

// flushed flushes all rules of a node and loads others, as a restart of nftables.service does. The daemon
// owns its own.
func (o *outages) flushed() {
	netnstest.RequireTool(o.T, "nft")
	node := o.Host("node-a")
	tables, err := node.Run("", "nft", "list", "table", "ip", "nfqproxy")
	o.Must(err)
	if !strings.Contains(tables, "flags owner") {
		netnstest.Missing(o.T, "tables with an owner (Linux 6.9)")
	}
	for range 3 {
		_, err := node.Run("flush ruleset\ntable inet filter { chain input { type filter hook input priority filter; accept; }; }", "nft", "-f", "-")
		o.Must(err)
	}
}

// compacted cuts the daemons off from the API server, makes changes, and has the API
// server forget how it came to them. A client that goes on where it was is told that
// it cannot.
func (o *outages) compacted() {
	p := o.pods[0]
	gone, remove := o.manualService("gone", p)
	o.reaches(gone, p)
	c, ctx := o.control, o.T.Context()
	seen, err := c.Client().CoreV1().Services("default").List(ctx, metav1.ListOptions{})
	o.Must(err, c.APIServer.Kill())
	o.setLink(netlink.LinkSetDown)
	o.Must(c.APIServer.Start(ctx))

	made, removeMade := o.manualService("made", p)
	remove()
	o.reaches(gone, p) // no daemon can know
	o.Must(c.APIServer.Kill(), c.Compact(ctx), c.APIServer.Start(ctx))
	if err := watchError(o.T, o.apiCluster, seen.ResourceVersion); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		o.T.Errorf("watching from what the daemons have seen: %v; want 410", err)
	}
	o.setLink(netlink.LinkSetUp)

	o.reaches(made, p)
	o.ignores(gone)
	removeMade()
	o.ignores(made)
}

// manualService makes a service without a selector, and its IPv4 slice.
func (o *outages) manualService(name string, p *pod) (list []front, remove func()) {
	o.T.Helper()
	single := corev1.IPFamilyPolicySingleStack
	svc := o.apiCluster.service(name, "", func(s *corev1.ServiceSpec) { s.Selector, s.IPFamilyPolicy = nil, &single })
	var ports []discoveryv1.EndpointPort
	for _, sp := range svc.Spec.Ports {
		port := sp.TargetPort.IntVal
		ports = append(ports, discoveryv1.EndpointPort{Name: &sp.Name, Port: &port, Protocol: &sp.Protocol})
	}
	_, err := o.control.Client().DiscoveryV1().EndpointSlices("default").Create(o.T.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: ports,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{p.addresses[0].String()},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: p.object.Namespace, Name: p.object.Name},
		}},
	}, metav1.CreateOptions{})
	o.Must(err)
	return fronts(svc), func() {
		o.T.Helper()
		o.deleteService(name)
		o.Must(o.control.Client().DiscoveryV1().EndpointSlices("default").Delete(o.T.Context(), name, metav1.DeleteOptions{}))
	}
}

// setLink takes the control plane's host off the network, or puts it back.
func (o *outages) setLink(set func(netlink.Link) error) {
	o.T.Helper()
	o.Must(o.Host("control").Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return set(link)
	}))
}

// watchError is the error that a watch from a resource version begins with.
func watchError(t *testing.T, c *apiCluster, version string) error {
	t.Helper()
	seconds := int64(5)
	w, err := c.control.Client().CoreV1().Services("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version, TimeoutSeconds: &seconds})
	if err != nil {
		return err
	}
	defer w.Stop()
	if event, ok := <-w.ResultChan(); ok && event.Type == watch.Error {
		return apierrors.FromObject(event.Object)
	}
	return nil
}

func (o *outages) etcdFrozen() {
	o.Must(o.control.Etcd.Freeze())
	<-time.After(freeze)
	o.reaches(o.fronts, o.pods...)
	o.Must(o.control.Etcd.Thaw())
	o.awaitWritable()
}

func (o *outages) etcdKilled() {
	o.Must(o.control.Etcd.Kill())
	o.reaches(o.fronts, o.pods...)
	o.Must(o.control.Etcd.Start(o.T.Context()))
	o.awaitWritable()
}
