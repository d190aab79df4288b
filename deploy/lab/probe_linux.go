package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/lab/desired"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// probers run the readiness probes of a lab's pods, as the nodes' kubelets do.
type probers struct {
	byPod map[string]*prober // by full name; guarded by live.mu
	wg    sync.WaitGroup
}

// prober runs the readiness probe of one pod, from its node.
type prober struct {
	live *live
	pod  Pod
	node *netns.Namespace
	stop context.CancelFunc
}

// probe starts the probes of the pods there are now, and ends those of others. live.mu is held.
func (v *live) probe() {
	p := &v.probers
	if p.byPod == nil {
		p.byPod = make(map[string]*prober)
	}
	spec := v.state.Lab
	wanted := make(map[string]bool)
	for i := range spec.Pods {
		pod, name := spec.Pods[i], spec.Pods[i].FullName()
		pod.Deployment, pod.Labels, pod.GracePeriodSeconds = "", nil, nil
		node := v.lab.topology.find(pod.Node)
		if pod.ReadinessProbe == nil || node == nil || len(pod.Addresses) == 0 {
			continue
		}
		wanted[name] = true
		old := p.byPod[name]
		if old != nil && reflect.DeepEqual(old.pod, pod) {
			continue
		}
		if old != nil {
			old.stop()
		}
		ctx, stop := context.WithCancel(v.ctx)
		new := &prober{v, pod, node.Namespace, stop}
		p.byPod[name] = new
		p.wg.Go(func() { new.run(ctx) })
	}
	for name, old := range p.byPod {
		if !wanted[name] {
			old.stop()
			delete(p.byPod, name)
		}
	}
}

// run probes until the context ends. The defaults are those of Kubernetes (pkg/apis/core/v1/defaults.go).
func (p *prober) run(ctx context.Context) {
	spec := p.pod.ReadinessProbe
	seconds := func(n, normal int32) time.Duration { return time.Duration(cmp.Or(n, normal)) * time.Second }
	wait := time.NewTimer(seconds(spec.InitialDelaySeconds, 0))
	defer wait.Stop()
	result, same := desired.ProbeUnknown, int32(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		wait.Reset(seconds(spec.PeriodSeconds, 10))
		try, cancel := context.WithTimeout(ctx, seconds(spec.TimeoutSeconds, 1))
		what, err := p.try(try)
		cancel()
		if ctx.Err() != nil {
			return
		}
		now, threshold := desired.ProbeSucceeds, cmp.Or(spec.SuccessThreshold, 1)
		if err != nil {
			now, threshold = desired.ProbeFails, cmp.Or(spec.FailureThreshold, 3)
		}
		if now == result {
			same = 0
			continue
		}
		if same++; same < threshold {
			continue
		}
		result, same = now, 0
		p.report(ctx, result, what, err)
	}
}

// report puts a result in force. If that fails, the next change repairs it: the state has the result.
func (p *prober) report(ctx context.Context, result desired.ProbeResult, what string, err error) {
	name := p.pod.FullName()
	_, failed := p.live.change(ctx, func(s *desired.State, _ time.Time) ([]string, error) {
		if p.live.probers.byPod[name] != p {
			return nil, nil // it has just ended
		}
		failure, line := "", fmt.Sprintf("pod %s is ready: its probe succeeds: %s", name, what)
		if err != nil {
			failure = fmt.Sprintf("%s: %v", what, err)
			line = fmt.Sprintf("pod %s is not ready: its probe fails: %s", name, failure)
		}
		s.Probed(name, result, failure)
		return []string{line}, nil
	})
	if failed != nil && ctx.Err() == nil {
		p.live.lab.hub.publish(Event{Changes: []string{fmt.Sprintf("pod %s: the result of its probe is not in force: %v", name, failed)}})
	}
}

// try probes once. what is the request, for messages.
func (p *prober) try(ctx context.Context) (what string, err error) {
	spec := p.pod.ReadinessProbe
	if g := spec.HTTPGet; g != nil {
		port, err := labfile.ProbePort(g.Port, p.pod.Ports)
		if err != nil {
			return "httpGet", err
		}
		url := fmt.Sprintf("http://%s/%s", netip.AddrPortFrom(p.pod.Addresses[0], port), strings.TrimPrefix(g.Path, "/"))
		return "GET " + url, p.get(ctx, url, g.HTTPHeaders)
	}
	port, err := labfile.ProbePort(spec.TCPSocket.Port, p.pod.Ports)
	if err != nil {
		return "tcpSocket", err
	}
	to := netip.AddrPortFrom(p.pod.Addresses[0], port)
	conn, err := p.node.Dial(ctx, "tcp", netip.AddrPort{}, to)
	if err == nil {
		err = conn.Close()
	}
	return "connect to " + to.String(), withoutAddresses(err)
}

// get is successful with a status from 200 to 399.
func (p *prober) get(ctx context.Context, url string, headers []corev1.HTTPHeader) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	q.Header.Set("User-Agent", "kube-probe/nfqproxy")
	q.Header.Set("Accept", "*/*")
	for _, h := range headers {
		q.Header.Set(h.Name, h.Value)
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			q.Host = h.Value
		}
	}
	r, err := transport(p.node).RoundTrip(q)
	if err != nil {
		return withoutAddresses(err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 10<<10)) // only the status counts
	_ = r.Body.Close()
	if r.StatusCode < 200 || r.StatusCode >= 400 {
		return errors.New(r.Status)
	}
	return nil
}

// transport sends each request from a namespace on a connection of its own. Hosts of URLs are addresses.
func transport(ns *netns.Namespace) *http.Transport {
	return &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return ns.Dial(ctx, network, netip.AddrPort{}, addrPort(address))
	}}
}

// withoutAddresses is an error without the addresses that the request has.
func withoutAddresses(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) {
		return errors.New(reasonOf(err, "no answer"))
	}
	return err
}
