package hubbleapi

import (
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
)

// flowsRequest is observer.GetFlowsRequest. Its field mask is ignored: responses have all fields.
type flowsRequest struct {
	number               uint64 // 0: as many as there are or, following, none
	all                  bool   // all flows, with any number
	first, follow        bool
	since, until         time.Time // zero: no bound
	whitelist, blacklist []filter
}

func parseFlowsRequest(m *hubblepb.GetFlowsRequest) (r *flowsRequest, err error) {
	r = &flowsRequest{number: m.GetNumber(), first: m.GetFirst(), follow: m.GetFollow()}
	if r.number == math.MaxUint64 { // hubble observe --all
		r.number, r.all = 0, true
	}
	if r.blacklist, err = parseFilters(m.GetBlacklist()); err != nil {
		return nil, err
	}
	if r.whitelist, err = parseFilters(m.GetWhitelist()); err != nil {
		return nil, err
	}
	if r.since, err = parseTimestamp(m.GetSince()); err != nil {
		return nil, err
	}
	r.until, err = parseTimestamp(m.GetUntil())
	return r, err
}

// wants reports whether the response includes the flow.
func (r *flowsRequest) wants(f *hubblepb.Flow) bool {
	if !r.until.IsZero() && f.GetTime() != nil && f.GetTime().AsTime().After(r.until) {
		return false
	}
	return (len(r.whitelist) == 0 || anyMatches(r.whitelist, f)) && !anyMatches(r.blacklist, f)
}

// parseTimestamp returns the zero time for none.
func parseTimestamp(m *timestamppb.Timestamp) (time.Time, error) {
	if m == nil {
		return time.Time{}, nil
	}
	t := m.AsTime()
	if t.Year() < 1 || t.Year() > 9999 {
		return time.Time{}, status.Errorf(codes.InvalidArgument, "time %d.%09d: want a year from 1 to 9999", m.GetSeconds(), m.GetNanos())
	}
	return t, nil
}
