package servicetable

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// annotated is a Service with the annotation; empty: without one.
func annotated(algorithm string) *corev1.Service {
	s := service(withIPs("10.96.0.20"))
	if algorithm != "" {
		s.Annotations = map[string]string{AnnotationBalance: algorithm}
	}
	return s
}

// TestBalance: the annotation has precedence over the flag; a mistake is a warning and the flag's.
func TestBalance(t *testing.T) {
	for _, tt := range []struct {
		flag, annotation, want, warning string
	}{
		{"", "", "", ""},
		{"lc", "", "lc", ""},
		{"", "maglev", "maglev", ""},
		{"lc", "random", "", ""},
		{"lc", "jsq(3)", "jsq(3)", ""},
		{"lc", "best", "lc", `service default/web: annotation nfqproxy.io/balance: balancing algorithm "best": unknown`},
		{"", "jsq(0)", "", `it is balanced by random`},
	} {
		got, warnings := Build(&kube.Objects{Services: []*corev1.Service{annotated(tt.annotation)}}, NodeConfig{Balance: tt.flag})
		if got[0].Balance != tt.want {
			t.Errorf("--balance %q, annotation %q: %q, want %q", tt.flag, tt.annotation, got[0].Balance, tt.want)
		}
		if all := strings.Join(warnings, "\n"); !strings.Contains(all, tt.warning) || tt.warning == "" && all != "" {
			t.Errorf("--balance %q, annotation %q: warnings %q, want %q", tt.flag, tt.annotation, all, tt.warning)
		}
	}
	s := annotated("lc")
	s.Annotations[AnnotationDecide] = "kernel"
	if _, warnings := Build(&kube.Objects{Services: []*corev1.Service{s}}, NodeConfig{}); len(warnings) != 1 || !strings.Contains(warnings[0], "lc balances only the flows that the daemon decides") {
		t.Errorf("decided by the kernel: warnings %q", warnings)
	}
}

// weighted is a slice of three pods with a weight; empty: without one.
func weighted(weight string) *discoveryv1.EndpointSlice {
	s := slice("web-1", discoveryv1.AddressTypeIPv4, 8080, ready("10.244.1.1"), ready("10.244.1.2"), ready("10.244.1.3"))
	if weight != "" {
		s.Annotations = map[string]string{AnnotationWeight: weight}
	}
	for i := range s.Endpoints {
		s.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-" + string(rune('a'+i))}
	}
	return s
}

func podOfWeight(name, weight string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{AnnotationWeight: weight}}}
}

func weightsOf(s *decision.ServicePort) (w []uint16) {
	for _, e := range s.Endpoints {
		w = append(w, e.Weight)
	}
	return w
}

// TestWeights: those of a slice, and those of pods, which have precedence.
func TestWeights(t *testing.T) {
	for _, tt := range []struct {
		slice   string
		pods    []*corev1.Pod
		want    []uint16
		warning string
	}{
		{"", nil, []uint16{1, 1, 1}, ""},
		{"5", nil, []uint16{5, 5, 5}, ""},
		{"5", []*corev1.Pod{podOfWeight("web-b", "0"), podOfWeight("other", "7")}, []uint16{5, 0, 5}, ""},
		{"", []*corev1.Pod{podOfWeight("web-c", "65535")}, []uint16{1, 1, 65535}, ""},
		{"heavy", nil, []uint16{1, 1, 1}, `endpointslice default/web-1: annotation nfqproxy.io/weight "heavy": want a number from 0 to 65535`},
		{"3", []*corev1.Pod{podOfWeight("web-a", "-1")}, []uint16{3, 3, 3}, `pod default/web-a: annotation nfqproxy.io/weight "-1"`},
	} {
		objects := &kube.Objects{Services: []*corev1.Service{annotated("wrr")}, EndpointSlices: []*discoveryv1.EndpointSlice{weighted(tt.slice)}, Pods: tt.pods}
		got, warnings := Build(objects, NodeConfig{})
		if w := weightsOf(got[0]); !slices.Equal(w, tt.want) {
			t.Errorf("slice %q, pods %v: weights %v, want %v", tt.slice, tt.pods, w, tt.want)
		}
		if all := strings.Join(warnings, "\n"); !strings.Contains(all, tt.warning) || tt.warning == "" && all != "" {
			t.Errorf("slice %q: warnings %q, want %q", tt.slice, all, tt.warning)
		}
	}
	if o := NewEndpointSlice(NewEndpointSlice(weighted("5")).Object()); o.weight != 5 {
		t.Errorf("a slice that was written and read has the weight %d", o.weight)
	}
}

// TestWeightChanges: a pod's new weight makes a new table, and nothing else does.
func TestWeightChanges(t *testing.T) {
	b := newBuilder(NodeConfig{})
	objects := &kube.Objects{Services: []*corev1.Service{annotated("wrr")}, EndpointSlices: []*discoveryv1.EndpointSlice{weighted("")}}
	b.apply(fullUpdate(objects))
	b.build()
	for _, tt := range []struct {
		pods []*corev1.Pod
		want []uint16 // nil: no change
	}{
		{[]*corev1.Pod{podOfWeight("web-a", "2")}, []uint16{2, 1, 1}},
		{[]*corev1.Pod{podOfWeight("web-a", "2"), podOfWeight("unknown", "2")}, nil},
		{[]*corev1.Pod{podOfWeight("web-b", "3")}, []uint16{1, 3, 1}},
		{nil, []uint16{1, 1, 1}},
	} {
		objects.Pods = tt.pods
		b.apply(fullUpdate(objects))
		changes, _ := b.build()
		if tt.want == nil {
			if len(changes) != 0 {
				t.Errorf("pods %v: %d changes, want none", tt.pods, len(changes))
			}
			continue
		}
		if len(changes) != 1 || !slices.Equal(weightsOf(changes[0].Ports[0]), tt.want) {
			t.Errorf("pods %v: changes %+v, want weights %v", tt.pods, changes, tt.want)
		}
	}
}

// TestBalanceByHand: an algorithm that is set by hand counts until it is taken back, and is in force
// when Balance returns.
func TestBalanceByHand(t *testing.T) {
	objects := &kube.Objects{Services: []*corev1.Service{annotated("rr")}}
	ctx, cancel := context.WithCancel(t.Context())
	tables := make(chan *decision.Table, 10)
	var last *decision.Table
	c, err := New(Config{
		Objects: source(func(ctx context.Context, publish func(Update)) error {
			publish(fullUpdate(objects))
			<-ctx.Done()
			return nil
		}),
		Addresses: fixedAddresses(), Publish: func(t *decision.Table) { last = t; tables <- t }, Logger: slog.New(slog.DiscardHandler),
		Progress: noProgress{}, Warned: func(Warning) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	netnstest.Receive(t, tables, "the first table")
	name := decision.ServiceName{Namespace: "default", Name: "web"}
	for _, tt := range []struct {
		algorithm *string
		want      string
	}{{new("maglev"), "maglev"}, {new("random"), ""}, {new("best"), "error"}, {nil, "rr"}} {
		short, stop := context.WithTimeout(ctx, time.Minute)
		err := c.Balance(short, name, tt.algorithm)
		stop()
		if (err != nil) != (tt.want == "error") {
			t.Errorf("%v: error %v", tt.algorithm, err)
		}
		if got := last.Services()[0].Balance; err == nil && got != tt.want {
			t.Errorf("in force: %q, want %q", got, tt.want)
		}
	}
	if err := c.Balance(ctx, decision.ServiceName{Namespace: "default", Name: "nothing"}, nil); err == nil || !strings.Contains(err.Error(), "there is no service default/nothing") {
		t.Errorf("unknown service: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// source is a Source.
type source func(context.Context, func(Update)) error

func (s source) Run(ctx context.Context, publish func(Update)) error { return s(ctx, publish) }

func TestQueueOneIn(t *testing.T) {
	for _, c := range []struct {
		value   string // "-": there is no annotation
		kernel  bool   // --decide
		bound   bool   // session affinity
		want    uint32
		warning string
	}{
		{"-", false, false, 0, ""},
		{"-", true, false, decision.NotQueued, ""},
		{"queue", true, false, 0, ""},
		{"queue/1", true, false, 0, ""},
		{"kernel", false, false, decision.NotQueued, ""},
		{"queue/100", false, false, 100, ""},
		{"queue/1000000", false, false, 1000000, ""},
		{"queue/1000001", false, false, 0, `want "queue", "kernel" or "queue/N"`},
		{"queue/0", true, false, decision.NotQueued, "ignored"},
		{"queue/-1", false, false, 0, "ignored"},
		{"queue/", false, false, 0, "ignored"},
		{"", false, false, 0, "ignored"},
		{"Kernel", false, false, 0, "ignored"},
		{"kernel", false, true, decision.NotQueued, ""},
		{"queue/100", false, true, 100, "session affinity"},
		{"queue", false, true, 0, ""},
	} {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
		if c.value != "-" {
			svc.Annotations = map[string]string{"nfqproxy.io/decide": c.value}
		}
		if c.bound {
			svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}
		if got := queueOneIn(svc, location{kernelDecides: c.kernel}); got != c.want {
			t.Errorf("%q: %d, want %d", c.value, got, c.want)
		}
		if got := strings.Join(decideWarnings(svc), "\n"); !strings.Contains(got, c.warning) || c.warning == "" && got != "" {
			t.Errorf("%q: warning %q, want %q", c.value, got, c.warning)
		}
	}
}
