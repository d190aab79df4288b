package daemon

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// soakService is a service of TCP and UDP in both families.
type soakService struct {
	name     string
	number   int
	tcp, udp uint16 // target ports, which no other service has
	pods     []lab.Pod
}

// newSoakService makes all pods that serve anything serve the service, too.
//
// Services do not share target ports: a client that connects from one port to two of them
// would be one peer to the endpoint, which tells a new connection from a stray packet of the
// last one by sequence numbers and time stamps that are of either service.
func newSoakService(number int, spec *lab.Spec) *soakService {
	s := &soakService{name: fmt.Sprintf("soak-%d", number), number: number, tcp: uint16(8100 + number), udp: uint16(5300 + number)}
	for i := range spec.Pods {
		if p := &spec.Pods[i]; len(p.Ports) > 0 {
			p.Ports = append(p.Ports, lab.Port{Port: s.tcp, Protocol: decision.TCP}, lab.Port{Port: s.udp, Protocol: decision.UDP})
			s.pods = append(s.pods, *p)
		}
	}
	return s
}

func (s *soakService) clusterIP(f decision.Family) netip.Addr {
	if f == decision.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:10:96:1::%x", s.number))
	}
	return netip.AddrFrom4([4]byte{10, 96, 1, byte(s.number)})
}

// port is the one on the cluster IP.
func (s *soakService) port(network string) uint16 {
	if network == "udp" {
		return 53
	}
	return 80
}

// nodePort is of both protocols.
func (s *soakService) nodePort() uint16 { return uint16(30200 + s.number) }

// condition is what an EndpointSlice says of an endpoint. Its server runs in any case.
type condition int

const (
	ready condition = iota
	draining
	unready
	absent
	conditions
)

func (c condition) fields() discoveryv1.EndpointConditions {
	ready, serving, terminating := c == ready, c == ready || c == draining, c == draining
	return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
}

func (s *soakService) allReady() []condition { return make([]condition, len(s.pods)) }

// someUsable draws conditions with which the service can be reached: where none of the
// endpoints is ready, those that are about to go serve on.
func (s *soakService) someUsable(r *rand.Rand) []condition {
	for {
		list := make([]condition, len(s.pods))
		for i := range list {
			list[i] = condition(r.IntN(int(conditions)))
		}
		if slices.Contains(list, ready) || slices.Contains(list, draining) {
			return list
		}
	}
}

func (s *soakService) file(dir string) string { return filepath.Join(dir, s.name+".yaml") }

// write puts the service and its endpoints into the directory, in the stead of what it was.
func (s *soakService) write(dir string, list []condition) error {
	ip4, ip6 := s.clusterIP(decision.IPv4).String(), s.clusterIP(decision.IPv6).String()
	objects := []any{&corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: s.name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ClusterIP: ip4, ClusterIPs: []string{ip4, ip6},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: int32(s.port("tcp")), NodePort: int32(s.nodePort()), TargetPort: intstr.FromInt32(int32(s.tcp))},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: int32(s.port("udp")), NodePort: int32(s.nodePort()), TargetPort: intstr.FromInt32(int32(s.udp))},
			},
		},
	}}
	for i, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: s.name + "-" + strings.ToLower(string(family)), Labels: map[string]string{discoveryv1.LabelServiceName: s.name}},
			AddressType: family,
			Ports: []discoveryv1.EndpointPort{
				{Name: new("tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(s.tcp))},
				{Name: new("udp"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(s.udp))},
			},
		}
		for j, c := range list {
			if c != absent {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{s.pods[j].Addresses[i].String()}, Conditions: c.fields(), NodeName: &s.pods[j].Node,
				})
			}
		}
		objects = append(objects, slice)
	}
	var text []byte
	for _, o := range objects {
		b, err := yaml.Marshal(o)
		if err != nil {
			return err
		}
		text = append(append(text, "---\n"...), b...)
	}
	temporary := filepath.Join(dir, "."+s.name)
	return errors.Join(os.WriteFile(temporary, text, 0o644), os.Rename(temporary, s.file(dir)))
}

// soakChurn changes the services until it is stopped.
type soakChurn struct {
	c       *soakCluster
	cancel  context.CancelFunc
	ended   chan struct{} // what follows is valid when it is closed
	changes int
	err     error
}

// churnInterval is longer than the daemons wait for more changes: each one counts.
const churnInterval = 150 * time.Millisecond

func (c *soakCluster) startChurn() *soakChurn {
	ctx, cancel := context.WithCancel(context.Background())
	churn := &soakChurn{c: c, cancel: cancel, ended: make(chan struct{})}
	c.T.Cleanup(churn.end)
	go func() {
		defer close(churn.ended)
		churn.err = churn.run(ctx)
	}()
	return churn
}

func (churn *soakChurn) run(ctx context.Context) error {
	c, r := churn.c, rand.New(rand.NewPCG(1, 1))
	tick := time.NewTicker(churnInterval)
	defer tick.Stop()
	for there := true; ; churn.changes++ {
		select {
		case <-ctx.Done():
			return c.flapping.write(c.objects, c.flapping.allReady())
		case <-tick.C:
		}
		var err error
		switch turn := churn.changes % (len(c.changing) + 1); {
		case turn < len(c.changing):
			s := c.changing[turn]
			err = s.write(c.objects, s.someUsable(r))
		case there:
			there, err = false, os.Remove(c.flapping.file(c.objects))
		default:
			there, err = true, c.flapping.write(c.objects, c.flapping.someUsable(r))
		}
		if err != nil {
			return err
		}
	}
}

func (churn *soakChurn) end() {
	churn.cancel()
	<-churn.ended
}

// stop ends it with all services there.
func (churn *soakChurn) stop() {
	churn.c.T.Helper()
	churn.end()
	churn.c.Must(churn.err)
	churn.c.T.Logf("%d changes", churn.changes)
}
