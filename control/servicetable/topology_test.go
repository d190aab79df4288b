package servicetable

import (
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

func TestZoneHints(t *testing.T) {
	const (
		otherZone   = decision.OtherZone
		notReady    = decision.NotReady
		terminating = decision.Terminating
		unused      = decision.Unused
	)
	tests := []struct {
		name string
		at   location
		rows []row
		has  bool
	}{
		{"keep those of the zone", here, []row{
			{"ready zones=a", 0, unused}, {"ready zones=b", otherZone, unused}, {"ready zones=c", otherZone, unused}, {"ready zones=a", 0, unused}}, true},
		{"any of several counts", here, []row{
			{"ready zones=a,b", 0, unused}, {"ready zones=b,c", otherZone, unused}, {"ready zones=b,c,a", 0, unused}}, true},
		{"are by the zone's exact name", here, []row{{"ready zones=A", 0, unused}, {"ready zones=aa", 0, unused}}, true},
		{"count only if every endpoint has one", here, []row{{"ready zones=a", 0, unused}, {"ready zones=b", 0, unused}, {"ready", 0, unused}}, true},
		{"count only if one is for here", here, []row{{"ready zones=b", 0, unused}, {"ready zones=c", 0, unused}}, true},
		{"do not count without a zone", location{node: "here"}, []row{{"ready zones=a", 0, unused}, {"ready zones=b", 0, unused}}, true},
		{"count, not where the endpoints are", here, []row{{"ready here zones=b", otherZone, unused}, {"ready there zones=a", 0, unused}}, true},
		{"of the unready do not count: it may lack them", here, []row{{"ready zones=a", 0, unused}, {"unready", notReady, unused}, {"ready zones=b", otherZone, unused}, {"serving", notReady, unused}}, true},
		{"of the stopping do not count: it may lack them", here, []row{{"ready zones=a", 0, unused}, {"stopping", terminating, unused}, {"ready zones=b", otherZone, unused}}, true},
		{"of the unready do not count: it may be the only one for here", here, []row{{"unready zones=a", notReady, unused}, {"stopping zones=a", terminating, unused}, {"ready zones=b", 0, unused}}, true},
		{"of those ready while terminating count", here, []row{{"ready+stopping zones=a", 0, unused}, {"ready zones=b", otherZone, unused}}, true},
		{"are ignored by the fallback", here, []row{{"stopping zones=a", 0, unused}, {"stopping zones=b", 0, unused}, {"unready zones=a", notReady, unused}}, true},
		{"put no unready endpoint in", here, []row{{"unready zones=a", notReady, unused}}, false},
		{"the reason of an unready endpoint elsewhere: it is not ready", here, []row{{"ready zones=a", 0, unused}, {"unready zones=b", notReady, unused}}, true},
		{"of the other family do not count", here, []row{
			{"ready zones=a", 0, unused}, {"ready zones=b", otherZone, unused}, {"ready v6", decision.OtherFamily, decision.OtherFamily}}, true},
		{"of the other family are not for here", here, []row{
			{"ready zones=b", 0, unused}, {"ready zones=a v6", decision.OtherFamily, decision.OtherFamily}}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { checkCategories(t, clusterOnly, tt.at, tt.rows, tt.has) })
	}
}

func TestNodeHints(t *testing.T) {
	const (
		otherZone   = decision.OtherZone
		otherNode   = decision.OtherNode
		notReady    = decision.NotReady
		terminating = decision.Terminating
		unused      = decision.Unused
	)
	tests := []struct {
		name string
		at   location
		rows []row
	}{
		{"keep those for the node", here, []row{{"ready nodes=here", 0, unused}, {"ready nodes=there", otherNode, unused}, {"ready nodes=there,here", 0, unused}}},
		{"beat zone hints", here, []row{
			{"ready nodes=here zones=b", 0, unused}, {"ready nodes=there zones=a", otherNode, unused}}},
		{"do without a zone", location{node: "here"}, []row{{"ready nodes=here zones=a", 0, unused}, {"ready nodes=there zones=a", otherNode, unused}}},
		{"count, not the nodes of the endpoints", here, []row{{"ready here nodes=there", otherNode, unused}, {"ready there nodes=here", 0, unused}}},
		{"fall back to the zone if none is for the node", here, []row{
			{"ready nodes=there zones=a", 0, unused}, {"ready nodes=elsewhere zones=b", otherZone, unused}}},
		{"fall back to the zone if one lacks them", here, []row{
			{"ready nodes=here zones=b", otherZone, unused}, {"ready zones=a", 0, unused}, {"ready nodes=there zones=a", 0, unused}}},
		{"fall back to all if there is nothing for the zone either", here, []row{
			{"ready nodes=there zones=b", 0, unused}, {"ready nodes=elsewhere zones=c", 0, unused}}},
		{"fall back to all if one lacks both", here, []row{{"ready nodes=here zones=a", 0, unused}, {"ready", 0, unused}, {"ready nodes=there zones=b", 0, unused}}},
		{"fall back to all without zone hints", here, []row{{"ready nodes=there", 0, unused}, {"ready nodes=there", 0, unused}}},
		{"do not count on a node without a name", location{}, []row{{"ready nodes=here", 0, unused}, {"ready nodes=there", 0, unused}}},
		{"of the unready do not count", here, []row{
			{"ready nodes=here", 0, unused}, {"unready", notReady, unused}, {"stopping", terminating, unused}, {"ready nodes=there", otherNode, unused}}},
		{"of the unready are not for here", here, []row{{"unready nodes=here", notReady, unused}, {"ready nodes=there", 0, unused}}},
		{"are ignored by the fallback", here, []row{{"stopping nodes=here", 0, unused}, {"stopping nodes=there", 0, unused}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { checkCategories(t, clusterOnly, tt.at, tt.rows, true) })
	}
}

func TestPolicyLocalIgnoresHints(t *testing.T) {
	const (
		otherZone   = decision.OtherZone
		otherNode   = decision.OtherNode
		notLocal    = decision.NotLocal
		terminating = decision.Terminating
		unused      = decision.Unused
	)
	tests := []struct {
		name string
		traffic
		rows []row
	}{
		{"of zones", localOnly, []row{{"ready here zones=a", unused, 0}, {"ready here zones=b", unused, 0}, {"ready there zones=a", unused, notLocal}}},
		{"of nodes", localOnly, []row{{"ready here nodes=there", unused, 0}, {"ready there nodes=here", unused, notLocal}}},
		{"of zones, which count for Cluster", mixed, []row{
			{"ready here zones=a", 0, 0}, {"ready here zones=b", otherZone, 0}, {"ready there zones=a", 0, notLocal}, {"ready there zones=b", otherZone, notLocal}}},
		{"of nodes, which count for Cluster", mixed, []row{{"ready here nodes=there", otherNode, 0}, {"ready there nodes=here", 0, notLocal}}},
		{"also where it falls back and Cluster does not", mixed, []row{
			{"stopping here zones=b", terminating, 0}, {"ready there zones=a", 0, notLocal}, {"ready there zones=b", otherZone, notLocal}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { checkCategories(t, tt.traffic, here, tt.rows, true) })
	}
}
