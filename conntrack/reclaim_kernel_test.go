package conntrack_test

import (
	"fmt"
	"testing"

	ct "github.com/ti-mo/conntrack"

	"github.com/nfqproxy/nfqproxy/conntrack"
)

// TestKernelReclaimsPorts: where all ports are taken, one whose connection is over is used
// again, and none whose connection lives.
func TestKernelReclaimsPorts(t *testing.T) {
	const over, alive = 7, 3 // TIME_WAIT, ESTABLISHED
	for _, tt := range []struct {
		name   string
		states []uint8 // of the connections that have the ports 5000 and up
		ports  int     // how many ports there are
		want   conntrack.Outcome
		port   uint16 // 0: any
	}{
		{"one is over", []uint8{alive, alive, over, alive}, 4, conntrack.Created, 5002},
		{"all live", []uint8{alive, alive, alive, alive}, 4, conntrack.Failed, 0},
		{"all are over", []uint8{over, over, over, over}, 4, conntrack.Created, 0},
		{"one is free", []uint8{alive, alive, alive}, 4, conntrack.Created, 5003},
		{"only one port", []uint8{over}, 1, conntrack.Created, 5000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table, other := openWith(t)
			to := func(client string, first, last uint16) conntrack.Entry {
				e := entry(6, client, "172.20.0.2:30080", "10.244.0.2:80", "10.244.0.1")
				e.SourcePorts = [2]uint16{first, last}
				return e
			}
			var r [1]conntrack.Result
			for i, state := range tt.states {
				port := 5000 + uint16(i)
				e := to(fmt.Sprintf("192.0.2.%d:40000", i+1), port, port)
				if table.Establish([]conntrack.Entry{e}, r[:]); r[0].Outcome != conntrack.Created {
					t.Fatal(r[0].Err)
				}
				flow := ct.NewFlow(6, 0, e.Tuple.Source.Addr(), e.Tuple.Destination.Addr(), e.Tuple.Source.Port(), e.Tuple.Destination.Port(), 100, 0)
				flow.TupleReply = ct.Tuple{}
				flow.ProtoInfo.TCP = &ct.ProtoInfoTCP{State: state}
				if err := other.Update(flow); err != nil {
					t.Fatal(err)
				}
			}
			e := to("192.0.2.100:40000", 5000, 5000+uint16(tt.ports)-1)
			table.Establish([]conntrack.Entry{e}, r[:])
			if r[0].Outcome != tt.want {
				t.Fatalf("outcome %v (%v), want %v", r[0].Outcome, r[0].Err, tt.want)
			}
			if tt.want == conntrack.Failed {
				return
			}
			s, err := table.Lookup(e.Tuple, 0)
			if err != nil {
				t.Fatal(err)
			}
			if p := s.Reply.Destination.Port(); s.Reply.Destination.Addr() != e.SourceAddr || p < 5000 || int(p) >= 5000+tt.ports || tt.port != 0 && p != tt.port {
				t.Errorf("the source became %s", s.Reply.Destination)
			}
			for i, state := range tt.states {
				_, err := table.Lookup(to(fmt.Sprintf("192.0.2.%d:40000", i+1), 0, 0).Tuple, 0)
				if gone := conntrack.IsNotFound(err); gone != (state == over && s.Reply.Destination.Port() == 5000+uint16(i)) {
					t.Errorf("port %d: the connection that had it is gone: %v", 5000+i, gone)
				}
			}
		})
	}
}
