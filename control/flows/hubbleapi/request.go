package hubbleapi

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nfqproxy/nfqproxy/control/flows/hubble"
)

// flowsRequest is observer.GetFlowsRequest. Its field mask is ignored: responses have all fields.
type flowsRequest struct {
	number               uint64 // 0: as many as there are or, following, none
	all                  bool   // all flows, with any number
	first, follow        bool
	since, until         time.Time // zero: no bound
	whitelist, blacklist []filter
}

func parseFlowsRequest(b []byte) (*flowsRequest, error) {
	r := &flowsRequest{}
	return r, eachField(b, func(f field) (err error) {
		switch f.number {
		case 1:
			if r.number = f.varint; r.number == math.MaxUint64 { // hubble observe --all
				r.number, r.all = 0, true
			}
		case 3:
			r.follow = f.varint != 0
		case 9:
			r.first = f.varint != 0
		case 5:
			r.blacklist, err = appendFilter(r.blacklist, f.bytes)
		case 6:
			r.whitelist, err = appendFilter(r.whitelist, f.bytes)
		case 7:
			r.since, err = parseTimestamp(f.bytes)
		case 8:
			r.until, err = parseTimestamp(f.bytes)
		}
		return err
	})
}

// wants reports whether the response includes the flow.
func (r *flowsRequest) wants(f *hubble.Flow) bool {
	if !r.until.IsZero() && f.Time != nil && f.Time.After(r.until) {
		return false
	}
	return (len(r.whitelist) == 0 || anyMatches(r.whitelist, f)) && !anyMatches(r.blacklist, f)
}

// field is one of a message. Which of varint and bytes is meant depends on its type.
type field struct {
	number protowire.Number
	varint uint64
	bytes  []byte
}

// varints returns the values of a repeated number, packed or not.
func (f field) varints() ([]uint64, error) {
	if f.bytes == nil {
		return []uint64{f.varint}, nil
	}
	var list []uint64
	for b := f.bytes; len(b) > 0; {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return nil, malformed(n)
		}
		list, b = append(list, v), b[n:]
	}
	return list, nil
}

// eachField calls visit for each field of a message, until it fails.
func eachField(b []byte, visit func(field) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return malformed(n)
		}
		b = b[n:]
		f := field{number: number}
		switch kind {
		case protowire.VarintType:
			f.varint, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			if f.bytes, n = protowire.ConsumeBytes(b); n >= 0 && f.bytes == nil {
				f.bytes = []byte{}
			}
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return malformed(n)
		}
		b = b[n:]
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}

func malformed(n int) error {
	return failure(codeInvalidArgument, "invalid protocol buffer message in the request: %v", protowire.ParseError(n))
}

func parseTimestamp(b []byte) (time.Time, error) {
	var seconds, nanos int64
	err := eachField(b, func(f field) error {
		switch f.number {
		case 1:
			seconds = int64(f.varint)
		case 2:
			nanos = int64(f.varint)
		}
		return nil
	})
	t := time.Unix(seconds, nanos).UTC()
	if err == nil && (t.Year() < 1 || t.Year() > 9999) {
		err = failure(codeInvalidArgument, "time %s: want a year from 1 to 9999", fmt.Sprintf("%d.%09d", seconds, nanos))
	}
	return t, err
}
