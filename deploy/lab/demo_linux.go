package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// demo is a lab in a demonstration.
type demo struct {
	*page
	lab      *Lab
	spec     *Spec
	services []*decision.ServicePort
	observer *observer
}

// sceneTimeout is the limit for a scene. A scene takes milliseconds, except on a busy machine.
const sceneTimeout = time.Minute

// download is the size of the last scene's download, in bytes.
const download = 10 << 20

// demonstrate shows one scene after the other.
func demonstrate(ctx context.Context, l *Lab, services []*decision.ServicePort, o RunOptions) error {
	style := styleFor(o.Stdout, l.Spec())
	d := &demo{page: newPage(o.Stdout, style), lab: l, spec: l.Spec(), services: services, observer: &observer{l}}
	on := "each node"
	if others := slices.ContainsFunc(d.spec.Nodes, func(n Node) bool { return !n.HasDaemon() }); others {
		on = "some nodes, whose flows are recorded"
	}
	d.printf("Lab %s: a cluster in network namespaces, with an nfqproxy on %s.\n\n", d.spec.Name, on)
	if err := writeMap(o.Stdout, d.spec, services); err != nil {
		return err
	}
	d.printf("\n%s", legend)
	for _, scene := range []func(context.Context) error{d.clusterIP, d.udp, d.nodePort, d.hairpin, d.noEndpoints, d.offload} {
		sctx, cancel := context.WithTimeoutCause(ctx, sceneTimeout, fmt.Errorf("took longer than %s", sceneTimeout))
		err := scene(sctx)
		cancel()
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if err != nil {
			d.check(false, "%v", err)
		}
	}
	if err := d.summary(); err != nil {
		return err
	}
	d.printf("\nNext:\n")
	next := [][2]string{
		{"lab up " + o.name(), "run this lab until Ctrl-C, with a web page"},
		{"lab list", "list the other labs"},
		{"explain --help", "predict the path of a packet in your cluster"},
	}
	width := 0
	for _, n := range next {
		width = max(width, len(n[0]))
	}
	for _, n := range next {
		d.printf("  %s %-*s  # %s\n", program(), width, n[0], n[1])
	}
	return nil
}

// find returns the most suitable service port with a kind of server, and a client pod for it. The port's traffic
// policy must allow any endpoint for any pod.
func (d *demo) find(kind labapi.Server, suits func(*decision.ServicePort) bool) (*decision.ServicePort, *Pod) {
	svc := bestService(d.spec, d.services, func(s *decision.ServicePort) bool {
		return s.InternalPolicy == decision.Cluster && isServedBy(d.spec, s, kind) && suits(s) && clientOf(d.spec, s, (*Node).HasDaemon) != nil
	})
	if svc == nil {
		return nil, nil
	}
	return svc, clientOf(d.spec, svc, (*Node).HasDaemon)
}

func isTCP(s *decision.ServicePort) bool { return s.Protocol == decision.TCP }
func isUDP(s *decision.ServicePort) bool { return s.Protocol == decision.UDP }

func (d *demo) clusterIP(ctx context.Context) error {
	return d.fromPod(ctx, labapi.AnswerServer, isTCP, "A pod connects to a Service", "GET http://%s/", d.observer.get)
}

func (d *demo) udp(ctx context.Context) error {
	if svc, _ := d.find(labapi.AnswerServer, isUDP); svc == nil {
		return d.fromPod(ctx, labapi.DNSServer, isUDP, "A pod sends a DNS query to a Service", demoQuery+" TXT, to %s", d.observer.lookup)
	}
	return d.fromPod(ctx, labapi.AnswerServer, isUDP, "A pod sends a datagram to a Service", "one datagram to %s", d.observer.send)
}

// fromPod shows a request of a pod to a cluster IP.
func (d *demo) fromPod(ctx context.Context, kind labapi.Server, suits func(*decision.ServicePort) bool, title, request string, do func(ctx context.Context, host, node string, to netip.AddrPort) (*exchange, error)) error {
	svc, pod := d.find(kind, suits)
	if svc == nil {
		return nil
	}
	to := netip.AddrPortFrom(svc.ClusterIP, svc.Port)
	d.scene(title)
	d.row("request", "%s on %s: "+request, pod.FullName(), pod.Node, to)
	x, err := do(ctx, pod.FullName(), pod.Node, to)
	if err != nil {
		return err
	}
	defer x.Close()
	d.exchange(x, svc)
	d.checkSource(x)
	return nil
}

// checkSource checks the client address that the server of a pod's request saw.
func (d *demo) checkSource(x *exchange) {
	if d.spec.Proxy.MasqueradeAll {
		d.check(addrOf(x.answer.Client) == x.record.MasqueradeAddress, "the server saw %s, an address of the node: masqueradeAll is set", x.record.MasqueradeAddress)
		return
	}
	d.check(x.answer.Client == x.source.String(), "the server saw the pod's own address: the source was not masqueraded")
}

func (d *demo) nodePort(ctx context.Context) error {
	svc := bestService(d.spec, d.services, func(s *decision.ServicePort) bool {
		return isTCP(s) && s.NodePort != 0 && s.ExternalPolicy == decision.Cluster && isServed(d.spec, s) && outsiderOf(d.spec, s.Family) != nil
	})
	if svc == nil {
		return nil
	}
	client := outsiderOf(d.spec, svc.Family)
	node, at := nodePortTarget(d.spec, svc, (*Node).HasDaemon)
	if node == nil {
		return nil
	}
	to := netip.AddrPortFrom(at, svc.NodePort)
	d.scene("An external client connects to a node port")
	d.row("request", "%s: GET http://%s/ (node %s)", client.Name, to, node.Name)
	x, err := d.observer.get(ctx, client.Name, node.Name, to)
	if err != nil {
		return err
	}
	defer x.Close()
	d.exchange(x, svc)
	d.check(x.record.Entry == decision.EntryNodePort.String(), "the flow entered by the node port")
	d.check(addrOf(x.answer.Client) == x.record.MasqueradeAddress && x.record.MasqueradeAddress != "",
		"the server saw %s, an address of node %s: the reply comes back this way", x.record.MasqueradeAddress, node.Name)
	if p := d.spec.PodAt(addrPort(x.record.Endpoint).Addr()); p != nil && p.Node != node.Name {
		d.check(true, "the pod is on another node, %s", p.Node)
	}
	return nil
}

// hairpinAttempts makes it certain enough that a pod reaches itself: with two endpoints it does
// not in one of 2^64 demos.
const hairpinAttempts = 64

func (d *demo) hairpin(ctx context.Context) error {
	svc := bestService(d.spec, d.services, func(s *decision.ServicePort) bool {
		return isTCP(s) && s.InternalPolicy == decision.Cluster && s.AffinitySeconds == 0 && isServed(d.spec, s)
	})
	if svc == nil {
		return nil
	}
	var pod *Pod
	for _, e := range svc.UsableEndpoints(decision.Cluster) {
		if p := d.spec.PodAt(e.AddrPort.Addr()); pod == nil && d.spec.Node(p.Node).HasDaemon() {
			pod = p
		}
	}
	if pod == nil {
		return nil
	}
	to := netip.AddrPortFrom(svc.ClusterIP, svc.Port)
	if d.spec.Proxy.NoHairpinMasquerade {
		return d.brokenHairpin(ctx, pod, to)
	}
	d.scene("A pod connects to its own Service and reaches itself")
	for try := 1; try <= hairpinAttempts; try++ {
		x, err := d.observer.get(ctx, pod.FullName(), pod.Node, to)
		if err != nil {
			return err
		}
		if x.answer.Pod != pod.FullName() {
			_ = x.Close()
			continue
		}
		defer x.Close()
		d.row("request", "%s on %s: GET http://%s/ (reached itself at attempt %d)", pod.FullName(), pod.Node, to, try)
		d.exchange(x, svc)
		d.check(x.record.Masquerade && addrOf(x.answer.Client) == x.record.MasqueradeAddress,
			"the pod saw %s, not its own address: it would reply to that directly, past the translation", x.record.MasqueradeAddress)
		return nil
	}
	return fmt.Errorf("in %d attempts %s never reached itself", hairpinAttempts, pod.FullName())
}

// hairpinTimeout is how long a pod waits for the reply that cannot arrive. Other replies
// take less than a millisecond.
const hairpinTimeout = time.Second

// brokenHairpin shows the failure of a hairpin flow without masquerading.
func (d *demo) brokenHairpin(ctx context.Context, pod *Pod, to netip.AddrPort) error {
	d.scene("A pod connects to its own Service and reaches itself, without masquerading")
	for try := 1; try <= hairpinAttempts; try++ {
		tctx, cancel := context.WithTimeout(ctx, hairpinTimeout)
		x, err := d.observer.get(tctx, pod.FullName(), pod.Node, to)
		cancel()
		if err == nil {
			_ = x.Close() // it reached another pod; or this reply is the error below
			if x.answer.Pod != pod.FullName() {
				continue
			}
			return fmt.Errorf("%s reached itself and got a reply, without masquerading", pod.FullName())
		}
		own := joined(pod.Addresses, ",")
		r, err := d.observer.record(ctx, pod.Node, observe.FlowQuery{Source: own, Destination: to.String(), Endpoint: own})
		if err != nil {
			return err
		}
		d.row("request", "%s on %s: GET http://%s/ (reached itself at attempt %d)", pod.FullName(), pod.Node, to, try)
		d.row("reply", "none within %s", hairpinTimeout)
		d.decision(r)
		e, err := entry(d.lab.topology.find(pod.Node).Namespace, decision.TCP, addrPort(r.Source), to)
		if err != nil {
			return err
		}
		d.conntrack(&e)
		d.check(d.chosen(r) == pod.FullName() && !r.Masquerade, "the pod itself was selected, and its source stayed unchanged: masqueradeHairpin is off")
		d.check(e.Reply.Destination.Addr() == addrPort(r.Endpoint).Addr() && e.Received.Packets == 0,
			"the reply would go from the pod to itself: it would never pass %s, which translates it", pod.Node)
		return nil
	}
	return fmt.Errorf("in %d attempts %s never reached itself", hairpinAttempts, pod.FullName())
}

func (d *demo) noEndpoints(ctx context.Context) error {
	var svc *decision.ServicePort
	var pod *Pod
	for _, s := range d.services {
		if isTCP(s) && !s.HasEndpoints && svc == nil {
			svc, pod = s, clientOf(d.spec, s, (*Node).HasDaemon)
		}
	}
	if svc == nil || pod == nil {
		return nil
	}
	to := netip.AddrPortFrom(svc.ClusterIP, svc.Port)
	d.scene("A Service without endpoints")
	d.row("request", "%s on %s: GET http://%s/", pod.FullName(), pod.Node, to)
	began := time.Now()
	err := d.observer.refused(ctx, pod.FullName(), to)
	took := time.Since(began)
	d.row("result", "%v, after %s", cause(err), took.Round(10*time.Microsecond))
	record, rerr := d.observer.record(ctx, pod.Node, observe.FlowQuery{Destination: to.String()})
	if rerr != nil {
		return rerr
	}
	d.decision(record)
	d.check(errors.Is(err, unix.ECONNREFUSED), "connection refused at once, without a timeout")
	d.check(record.Verdict == decision.Reject.String() && record.Reason == decision.NoEndpoints.String(), "the reason is that the Service has no endpoints")
	return nil
}

// offload shows that only the first packet of a connection leaves the kernel.
func (d *demo) offload(ctx context.Context) error {
	svc, pod := d.find(labapi.AnswerServer, isTCP)
	if svc == nil {
		return nil
	}
	to := netip.AddrPortFrom(svc.ClusterIP, svc.Port)
	d.scene("Only the first packet leaves the kernel")
	d.row("request", "%s on %s: GET http://%s/download?bytes=%d", pod.FullName(), pod.Node, to, download)
	node := d.lab.topology.find(pod.Node).Namespace
	before, err := queued(node)
	if err != nil {
		return err
	}
	began := time.Now()
	x, n, err := d.observer.download(ctx, pod.FullName(), pod.Node, to, download)
	if err != nil {
		return err
	}
	defer x.Close()
	took := time.Since(began)
	after, err := queued(node)
	if err != nil {
		return err
	}
	d.row("reply", "%.1f MB from %s in %s", float64(n)/1e6, d.chosen(x.record), took.Round(time.Millisecond))
	d.conntrack(&x.entry)
	packets := x.entry.Sent.Packets + x.entry.Received.Packets
	d.row("packets", "%6d entered the queue (id_sequence in /proc/net/netfilter/nfnetlink_queue)", after-before)
	d.row("", "%6d in the connection (with segmentation offload, so large ones)", packets)
	d.check(n == download, "all bytes arrived")
	d.check(after-before == 1, "one packet was decided in user space, the first")
	d.check(packets > 20, "the other %d stayed in the kernel", packets-min(packets, after-before))
	return nil
}

// exchange shows the reply, the decision and the connection entry of a request, and makes the
// checks of every flow to a service.
func (d *demo) exchange(x *exchange, svc *decision.ServicePort) {
	d.row("reply", "from %s on %s, at %s", x.answer.Who(), x.answer.Node, x.answer.Local)
	d.row("", "to %s, the client address that the server sees", x.answer.Client)
	d.decision(x.record)
	d.conntrack(&x.entry)
	chosen := d.chosen(x.record)
	d.check(x.record.Service == svc.Name.String() && x.answer.Pod == chosen && x.answer.Local == x.record.Endpoint,
		"the selected endpoint replied: %s at %s", chosen, x.record.Endpoint)
	d.check(x.entry.Endpoint() == addrPort(x.record.Endpoint) && x.record.Conntrack == "created",
		"the kernel's entry translates %s to %s", x.record.Destination, x.record.Endpoint)
}

// decision shows a record and the walk behind it.
func (d *demo) decision(r *flow.Record) {
	line := *r
	line.Time, line.Node = nil, ""
	style := d.style
	style.NodeWidth = 0
	d.row("decision", "%s", style.Outcome(&line))
	d.block(style.Steps(r.Steps, "", text.WalkWords))
}

// conntrack shows the kernel's entry.
func (d *demo) conntrack(s *conntrack.State) {
	for i, line := range entryLines(s) {
		label := "conntrack"
		if i > 0 {
			label = ""
		}
		d.row(label, "%s", line)
	}
}

// chosen is the pod that a decision selected, by its address: the objects need not name it.
func (d *demo) chosen(r *flow.Record) string {
	if p := d.spec.PodAt(addrPort(r.Endpoint).Addr()); p != nil {
		return p.FullName()
	}
	return ""
}
