package nftrules

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

var kindDay = &kind{size: 1, names: map[string]uint64{
	"Sunday": 0, "Monday": 1, "Tuesday": 2, "Wednesday": 3, "Thursday": 4, "Friday": 5, "Saturday": 6,
}}

// kindDuration is a time span, in milliseconds.
var kindDuration = &kind{size: 4, parse: func(text string) ([]byte, bool) {
	d, ok := nftables.Literal{Text: text}.Duration()
	if ms := d.Milliseconds(); ok && ms <= math.MaxUint32 {
		return binary.BigEndian.AppendUint32(nil, uint32(ms)), true
	}
	return nil, false
}, text: func(b []byte) string { return (time.Duration(numberOf(b)) * time.Millisecond).String() }}

// kindHour is a time of day, in seconds.
var kindHour = &kind{size: 4, parse: func(text string) ([]byte, bool) {
	for _, layout := range []string{"15:04", "15:04:05"} {
		if t, err := time.Parse(layout, text); err == nil {
			b := iptables.NetworkNumber(4, uint64(t.Hour()*3600+t.Minute()*60+t.Second()))
			return b.Bytes(), true
		}
	}
	return nil, false
}}

// kindTime is a time such as "2026-01-31 08:30:00", in nanoseconds since 1970.
var kindTime = &kind{size: 8, parse: func(text string) ([]byte, bool) {
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil {
			b := iptables.NetworkNumber(8, uint64(t.UnixNano()))
			return b.Bytes(), true
		}
	}
	return nil, false
}}
