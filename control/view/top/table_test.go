package top

import (
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestTitle: the first line agrees with the services below it, and counts what is for no
// service apart.
func TestTitle(t *testing.T) {
	m := New(t.Context(), nil, Options{Zone: time.UTC})
	at := time.Unix(0, 0)
	seen := func(total, open, others uint64) *snapshot {
		at = at.Add(time.Second)
		return newSnapshot(at, &observe.Services{Nodes: []string{"a"}, Services: []observe.Service{
			{Service: "default/web", Flows: observe.Flows{Total: total, Open: open}}, {Service: "default/db", Flows: observe.Flows{Total: total, Open: 1}},
		}}, []observe.Stats{{Known: observe.Known{Open: 999}, Kernel: observe.Kernel{Following: true}, Reasons: map[string]uint64{"not-a-service": others, "balanced": 2 * total}}})
	}
	m.before, m.seen = seen(10, 5, 100), seen(30, 4, 107)
	if want, got := "nfqproxy top  00:00:02  a  40 flows/s, 5 open; for no service 7.0 flows/s", m.top(content{})[0]; got != want {
		t.Errorf("title %q, want %q", got, want)
	}
	m.before, m.seen = m.seen, seen(30, 0, 107)
	if want, got := "nfqproxy top  00:00:03  a  0 flows/s, 1 open", m.top(content{})[0]; got != want {
		t.Errorf("title %q, want %q", got, want)
	}
}

// TestColumnsTakeTheRoom: names are cut only where the line is too short for them, and never
// so that a port is hidden.
func TestColumnsTakeTheRoom(t *testing.T) {
	at, count := time.Unix(0, 0), &flow.Count{Packets: 1, Bytes: 1500}
	r := &flow.Record{
		Time: &at, Protocol: "TCP", Verdict: "dnat", Service: "default/web", Node: "kind-control-plane",
		Source: "10.244.1.9:41007", SourcePod: "monitoring/prometheus-kube-prometheus-stack-0",
		Destination: "172.20.0.2:30080", Endpoint: "10.244.1.2:8080", Pod: "shop/frontend-7c9d8f6b5c-x2k4p",
		Life: &flow.Life{State: flow.Established, Sent: count, Received: count},
	}
	m := New(t.Context(), nil, Options{})
	line := func(width int) string {
		_, lines := m.layout(width, flowColumns, [][]cell{m.flowCells(r)})
		if got := len([]rune(lines[0])); got > width {
			t.Errorf("%d wide, the line has %d characters: %s", width, got, lines[0])
		}
		return lines[0]
	}
	wide := line(180)
	for _, want := range []string{r.SourcePod + ":41007", r.Pod + ":8080", " 30080 ", r.Node} {
		if !strings.Contains(wide, want) {
			t.Errorf("180 wide, %q is missing: %s", want, wide)
		}
	}
	for _, width := range []int{62, 78, 100, 120, 140} {
		text := line(width)
		for _, want := range []string{":41007 ", ":8080 ", " 30080 ", "established"} {
			if !strings.Contains(text, want) {
				t.Errorf("%d wide, %q is missing: %s", width, want, text)
			}
		}
		if strings.Contains(text, "…") && width-len([]rune(text)) > 2 {
			t.Errorf("%d wide, something is cut though there is room: %q", width, text)
		}
	}
}
