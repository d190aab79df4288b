package offpolicy

// Report is what [Estimate] finds. Its JSON is documented in docs/how-to/estimate-an-algorithm.md.
type Report struct {
	Flows        int       `json:"flows"`   // of the node in the log
	Counted      int       `json:"counted"` // that the estimates are of
	LeftOut      []LeftOut `json:"leftOut"` // the other ones, by reason
	Others       int       `json:"others"`  // records of other nodes
	Replications int       `json:"replications"`
	Confidence   float64   `json:"confidence"` // percent
	Seed         uint64    `json:"seed"`
	All          Group     `json:"all"`      // all counted flows
	Services     []Group   `json:"services"` // by name
}

// LeftOut counts flows that are in no estimate.
type LeftOut struct {
	Reason string `json:"reason"`
	Flows  int    `json:"flows"`
}

// Group are the estimates of a set of flows.
type Group struct {
	Service   string    `json:"service,omitempty"`   // namespace/name:port; absent: all
	Algorithm string    `json:"algorithm,omitempty"` // the target; absent: all
	Flows     int       `json:"flows"`
	Weights   Weights   `json:"weights"`
	Outcomes  []Outcome `json:"outcomes"`
	// Unlogged are endpoints that the target selects and to which no counted flow went.
	Unlogged []Unlogged `json:"unlogged"`
	// LoadDependence is how the recorded connect latency depends on load; absent: all, or not known.
	LoadDependence *Dependence `json:"loadDependence,omitempty"`
	Warnings       []Warning   `json:"warnings"`
}

// Weights show how far the flows of the log are those that the target would have made.
type Weights struct {
	Mean float64 `json:"mean"` // near 1 if the log has all that the target selects
	// Effective is the number of flows of the target's own that the weighted ones are worth:
	// the square of the sum of weights, divided by the sum of their squares. 0 if all weights are 0.
	Effective float64 `json:"effective"`
	Largest   float64 `json:"largest"` // the largest weight's share of their sum, from 0 to 1
}

// The names of outcomes.
const (
	Latency    = "connectLatency" // mean seconds from the decision to the reply, of connections with a known time
	Refused    = "refused"        // share of flows, from 0 to 1
	Unanswered = "unanswered"     // share of flows, from 0 to 1
	Imbalance  = "imbalance"      // flows of the fullest endpoint over the mean of all endpoints; of services only
)

// Outcome is what is estimated.
type Outcome struct {
	Name     string   `json:"name"`
	Valid    bool     `json:"valid"`    // false: a warning gives the reason
	Recorded *float64 `json:"recorded"` // in the log; null: not known
	IPS      Value    `json:"ips"`      // inverse propensity scores: the mean of weight times outcome
	SNIPS    Value    `json:"snips"`    // self-normalized: divided by the sum of weights instead
	DR       Value    `json:"dr"`       // doubly robust: the mean of each endpoint, corrected by the weighted errors
}

// Value is an estimate.
type Value struct {
	Value *float64 `json:"value"` // null: there is none
	// Half is half the width of the confidence interval; null: not known.
	Half *float64 `json:"half"`
}

// Unlogged is an endpoint without a counted flow.
type Unlogged struct {
	Endpoint string  `json:"endpoint"`
	Share    float64 `json:"share"` // of the target's selections, from 0 to 1
}

// Dependence is the rank correlation of connect latency with the endpoint's open connections at the decision.
type Dependence struct {
	Correlation float64 `json:"correlation"` // Spearman's, within endpoints, from -1 to 1
	P           float64 `json:"p"`           // the probability of one as large by chance
	Flows       int     `json:"flows"`
}

// The kinds of warnings.
const (
	Overlap      = "overlap"      // the log has too little of what the target selects
	Interference = "interference" // what happens to a flow depends on where other flows went
	Missing      = "missing"      // the log lacks a field
)

// Warning is a reason not to trust estimates.
type Warning struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
}

func (g *Group) warn(kind, text string) { g.Warnings = append(g.Warnings, Warning{kind, text}) }

// invalid marks the estimate of connect latency.
func (g *Group) invalid() {
	for i := range g.Outcomes {
		if g.Outcomes[i].Name == Latency {
			g.Outcomes[i].Valid = false
		}
	}
}
