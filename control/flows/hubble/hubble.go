// Package hubble converts flow records to the format of Cilium's Hubble, so that programs that
// read Hubble's JSON can read nfqproxy's: the objects are observer.GetFlowsResponse as
// "hubble observe -o jsonpb" prints them (cilium/cilium, api/v1/observer/observer.proto and
// api/v1/flow/flow.proto).
//
// Hubble's flows are packets, records are flows. So each record becomes what Cilium would report
// of its packet:
//
//	record                  Hubble's flows
//	decided, dnat           TRACED pre-xlate-fwd, client to service; TRANSLATED
//	                        post-xlate-fwd and FORWARDED to-stack, client to endpoint
//	  entry was kept        FORWARDED to-stack, client to endpoint
//	decided, accept         FORWARDED to-stack, client to destination
//	rejected, dropped       DROPPED, client to destination, with a reason
//	failed                  DROPPED, CT_MAP_INSERTION_FAILED
//	repeated                FORWARDED or DROPPED like the first time
//	answered, refused       FORWARDED to-stack, a reply: endpoint to client
//	established, closing,   FORWARDED to-stack, client to endpoint; is_reply is absent,
//	closed, reset           as the sender of the packet is not known
//	unanswered, expired,    TRACED, client to endpoint, no packet; the summary has the
//	removed, gone           event
//	missed                  lost_events; node_status, NODE_UNAVAILABLE, if the number is
//	                        not known: the node is unreachable
//
// A record without an event becomes its decision and the present state of the flow.
//
// Identities are known only for nodes and the world; Cilium's identities of pods are not.
package hubble

import (
	"strings"
	"time"
)

// Response is one line: a flow, or missing flows.
type Response struct {
	Flow       *Flow       `json:"flow,omitempty"`
	NodeStatus *NodeStatus `json:"node_status,omitempty"`
	LostEvents *LostEvents `json:"lost_events,omitempty"`
	NodeName   string      `json:"node_name,omitempty"`
	Time       *Time       `json:"time,omitempty"`
}

// Flow is flow.Flow: an event of a packet. The fields have the same names; empty ones are left out.
type Flow struct {
	Time           *Time        `json:"time,omitempty"`
	UUID           string       `json:"uuid,omitempty"` // of this object; different for the flow's other objects
	Verdict        Verdict      `json:"verdict,omitempty"`
	DropReason     DropReason   `json:"drop_reason,omitempty"`
	IP             *IP          `json:"IP"`
	L4             *Layer4      `json:"l4"`
	Source         *Endpoint    `json:"source,omitempty"`
	Destination    *Endpoint    `json:"destination,omitempty"`
	Type           string       `json:"Type"` // L3_L4 or SOCK
	NodeName       string       `json:"node_name,omitempty"`
	SourceNames    []string     `json:"source_names,omitempty"`
	DestNames      []string     `json:"destination_names,omitempty"`
	EventType      EventType    `json:"event_type"`
	SourceService  *ServiceName `json:"source_service,omitempty"`
	DestService    *ServiceName `json:"destination_service,omitempty"`
	Direction      string       `json:"traffic_direction,omitempty"` // of the connection, as the node sees it: INGRESS or EGRESS
	Observation    string       `json:"trace_observation_point,omitempty"`
	TraceReason    string       `json:"trace_reason,omitempty"`
	DropReasonDesc string       `json:"drop_reason_desc,omitempty"`
	IsReply        *bool        `json:"is_reply,omitempty"` // absent: not known
	SockXlatePoint string       `json:"sock_xlate_point,omitempty"`
	Summary        string       `json:"Summary"`
}

// Time is google.protobuf.Timestamp.
type Time struct{ time.Time }

// MarshalJSON writes it in UTC with none, 3, 6 or 9 digits of a second, as protojson does.
func (t Time) MarshalJSON() ([]byte, error) {
	text := t.UTC().Format("2006-01-02T15:04:05.000000000")
	for range 3 {
		text = strings.TrimSuffix(text, "000")
	}
	return []byte(`"` + strings.TrimSuffix(text, ".") + `Z"`), nil
}

// Verdict is flow.Verdict.
type Verdict string

// The verdicts that nfqproxy gives.
const (
	Forwarded  Verdict = "FORWARDED"
	Dropped    Verdict = "DROPPED"
	Traced     Verdict = "TRACED" // observed, without a decision
	Translated Verdict = "TRANSLATED"
)

// DropReason is flow.DropReason.
type DropReason int32

// The reasons that nfqproxy drops packets for.
const (
	InvalidPacket          DropReason = 134
	PolicyDenied           DropReason = 133
	ConntrackFailed        DropReason = 155
	ServiceBackendNotFound DropReason = 158
	DeniedBySourceRanges   DropReason = 177
)

// String returns the name in flow.proto.
func (r DropReason) String() string {
	switch r {
	case InvalidPacket:
		return "INVALID_PACKET_DROPPED"
	case PolicyDenied:
		return "POLICY_DENIED"
	case ConntrackFailed:
		return "CT_MAP_INSERTION_FAILED"
	case ServiceBackendNotFound:
		return "SERVICE_BACKEND_NOT_FOUND"
	case DeniedBySourceRanges:
		return "DENIED_BY_LB_SRC_RANGE_CHECK"
	}
	return "DROP_REASON_UNKNOWN"
}

// EventType is flow.CiliumEventType: pkg/monitor/api's number of the kind of event, and of
// what it is about.
type EventType struct {
	Type    int32 `json:"type"`
	SubType int32 `json:"sub_type,omitempty"`
}

// IP is flow.IP.
type IP struct {
	Source       string `json:"source"`
	SourceXlated string `json:"source_xlated,omitempty"`
	Destination  string `json:"destination"`
	Version      string `json:"ipVersion"`
}

// Layer4 is flow.Layer4; one of the fields is set.
type Layer4 struct {
	TCP  *Ports `json:"TCP,omitempty"`
	UDP  *Ports `json:"UDP,omitempty"`
	SCTP *Ports `json:"SCTP,omitempty"`
}

// Ports are flow.TCP, flow.UDP and flow.SCTP.
type Ports struct {
	Source      uint16    `json:"source_port"`
	Destination uint16    `json:"destination_port"`
	Flags       *TCPFlags `json:"flags,omitempty"`      // TCP's
	ChunkType   string    `json:"chunk_type,omitempty"` // SCTP's
}

// TCPFlags is flow.TCPFlags, as far as flags follow from conntrack's states.
type TCPFlags struct {
	FIN bool `json:"FIN,omitempty"`
	SYN bool `json:"SYN,omitempty"`
	RST bool `json:"RST,omitempty"`
	ACK bool `json:"ACK,omitempty"`
}

// Endpoint is flow.Endpoint: a pod, a node or the world.
type Endpoint struct {
	Identity  uint32   `json:"identity,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Labels    []string `json:"labels,omitempty"`
	PodName   string   `json:"pod_name,omitempty"`
}

// ServiceName is flow.Service.
type ServiceName struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

// NodeStatus is relay.NodeStatusEvent.
type NodeStatus struct {
	Change  string   `json:"state_change"`
	Nodes   []string `json:"node_names"`
	Message string   `json:"message,omitempty"`
}

// LostEvents is flow.LostEvent.
type LostEvents struct {
	Source string `json:"source,omitempty"`
	Lost   uint64 `json:"num_events_lost,string"`
}
