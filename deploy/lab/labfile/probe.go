package labfile

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nfqproxy/nfqproxy/control/labapi"
)

// Probed reports whether a lab runs a probe: it must be by HTTP or TCP.
func Probed(p *corev1.Probe) bool { return p != nil && (p.HTTPGet != nil || p.TCPSocket != nil) }

// CheckProbe reports what is wrong with the readiness probe of a pod with ports, with its field.
func CheckProbe(p *corev1.Probe, ports []labapi.Port) error {
	var v problems
	if v.probe("readinessProbe", p, ports); len(v.errs) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", v.errs[0].Field, v.errs[0].Err)
}

// probe checks the readiness probe of a host with ports.
func (v *problems) probe(at string, p *corev1.Probe, ports []labapi.Port) {
	if p == nil {
		return
	}
	for _, n := range []struct {
		field string
		value int32
	}{
		{"initialDelaySeconds", p.InitialDelaySeconds}, {"periodSeconds", p.PeriodSeconds}, {"timeoutSeconds", p.TimeoutSeconds},
		{"successThreshold", p.SuccessThreshold}, {"failureThreshold", p.FailureThreshold},
	} {
		if n.value < 0 || n.value > maxGrace {
			v.fail(at+"."+n.field, "%d: want a number from 1 to %d", n.value, maxGrace)
		}
	}
	switch {
	case p.HTTPGet != nil && p.TCPSocket != nil:
		v.fail(at, "httpGet and tcpSocket cannot be used together")
	case !Probed(p):
		v.fail(at, "a lab supports httpGet and tcpSocket")
	}
	check := func(at, host string, port intstr.IntOrString) {
		if _, err := ProbePort(port, ports); err != nil {
			v.fail(at+".port", "%w", err)
		}
		if host != "" {
			v.fail(at+".host", "a lab probes the pod's own address")
		}
	}
	if g := p.HTTPGet; g != nil {
		check(at+".httpGet", g.Host, g.Port)
		if g.Scheme != "" && g.Scheme != corev1.URISchemeHTTP {
			v.fail(at+".httpGet.scheme", "%s: the built-in server supports HTTP", g.Scheme)
		}
	}
	if s := p.TCPSocket; s != nil {
		check(at+".tcpSocket", s.Host, s.Port)
	}
}

// ProbePort is the number of a probe's port, which may be the name of one of the ports.
func ProbePort(port intstr.IntOrString, ports []labapi.Port) (uint16, error) {
	if port.Type == intstr.Int {
		if port.IntVal < 1 || port.IntVal > 65535 {
			return 0, fmt.Errorf("%d is not a port number (1 to 65535)", port.IntVal)
		}
		return uint16(port.IntVal), nil
	}
	i := slices.IndexFunc(ports, func(p labapi.Port) bool { return p.Name == port.StrVal })
	if i < 0 || port.StrVal == "" {
		return 0, fmt.Errorf("no port has the name %q", port.StrVal)
	}
	return ports[i].Port, nil
}
