package hubblesource

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// began is the time of the first event of each test.
var began = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// packet is an event as Cilium sends it. Line is
//
//	MILLISECONDS POINT SOURCE -> DESTINATION [FLAGS] [reply|forward] [service=NAMESPACE/NAME] [xlated=ADDRESS] ...
//
// where POINT is a trace observation point, DROPPED, VERDICT, PRE or POST. Addresses without a port are those of events of
// sockets. Pods of node-a are 10.0.0.0/24, and of other nodes 10.0.1.0/24.
func packet(t testing.TB, line string) *hubblepb.GetFlowsResponse {
	t.Helper()
	words := strings.Fields(line)
	var ms int
	if _, err := fmt.Sscan(words[0], &ms); err != nil || len(words) < 5 {
		t.Fatalf("%s: %v", line, err)
	}
	f := &hubblepb.Flow{Time: timestamppb.New(began.Add(time.Duration(ms) * time.Millisecond)), NodeName: "prod/node-a", Type: hubblepb.FlowType_L3_L4, Verdict: hubblepb.Verdict_FORWARDED, IP: new(hubblepb.IP)}
	switch point := words[1]; point {
	case "DROPPED":
		f.Verdict, f.EventType = hubblepb.Verdict_DROPPED, &hubblepb.CiliumEventType{Type: eventDrop, SubType: 133}
		f.DropReasonDesc = hubblepb.DropReason_POLICY_DENIED
	case "VERDICT":
		f.EventType, f.IsReply = &hubblepb.CiliumEventType{Type: 5}, wrapperspb.Bool(false)
	case "PRE", "POST":
		f.Type, f.Verdict, f.EventType = hubblepb.FlowType_SOCK, hubblepb.Verdict_TRACED, &hubblepb.CiliumEventType{Type: eventTraceSock, SubType: 1}
		if point == "POST" {
			f.Verdict, f.EventType.SubType = hubblepb.Verdict_TRANSLATED, 2
		}
		f.CgroupId = 7
	default:
		at, ok := hubblepb.TraceObservationPoint_value[point]
		if !ok {
			t.Fatalf("%s: no observation point", line)
		}
		f.TraceObservationPoint = hubblepb.TraceObservationPoint(at)
		f.EventType = &hubblepb.CiliumEventType{Type: eventTrace, SubType: at % 101}
		f.TraceReason = hubblepb.TraceReason_TRACE_REASON_UNKNOWN
	}
	split := func(text string) (string, uint32) {
		if a, err := netip.ParseAddrPort(text); err == nil {
			return a.Addr().String(), uint32(a.Port())
		}
		return text, 0
	}
	from, fromPort := split(words[2])
	to, toPort := split(words[4])
	f.IP.Source, f.IP.Destination = from, to
	f.Source, f.Destination = endpointOf(from), endpointOf(to)
	var flags *hubblepb.TCPFlags
	protocol := "TCP"
	for _, w := range words[5:] {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "reply":
			f.IsReply, f.TraceReason = wrapperspb.Bool(true), hubblepb.TraceReason_REPLY
		case "forward":
			f.IsReply = wrapperspb.Bool(false)
		case "service":
			namespace, service, _ := strings.Cut(value, "/")
			f.DestinationService = &hubblepb.Service{Namespace: namespace, Name: service}
		case "xlated":
			f.IP.SourceXlated = value
		case "cookie":
			fmt.Sscan(value, &f.SocketCookie)
		case "node":
			f.NodeName = value
		case "UDP", "SCTP":
			protocol = name
		default:
			flags = &hubblepb.TCPFlags{SYN: strings.Contains(w, "S"), ACK: strings.Contains(w, "A"), FIN: strings.Contains(w, "F"), RST: strings.Contains(w, "R")}
		}
	}
	switch protocol {
	case "UDP":
		f.L4 = &hubblepb.Layer4{Protocol: &hubblepb.Layer4_UDP{UDP: &hubblepb.UDP{SourcePort: fromPort, DestinationPort: toPort}}}
	case "SCTP":
		f.L4 = &hubblepb.Layer4{Protocol: &hubblepb.Layer4_SCTP{SCTP: &hubblepb.SCTP{SourcePort: fromPort, DestinationPort: toPort}}}
	default:
		f.L4 = &hubblepb.Layer4{Protocol: &hubblepb.Layer4_TCP{TCP: &hubblepb.TCP{SourcePort: fromPort, DestinationPort: toPort, Flags: flags}}}
	}
	return &hubblepb.GetFlowsResponse{ResponseTypes: &hubblepb.GetFlowsResponse_Flow{Flow: f}, NodeName: f.NodeName, Time: f.Time}
}

func endpointOf(address string) *hubblepb.Endpoint {
	a, err := netip.ParseAddr(address)
	in := func(prefix string) bool { return err == nil && netip.MustParsePrefix(prefix).Contains(a) }
	switch {
	case in("10.0.0.0/24"), in("fd00:10::/64"):
		return &hubblepb.Endpoint{ID: 12, Identity: 4711, Namespace: "default", PodName: "local-" + address[strings.LastIndexAny(address, ".:")+1:]}
	case in("10.0.1.0/24"), in("fd00:10:0:1::/64"):
		return &hubblepb.Endpoint{Identity: 4712, Namespace: "default", PodName: "remote-" + address[strings.LastIndexAny(address, ".:")+1:]}
	case in("172.20.0.2/32"):
		return &hubblepb.Endpoint{Identity: identityHost, Labels: []string{"reserved:host"}}
	}
	return &hubblepb.Endpoint{Identity: identityWorld, Labels: []string{"reserved:world"}}
}

// listed are the records of events, a minute after the first.
func listed(t testing.TB, lines ...string) (got []string) {
	t.Helper()
	tr := newTracker()
	for _, line := range lines {
		tr.response(packet(t, line), began)
	}
	now := began.Add(time.Minute)
	tr.finish(now)
	records := tr.list(&observe.Filter{Limit: observe.All}, map[string]uint64{})
	for _, r := range records {
		got = append(got, brief(r))
	}
	return got
}

// brief is a record in a line.
func brief(r *flow.Record) string {
	text := fmt.Sprintf("%s %s %s -> %s", r.Node, r.Protocol, r.Source, r.Destination)
	if r.Service != "" {
		text += " " + r.Service
	}
	text += " " + r.Verdict + " " + r.Reason
	if r.Endpoint != "" {
		text += " => " + r.Endpoint
	}
	if r.Masquerade {
		text += " masq " + r.MasqueradeAddress
	}
	if r.Event != 0 {
		text += " event=" + r.Event.String()
	}
	text += " " + r.Life.State.String()
	if r.Life.Repeated > 0 {
		text += fmt.Sprint(" repeated ", r.Life.Repeated)
	}
	if r.Life.Incomplete {
		text += " incomplete"
	}
	return text
}

// socketConnection is a connection of which Cilium reports the socket and, with the default aggregation, its packets.
func socketConnection(ms int, cookie, port string, service, front, back string) []string {
	at := func(d int) string { return fmt.Sprint(ms + d) }
	pod := "10.0.0.5"
	return []string{
		at(0) + " PRE " + pod + " -> " + front + " service=" + service + " cookie=" + cookie,
		at(0) + " POST " + pod + " -> " + back + " cookie=" + cookie,
		at(1) + " TO_OVERLAY " + pod + ":" + port + " -> " + back + " S forward",
		at(2) + " TO_ENDPOINT " + back + " -> " + pod + ":" + port + " SA reply",
		at(3) + " TO_OVERLAY " + pod + ":" + port + " -> " + back + " A forward",
		at(9) + " TO_OVERLAY " + pod + ":" + port + " -> " + back + " AF forward",
		at(10) + " TO_ENDPOINT " + back + " -> " + pod + ":" + port + " AF reply",
	}
}

func TestConnections(t *testing.T) {
	const web, back = "10.96.0.20:80", "10.0.1.7:8080"
	for name, c := range map[string]struct{ events, want []string }{
		"socket": {
			socketConnection(0, "1", "40000", "default/web", web, back),
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 default/web dnat service-proxy => 10.0.1.7:8080 closed"},
		},
		"socket, IPv6": {
			[]string{
				"0 PRE fd00:10::5 -> [fd00:96::20]:80 service=default/web cookie=9",
				"0 POST fd00:10::5 -> [fd00:10:0:1::7]:8080 cookie=9",
				"1 TO_OVERLAY [fd00:10::5]:40000 -> [fd00:10:0:1::7]:8080 S forward",
				"2 TO_ENDPOINT [fd00:10:0:1::7]:8080 -> [fd00:10::5]:40000 SA reply",
			},
			[]string{"node-a TCP [fd00:10::5]:40000 -> [fd00:96::20]:80 default/web dnat service-proxy => [fd00:10:0:1::7]:8080 answered"},
		},
		"the socket's events come late": {
			[]string{
				"5 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
				"6 PRE 10.0.0.5 -> 10.96.0.20:80 service=default/web cookie=1",
				"7 POST 10.0.0.5 -> 10.0.1.7:8080 cookie=1",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 default/web dnat service-proxy => 10.0.1.7:8080 unanswered"},
		},
		"the socket's events are too late": {
			[]string{
				"0 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
				"200 PRE 10.0.0.5 -> 10.96.0.20:80 service=default/web cookie=1",
				"200 POST 10.0.0.5 -> 10.0.1.7:8080 cookie=1",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown unanswered"},
		},
		"two sockets, one Service": {
			append(socketConnection(0, "1", "40000", "default/web", web, back), socketConnection(20, "2", "40002", "default/web", web, back)...),
			[]string{
				"node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 default/web dnat service-proxy => 10.0.1.7:8080 closed",
				"node-a TCP 10.0.0.5:40002 -> 10.96.0.20:80 default/web dnat service-proxy => 10.0.1.7:8080 closed",
			},
		},
		"two sockets at once, of two Services with one endpoint": {
			[]string{
				"0 PRE 10.0.0.5 -> 10.96.0.20:80 service=default/web cookie=1",
				"0 PRE 10.0.0.5 -> 10.96.0.21:80 service=default/shop cookie=2",
				"0 POST 10.0.0.5 -> 10.0.1.7:8080 cookie=1",
				"0 POST 10.0.0.5 -> 10.0.1.7:8080 cookie=2",
				"1 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
				"1 TO_OVERLAY 10.0.0.5:40002 -> 10.0.1.7:8080 S forward",
			},
			[]string{
				"node-a TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown unanswered",
				"node-a TCP 10.0.0.5:40002 -> 10.0.1.7:8080 accept translation-unknown unanswered",
			},
		},
		"one to the Service and one to the pod at once": {
			[]string{
				"0 PRE 10.0.0.5 -> 10.96.0.20:80 service=default/web cookie=1",
				"0 POST 10.0.0.5 -> 10.0.1.7:8080 cookie=1",
				"1 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
				"2 TO_OVERLAY 10.0.0.5:40002 -> 10.0.1.7:8080 S forward",
			},
			[]string{
				"node-a TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown unanswered",
				"node-a TCP 10.0.0.5:40002 -> 10.0.1.7:8080 accept translation-unknown unanswered",
			},
		},
		"a second connection, directly to the pod": {
			append(socketConnection(0, "1", "40000", "default/web", web, back), "300 TO_OVERLAY 10.0.0.5:40002 -> 10.0.1.7:8080 S forward"),
			[]string{
				"node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 default/web dnat service-proxy => 10.0.1.7:8080 closed",
				"node-a TCP 10.0.0.5:40002 -> 10.0.1.7:8080 accept translation-unknown unanswered",
			},
		},
		"one socket to two Services, an event missing": {
			[]string{
				"0 PRE 10.0.0.5 -> 10.96.0.10:53 service=kube-system/kube-dns cookie=1 UDP",
				"0 POST 10.0.0.5 -> 10.0.1.3:53 cookie=1 UDP",
				"1 TO_OVERLAY 10.0.0.5:5000 -> 10.0.1.3:53 UDP forward",
				"2 POST 10.0.0.5 -> 10.0.1.4:9000 cookie=1 UDP",
				"3 TO_OVERLAY 10.0.0.5:5000 -> 10.0.1.4:9000 UDP forward",
			},
			[]string{
				"node-a UDP 10.0.0.5:5000 -> 10.96.0.10:53 kube-system/kube-dns dnat service-proxy => 10.0.1.3:53 unanswered",
				"node-a UDP 10.0.0.5:5000 -> 10.0.1.4:9000 accept translation-unknown unanswered",
			},
		},
		"no cookies": {
			[]string{
				"0 PRE 10.0.0.5 -> 10.96.0.20:80 service=default/web",
				"0 PRE 10.0.0.5 -> 10.96.0.21:80 service=default/shop",
				"0 POST 10.0.0.5 -> 10.0.1.7:8080",
				"1 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown unanswered"},
		},
		"half of the socket's events": { // newer versions report one in five seconds, with aggregation
			[]string{
				"0 POST 10.0.0.5 -> 10.0.1.7:8080 cookie=1",
				"0 PRE 10.0.0.5 -> 10.96.0.20:80 service=default/web cookie=2",
				"1 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown unanswered"},
		},
		"another pod's socket, and another node's": {
			[]string{
				"0 PRE 10.0.0.6 -> 10.96.0.20:80 service=default/web cookie=1",
				"0 POST 10.0.0.6 -> 10.0.1.7:8080 cookie=1",
				"0 PRE 10.0.0.5 -> 10.96.0.20:80 service=default/web cookie=1 node=prod/node-b",
				"0 POST 10.0.0.5 -> 10.0.1.7:8080 cookie=1 node=prod/node-b",
				"1 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown unanswered"},
		},
		"UDP, each message translated by itself": {
			[]string{
				"0 PRE 10.0.0.5 -> 10.96.0.10:53 service=kube-system/kube-dns cookie=1 UDP",
				"0 POST 10.0.0.5 -> 10.0.1.3:53 cookie=1 UDP",
				"1 TO_OVERLAY 10.0.0.5:5000 -> 10.0.1.3:53 UDP forward",
				"2 TO_ENDPOINT 10.0.1.3:53 -> 10.0.0.5:5000 UDP reply",
				"3 PRE 10.0.0.5 -> 10.96.0.10:53 service=kube-system/kube-dns cookie=1 UDP",
				"3 POST 10.0.0.5 -> 10.0.1.3:53 cookie=1 UDP",
				"400 TO_OVERLAY 10.0.0.5:5002 -> 10.0.1.3:53 UDP forward",
			},
			[]string{
				"node-a UDP 10.0.0.5:5000 -> 10.96.0.10:53 kube-system/kube-dns dnat service-proxy => 10.0.1.3:53 answered",
				"node-a UDP 10.0.0.5:5002 -> 10.0.1.3:53 accept translation-unknown unanswered",
			},
		},
		"packets, without aggregation": {
			[]string{
				"0 FROM_ENDPOINT 10.0.0.5:40000 -> 10.96.0.20:80 S service=default/web",
				"0 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
				"1 FROM_OVERLAY 10.0.1.7:8080 -> 10.0.0.5:40000 SA",
				"1 TO_ENDPOINT 10.0.1.7:80 -> 10.0.0.5:40000 SA reply xlated=10.96.0.20",
				"2 FROM_ENDPOINT 10.0.0.5:40000 -> 10.96.0.20:80 A service=default/web",
				"2 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 A forward",
				"9 FROM_ENDPOINT 10.0.0.5:40000 -> 10.96.0.20:80 AR service=default/web",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 default/web dnat service-proxy => 10.0.1.7:8080 reset"},
		},
		"packets, with aggregation": {
			[]string{
				"0 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
				"1 TO_ENDPOINT 10.0.1.7:80 -> 10.0.0.5:40000 SA reply xlated=10.96.0.20",
				"2 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 A forward",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 dnat service-proxy => 10.0.1.7:8080 established"},
		},
		"the Service's name by another event": {
			[]string{
				"0 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
				"1 TO_ENDPOINT 10.0.1.7:80 -> 10.0.0.5:40000 SA reply xlated=10.96.0.20",
				"50 PRE 10.0.0.9 -> 10.96.0.20:80 service=default/web cookie=1",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 default/web dnat service-proxy => 10.0.1.7:8080 answered"},
		},
		"kube-proxy translates": {
			[]string{
				"0 FROM_ENDPOINT 10.0.0.5:40000 -> 10.96.0.20:80 S service=default/web",
				"0 TO_STACK 10.0.0.5:40000 -> 10.96.0.20:80 S service=default/web forward",
				"1 TO_ENDPOINT 10.0.0.5:40000 -> 10.0.0.7:8080 S forward",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 default/web dnat service-proxy => 10.0.0.7:8080 unanswered"},
		},
		"nothing after the Service's address": {
			[]string{"0 FROM_ENDPOINT 10.0.0.5:40000 -> 10.96.0.20:80 S service=default/web"},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 default/web accept translation-unknown unanswered"},
		},
		"one UDP port to two Services": {
			[]string{
				"0 FROM_ENDPOINT 10.0.0.5:5000 -> 10.96.0.10:53 UDP service=kube-system/kube-dns",
				"0 FROM_ENDPOINT 10.0.0.5:5000 -> 10.96.0.11:53 UDP service=default/dns",
				"1 TO_OVERLAY 10.0.0.5:5000 -> 10.0.1.3:53 UDP forward",
			},
			[]string{
				"node-a UDP 10.0.0.5:5000 -> 10.96.0.10:53 kube-system/kube-dns accept translation-unknown unanswered",
				"node-a UDP 10.0.0.5:5000 -> 10.96.0.11:53 default/dns accept translation-unknown unanswered",
				"node-a UDP 10.0.0.5:5000 -> 10.0.1.3:53 accept translation-unknown unanswered",
			},
		},
		"one UDP port to a Service and to a pod": {
			[]string{
				"0 FROM_ENDPOINT 10.0.0.5:5000 -> 10.96.0.10:53 UDP service=kube-system/kube-dns",
				"0 TO_OVERLAY 10.0.0.5:5000 -> 10.0.1.3:53 UDP forward",
				"1 FROM_ENDPOINT 10.0.0.5:5000 -> 10.0.1.4:53 UDP",
				"1 TO_OVERLAY 10.0.0.5:5000 -> 10.0.1.4:53 UDP forward",
			},
			[]string{
				"node-a UDP 10.0.0.5:5000 -> 10.96.0.10:53 kube-system/kube-dns dnat service-proxy => 10.0.1.3:53 unanswered",
				"node-a UDP 10.0.0.5:5000 -> 10.0.1.4:53 accept translation-unknown unanswered",
			},
		},
		"node port, masqueraded": {
			[]string{
				"0 FROM_NETWORK 192.0.2.10:50000 -> 172.20.0.2:30080 S service=default/web",
				"0 TO_NETWORK 192.0.2.10:50000 -> 10.0.1.7:8080 S forward xlated=172.20.0.2",
				"1 TO_NETWORK 10.0.1.7:30080 -> 192.0.2.10:50000 SA reply xlated=172.20.0.2",
			},
			[]string{"node-a TCP 192.0.2.10:50000 -> 172.20.0.2:30080 default/web dnat service-proxy => 10.0.1.7:8080 masq 172.20.0.2 answered"},
		},
		"from a pod of another node": {
			[]string{
				"0 TO_ENDPOINT 10.0.1.7:40000 -> 10.0.0.5:8080 S forward",
				"1 TO_OVERLAY 10.0.0.5:8080 -> 10.0.1.7:40000 AR reply",
			},
			[]string{"node-a TCP 10.0.1.7:40000 -> 10.0.0.5:8080 accept not-a-service refused"},
		},
		"from the node": { // whose replies may not be observed
			[]string{"0 TO_ENDPOINT 172.20.0.2:40000 -> 10.0.1.5:8080 S forward"},
			[]string{"node-a TCP 172.20.0.2:40000 -> 10.0.1.5:8080 accept translation-unknown decided"},
		},
		"dropped": {
			[]string{
				"0 PRE 10.0.0.5 -> 10.96.0.20:80 service=default/web cookie=1",
				"0 POST 10.0.0.5 -> 10.0.1.7:8080 cookie=1",
				"1 VERDICT 10.0.0.5:40000 -> 10.0.1.7:8080 S",
				"1 DROPPED 10.0.0.5:40000 -> 10.0.1.7:8080 S",
				"1001 FROM_ENDPOINT 10.0.0.5:40000 -> 10.0.1.7:8080 S",
				"1001 DROPPED 10.0.0.5:40000 -> 10.0.1.7:8080 S",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 default/web drop policy-denied dropped repeated 1"},
		},
		"dropped where it arrives, then allowed": {
			[]string{
				"0 FROM_ENDPOINT 10.0.0.5:40000 -> 10.0.0.7:8080 S",
				"0 DROPPED 10.0.0.5:40000 -> 10.0.0.7:8080 S",
				"1000 FROM_ENDPOINT 10.0.0.5:40000 -> 10.0.0.7:8080 S",
				"1000 TO_ENDPOINT 10.0.0.5:40000 -> 10.0.0.7:8080 S forward",
				"1001 TO_ENDPOINT 10.0.0.7:8080 -> 10.0.0.5:40000 SA reply",
			},
			[]string{
				"node-a TCP 10.0.0.5:40000 -> 10.0.0.7:8080 drop policy-denied dropped repeated 1",
				"node-a TCP 10.0.0.5:40000 -> 10.0.0.7:8080 accept translation-unknown answered",
			},
		},
		"dropped packets of connections": {
			[]string{
				"0 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
				"1 TO_ENDPOINT 10.0.1.7:8080 -> 10.0.0.5:40000 SA reply",
				"2 DROPPED 10.0.0.5:40000 -> 10.0.1.7:8080 A",
				"3 DROPPED 10.0.0.5:40004 -> 10.0.1.7:8080 A",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown answered"},
		},
		"the port is used again": {
			[]string{
				"0 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
				"1000 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
				"1001 TO_ENDPOINT 10.0.1.7:8080 -> 10.0.0.5:40000 AR reply",
				"5000 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
				"5001 TO_ENDPOINT 10.0.1.7:8080 -> 10.0.0.5:40000 SA reply",
				"5002 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 A forward",
			},
			[]string{
				"node-a TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown refused repeated 1",
				"node-a TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown established",
			},
		},
		"from the middle": {
			[]string{
				"0 TO_ENDPOINT 10.0.1.7:8080 -> 10.0.0.5:40000 A reply",
				"1 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 AF forward",
				"2 TO_OVERLAY 10.0.0.5:40006 -> 10.0.1.7:8080 A forward",
				"3 FROM_ENDPOINT 10.0.0.5:40008 -> 10.0.1.7:8080 A", // the client may be either
			},
			[]string{
				"node-a TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown closing incomplete",
				"node-a TCP 10.0.0.5:40006 -> 10.0.1.7:8080 accept translation-unknown established incomplete",
			},
		},
		"states in between are missing": {
			[]string{
				"0 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
				"1 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 A forward",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown established incomplete"},
		},
		"decrypted replies": { // which look like first packets
			[]string{
				"0 TO_OVERLAY 10.0.0.5:5000 -> 10.0.1.3:53 UDP forward",
				"1 FROM_OVERLAY 10.0.1.3:53 -> 10.0.0.5:5000 UDP forward",
				"1 FROM_OVERLAY 10.0.1.3:53 -> 10.0.0.6:5000 UDP forward",
				"1 TO_ENDPOINT 10.0.1.3:53 -> 10.0.0.5:5000 UDP reply",
			},
			[]string{"node-a UDP 10.0.0.5:5000 -> 10.0.1.3:53 accept translation-unknown answered"},
		},
		"one FIN where it goes through the node": {
			[]string{
				"0 TO_STACK 10.0.0.5:40000 -> 192.0.2.80:443 S forward",
				"0 TO_NETWORK 10.0.0.5:40000 -> 192.0.2.80:443 S",
				"1 FROM_NETWORK 192.0.2.80:443 -> 10.0.0.5:40000 SA",
				"1 TO_ENDPOINT 192.0.2.80:443 -> 10.0.0.5:40000 SA reply",
				"2 TO_STACK 10.0.0.5:40000 -> 192.0.2.80:443 A forward",
				"3 TO_STACK 10.0.0.5:40000 -> 192.0.2.80:443 AF forward",
				"3 TO_NETWORK 10.0.0.5:40000 -> 192.0.2.80:443 AF",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 192.0.2.80:443 accept translation-unknown closing"},
		},
		"a reply of another connection": { // the first one is answered without a translation
			[]string{
				"0 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:9090 S forward",
				"1 TO_ENDPOINT 10.0.1.7:9090 -> 10.0.0.5:40000 SA reply",
				"2 TO_ENDPOINT 10.0.1.7:80 -> 10.0.0.5:40000 SA reply xlated=10.96.0.20",
			},
			[]string{"node-a TCP 10.0.0.5:40000 -> 10.0.1.7:9090 accept translation-unknown answered"},
		},
		"a pod to itself, by a Service": {
			[]string{
				"0 FROM_ENDPOINT 10.0.0.5:40000 -> 10.96.0.20:80 S service=default/web",
				"0 TO_ENDPOINT 169.254.42.1:40000 -> 10.0.0.5:8080 S forward",
				"1 FROM_ENDPOINT 10.0.0.5:8080 -> 169.254.42.1:40000 SA",
				"1 TO_ENDPOINT 10.0.0.5:80 -> 10.0.0.5:40000 SA reply xlated=10.96.0.20",
			},
			[]string{
				"node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 default/web accept translation-unknown answered",
				"node-a TCP 169.254.42.1:40000 -> 10.0.0.5:8080 accept translation-unknown answered",
			},
		},
		"SCTP": {
			[]string{
				"0 FROM_ENDPOINT 10.0.0.5:5000 -> 10.96.0.30:3868 SCTP service=default/diameter",
				"0 TO_OVERLAY 10.0.0.5:5000 -> 10.0.1.9:3868 SCTP forward",
				"1 TO_ENDPOINT 10.0.1.9:3868 -> 10.0.0.5:5000 SCTP reply xlated=10.96.0.30",
				"2 TO_OVERLAY 10.0.0.5:5000 -> 10.0.1.9:3868 SCTP forward",
			},
			[]string{"node-a SCTP 10.0.0.5:5000 -> 10.96.0.30:3868 default/diameter dnat service-proxy => 10.0.1.9:3868 established"},
		},
	} {
		if diff := cmp.Diff(c.want, listed(t, c.events...)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

// TestManyAtOnce: connections of one pod to one Service whose events are close together are all of that Service.
func TestManyAtOnce(t *testing.T) {
	var events []string
	for i := range 300 {
		events = append(events, socketConnection(i*3, fmt.Sprint(i+1), fmt.Sprint(40000+i), "default/web", "10.96.0.20:80", "10.0.1.7:8080")...)
	}
	got := listed(t, events...)
	if len(got) != 300 {
		t.Fatalf("%d connections", len(got))
	}
	for i, r := range got {
		if want := fmt.Sprintf("node-a TCP 10.0.0.5:%d -> 10.96.0.20:80 default/web dnat service-proxy => 10.0.1.7:8080 closed", 40000+i); r != want {
			t.Fatalf("%s\nwant %s", r, want)
		}
	}
}

// TestConnectionsOfOnePair: a list of many connections between two pods is made in time that grows with their number.
func TestConnectionsOfOnePair(t *testing.T) {
	tr := newTracker()
	for i := range 40_000 {
		at := began.Add(time.Duration(i) * time.Millisecond)
		e := event{kind: eventTraceSock, node: "node-a", at: at, protocol: decision.TCP, source: netip.MustParseAddrPort("10.0.0.5:0"), destination: netip.MustParseAddrPort("10.96.0.20:80"), service: "default/web", cookie: uint64(i + 1)}
		tr.take(&e, began)
		e.translated, e.destination, e.service = true, netip.MustParseAddrPort("10.0.1.7:8080"), ""
		tr.take(&e, began)
		e = event{kind: eventTrace, node: "node-a", at: at, protocol: decision.TCP, source: netip.AddrPortFrom(e.source.Addr(), uint16(1024+i)), destination: e.destination, sender: client, flags: &hubblepb.TCPFlags{SYN: true}}
		tr.take(&e, began)
	}
	tr.finish(began.Add(time.Hour))
	records := tr.list(&observe.Filter{Limit: observe.All}, map[string]uint64{})
	known := 0
	for _, r := range records {
		if r.Service == "default/web" && r.Reason == "service-proxy" {
			known++
		}
	}
	if len(records) != 40_000 || known != 40_000 {
		t.Errorf("%d records, %d with a Service", len(records), known)
	}
}

// TestRecord has the fields of a record.
func TestRecord(t *testing.T) {
	tr := newTracker()
	for _, line := range append(socketConnection(0, "1", "40000", "default/web", "10.96.0.20:80", "10.0.0.7:8080")[:4], "2000 DROPPED 10.0.0.5:41000 -> 10.0.0.9:80 S") {
		tr.response(packet(t, line), began)
	}
	tr.finish(began.Add(time.Second))
	records := tr.list(&observe.Filter{Limit: observe.All}, map[string]uint64{})
	if len(records) != 2 {
		t.Fatalf("%d records", len(records))
	}
	at, replied := began.Add(time.Millisecond), began.Add(2*time.Millisecond)
	want := &flow.Record{
		Version: 1, ID: records[0].ID, Time: &at, Node: "node-a", Proxy: "Cilium", Verdict: "dnat", Reason: "service-proxy", Protocol: "TCP",
		Source: "10.0.0.5:40000", Destination: "10.96.0.20:80", SourcePod: "default/local-5", SourceNode: "node-a", Service: "default/web",
		Endpoint: "10.0.0.7:8080", Pod: "default/local-7", EndpointNode: "node-a", Candidates: []flow.Candidate{}, Excluded: []flow.Excluded{},
		Life: &flow.Life{State: flow.Answered, Since: replied, Answered: true, AnsweredAfter: 0.001, Duration: 0.001},
	}
	if diff := cmp.Diff(want, records[0]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if d := records[1]; d.State() != flow.Dropped || d.Reason != "policy-denied" || d.Pod != "" {
		t.Errorf("dropped: %+v", d)
	}
	if len(records[0].ID) != 16 || records[0].ID == records[1].ID {
		t.Errorf("IDs: %s, %s", records[0].ID, records[1].ID)
	}
}

// TestLosses: connections that were alive when events were lost may lack states.
func TestLosses(t *testing.T) {
	tr := newTracker()
	take := func(line string) { tr.response(packet(t, line), began) }
	take("0 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward")
	take("1 TO_OVERLAY 10.0.0.5:40002 -> 10.0.1.7:8080 S forward")
	take("2 TO_ENDPOINT 10.0.1.7:8080 -> 10.0.0.5:40000 AR reply")
	lost := &hubblepb.GetFlowsResponse{NodeName: "prod/node-a", ResponseTypes: &hubblepb.GetFlowsResponse_LostEvents{LostEvents: &hubblepb.LostEvent{NumEventsLost: 9, Source: hubblepb.LostEventSource_PERF_EVENT_RING_BUFFER}}}
	if diff := cmp.Diff(&observe.Missed{Node: "node-a", Missed: 9, Why: observe.MissedLost}, tr.response(lost, began)); diff != "" {
		t.Error(diff)
	}
	take("3 TO_OVERLAY 10.0.0.5:40004 -> 10.0.1.7:8080 S forward")
	tr.finish(began.Add(time.Minute))
	records := tr.list(&observe.Filter{Limit: observe.All}, map[string]uint64{})
	var got []string
	for _, r := range records {
		got = append(got, brief(r))
	}
	if diff := cmp.Diff([]string{
		"node-a TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown refused",
		"node-a TCP 10.0.0.5:40002 -> 10.0.1.7:8080 accept translation-unknown decided incomplete",
		"node-a TCP 10.0.0.5:40004 -> 10.0.1.7:8080 accept translation-unknown unanswered",
	}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	gone := &hubblepb.GetFlowsResponse{ResponseTypes: &hubblepb.GetFlowsResponse_NodeStatus{NodeStatus: &hubblepb.NodeStatusEvent{StateChange: hubblepb.NodeState_NODE_UNAVAILABLE, NodeNames: []string{"prod/node-b", "prod/node-c"}}}}
	if diff := cmp.Diff(&observe.Missed{Node: "node-b, node-c", Why: observe.MissedUnreachable}, tr.response(gone, began)); diff != "" {
		t.Error(diff)
	}
}

// TestSlowRelay: of a relay that gives an event a second, a stream says the same as a list.
func TestSlowRelay(t *testing.T) {
	tr := newTracker()
	var got []string
	tr.emit = func(c *connection, what flow.Event, life flow.Life) { got = append(got, brief(c.record(what, life))) }
	at := began
	for _, line := range []string{
		"0 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward",
		"1 PRE 10.0.0.5 -> 10.96.0.20:80 service=default/web cookie=1",
		"2 POST 10.0.0.5 -> 10.0.1.7:8080 cookie=1",
		"3 TO_OVERLAY 10.0.0.9:40000 -> 10.0.1.9:8080 S forward",
		"4 TO_ENDPOINT 10.0.1.9:8080 -> 10.0.0.9:40000 SA reply",
		"5 TO_ENDPOINT 10.0.1.7:8080 -> 10.0.0.5:40000 SA reply",
	} {
		tr.response(packet(t, line), at)
		for range 20 {
			at = at.Add(50 * time.Millisecond)
			tr.pass(at)
		}
	}
	for range 100 {
		at = at.Add(50 * time.Millisecond)
		tr.pass(at)
	}
	const web, direct = "node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 default/web dnat service-proxy => 10.0.1.7:8080 ", "node-a TCP 10.0.0.9:40000 -> 10.0.1.9:8080 accept translation-unknown "
	if diff := cmp.Diff([]string{web + "event=decided decided", web + "event=answered answered", direct + "event=decided decided", direct + "event=answered answered"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// A socket's events that come when its connection is resolved are of no other one.
	tr.response(packet(t, "10000 TO_OVERLAY 10.0.0.5:40002 -> 10.0.1.7:8080 S forward"), at)
	tr.pass(at.Add(2 * time.Second))
	tr.response(packet(t, "10010 PRE 10.0.0.5 -> 10.96.0.20:80 service=default/web cookie=2"), at.Add(3*time.Second))
	tr.response(packet(t, "10011 POST 10.0.0.5 -> 10.0.1.7:8080 cookie=2"), at.Add(3*time.Second))
	tr.response(packet(t, "10500 TO_OVERLAY 10.0.0.5:40004 -> 10.0.1.7:8080 S forward"), at.Add(3*time.Second))
	got = nil
	tr.pass(at.Add(5 * time.Second))
	if diff := cmp.Diff([]string{"node-a TCP 10.0.0.5:40004 -> 10.0.1.7:8080 accept translation-unknown event=decided decided"}, got[:min(1, len(got))]); diff != "" {
		t.Errorf("late: -want +got:\n%s", diff)
	}
}

// TestStreamIsBounded: what a stream remembers does not grow with its time.
func TestStreamIsBounded(t *testing.T) {
	tr := newTracker()
	events := make(map[flow.Event]int)
	tr.emit = func(_ *connection, what flow.Event, _ flow.Life) { events[what]++ }
	for i := range 1000 {
		for _, line := range socketConnection(i*1000, fmt.Sprint(i), fmt.Sprint(1024+i), "default/web", "10.96.0.20:80", "10.0.1.7:8080") {
			tr.response(packet(t, line), began.Add(time.Duration(i)*time.Second))
		}
		tr.pass(began.Add(time.Duration(i) * time.Second))
	}
	if n := len(tr.connections); n > 50 {
		t.Errorf("%d connections", n)
	}
	if n := len(tr.states) + len(tr.pairs) + len(tr.clients) + len(tr.begun) + len(tr.unresolved); n > 200 {
		t.Errorf("%d entries: %d sockets, %d pairs, %d clients", n, len(tr.states), len(tr.pairs), len(tr.clients))
	}
	if events[flow.Decided] < 990 || events[flow.Closed] < 990 || events[flow.Gone] < 950 {
		t.Errorf("events: %v", events)
	}
}

// TestArbitraryMessages: any message is taken, and any order of Cilium's.
func TestArbitraryMessages(t *testing.T) {
	var lines []string
	lines = append(lines, socketConnection(0, "1", "40000", "default/web", "10.96.0.20:80", "10.0.1.7:8080")...)
	lines = append(lines,
		"0 FROM_ENDPOINT 10.0.0.5:40000 -> 10.96.0.20:80 S service=default/web", "1 TO_ENDPOINT 10.0.1.7:80 -> 10.0.0.5:40000 SA reply xlated=10.96.0.20",
		"2 TO_ENDPOINT 10.0.1.7:80 -> 10.0.0.5:40000 SA reply xlated=10.96.0.21", "2 DROPPED 10.0.0.5:40000 -> 10.0.1.7:8080 S",
		"3 TO_STACK 10.0.0.5:40000 -> 10.0.1.7:8080 R", "4 TO_OVERLAY 10.0.1.7:8080 -> 10.0.0.5:40000 S forward", "5 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 UDP reply",
		"6 TO_OVERLAY 10.0.0.5:40000 -> 10.0.0.5:40000 S forward", "6 TO_OVERLAY 10.0.0.5:40000 -> 10.0.0.5:40000 A reply",
	)
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		tr := newTracker()
		if r.IntN(2) == 0 {
			tr.emit = func(c *connection, what flow.Event, life flow.Life) { c.record(what, life) }
		}
		now := began
		for range 60 {
			m := packet(t, lines[r.IntN(len(lines))])
			m.GetFlow().Time = timestamppb.New(now.Add(time.Duration(r.IntN(200)-100) * time.Millisecond))
			tr.response(m, now)
			if now = now.Add(time.Duration(r.IntN(3000)) * time.Millisecond); tr.emit != nil {
				tr.pass(now)
			}
		}
		if tr.emit == nil {
			tr.finish(now)
			tr.list(&observe.Filter{Limit: 5}, map[string]uint64{})
		}
	}
}

// FuzzResponse: no message of a server stops the program.
func FuzzResponse(f *testing.F) {
	for _, line := range append(socketConnection(0, "1", "40000", "default/web", "10.96.0.20:80", "10.0.1.7:8080"), "2 DROPPED 10.0.0.5:40000 -> 10.0.1.7:8080 S") {
		b, err := proto.Marshal(packet(f, line))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("\x0a\x00"))
	f.Add([]byte("\x12\x00"))
	f.Add([]byte("\x1a\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(hubblepb.GetFlowsResponse)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		tr := newTracker()
		tr.response(m, began)
		tr.response(m, began.Add(time.Second))
		tr.finish(began.Add(time.Hour))
		records := tr.list(&observe.Filter{Limit: observe.All}, map[string]uint64{})
		for _, r := range records {
			if r.Life == nil || r.Time == nil || r.Source == "" || r.Destination == "" || r.Verdict == "" || r.Reason == "" {
				t.Errorf("record %+v", r)
			}
		}
	})
}
