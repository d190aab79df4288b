package offpolicy

import (
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay"
)

// replication is one run of the target algorithms over the log.
type replication struct {
	*sample
	algorithms *balance.Registry
	// The first one also counts connections as they were recorded.
	first bool
	open  map[recordedEndpoint]int
}

type recordedEndpoint struct{ service, endpoint string }

// change changes the open connections of a flow's endpoint. Flows that were refused or not answered are no load.
func (t *replication) change(f *replay.Recorded, by int) {
	if r, _ := resultOf(f.Record); t.first && !r.refused && !r.unanswered {
		t.open[recordedEndpoint{f.Record.Service, f.Record.Endpoint}] += by
	}
}

// Decided implements [replay.Watcher].
func (t *replication) Decided(f *replay.Recorded, d *decision.Decision) error {
	c := t.by[f.Number]
	if t.first && c != nil {
		c.open = t.open[recordedEndpoint{f.Record.Service, f.Record.Endpoint}]
	}
	t.change(f, 1)
	if c == nil || d.Verdict != decision.DNAT {
		return nil
	}
	c.picks = append(c.picks, c.service.number(d.Endpoint()))
	if c.service.algorithm != "" {
		return nil
	}
	a, err := t.algorithms.Parse(d.ServicePort.Balance)
	if err != nil {
		return err
	}
	c.service.algorithm, c.service.feedback = a.Name, a.Feedback
	return nil
}

// Ended implements [replay.Watcher].
func (t *replication) Ended(f *replay.Recorded, _ time.Time) {
	t.change(f, -1)
}

// weigh computes the weights. It leaves out flows for which the target has no endpoint.
func (s *sample) weigh() {
	kept := s.flows[:0]
	for _, c := range s.flows {
		if len(c.picks) == 0 {
			s.leftOut["no endpoint by the objects"]++
			continue
		}
		same := 0
		for _, e := range c.picks {
			if e == c.endpoint {
				same++
			}
		}
		c.weight = float64(same) / float64(len(c.picks)) / c.probability
		c.service.flows = append(c.service.flows, c)
		kept = append(kept, c)
	}
	s.flows = kept
}
