package observe

import (
	"net/url"
	"strconv"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// ObjectsQuery selects a service table, and which of its objects.
type ObjectsQuery struct {
	Node       string // optional if there is only one
	Generation string // the number of the table; empty: the one in force
	Service    string // NAMESPACE/NAME; empty: all
}

// TableObjects is a service table as Kubernetes objects.
type TableObjects struct {
	Node       string    `json:"node"`
	Generation uint64    `json:"generation"`
	Built      time.Time `json:"built"`
	// YAML has the Services, their EndpointSlices and the Node, separated by "---", from which the same table is made
	// for this node. They have only what a service table depends on.
	YAML string `json:"yaml"`
}

// Values returns the set fields as parameters of the flow API.
func (q ObjectsQuery) Values() url.Values { return values(q) }

// ObjectsQueryOf reads parameters of the flow API, as [FlowQueryOf] does.
func ObjectsQueryOf(v url.Values) (ObjectsQuery, error) { return queryOf[ObjectsQuery](v) }

// Parse returns the number of the generation, 0 for the one in force, and the Service; a zero name: all. The error
// is an [*Error].
func (q ObjectsQuery) Parse() (generation uint64, service decision.ServiceName, err error) {
	if q.Generation != "" {
		if generation, err = strconv.ParseUint(q.Generation, 10, 64); err != nil || generation == 0 {
			return 0, service, badParameter("generation", "generation %q: want the number of a service table, from 1", q.Generation)
		}
	}
	if q.Service != "" {
		c := BalanceChange{Service: q.Service}
		if service.Namespace, service.Name, err = c.Name(); err != nil {
			return 0, service, err
		}
	}
	return generation, service, nil
}
