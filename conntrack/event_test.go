package conntrack

import (
	"encoding/binary"
	"testing"
	"time"
)

// eventMessages are what Linux 6.18 sent, with nf_conntrack_acct and nf_conntrack_timestamp.
func eventMessages(t testing.TB) []struct {
	name    string
	message []byte
	want    Event
} {
	tcp := State{
		Original: tuple(protoTCP, "10.244.1.9:40000", "10.96.0.10:80"), Reply: tuple(protoTCP, "10.244.2.2:8080", "10.244.1.9:40000"),
		Mark: DefaultMark, ID: 0x5fd37cf5,
	}
	udp := State{
		Original: tuple(protoUDP, "[fd44:1::9]:40000", "[fd96::a]:53"), Reply: tuple(protoUDP, "[fd44:2::2]:5353", "[fd44:1::9]:40000"),
		Mark: DefaultMark, ID: 0xcdbde44c, Timeout: 1,
	}
	const tuples4 = "3400 0180 1400 0180 0800 0100 0af40109 0800 0200 0a60000a 1c00 0280 0500 0100 06000000 0600 0200 9c400000 0600 0300 00500000" +
		"3400 0280 1400 0180 0800 0100 0af40202 0800 0200 0af40109 1c00 0280 0500 0100 06000000 0600 0200 1f900000 0600 0300 9c400000"
	const tuples6 = "4c00 0180 2c00 0180 1400 0300 fd440001000000000000000000000009 1400 0400 fd96000000000000000000000000000a" +
		"1c00 0280 0500 0100 11000000 0600 0200 9c400000 0600 0300 00350000" +
		"4c00 0280 2c00 0180 1400 0300 fd440002000000000000000000000002 1400 0400 fd440001000000000000000000000009" +
		"1c00 0280 0500 0100 11000000 0600 0200 14e90000 0600 0300 9c400000"
	updatedTCP, destroyedTCP, updatedUDP, destroyedUDP := tcp, tcp, udp, udp
	updatedTCP.Status, updatedTCP.Timeout, updatedTCP.TCP = 0x1aa, 60, TCPSynRecv
	destroyedTCP.Status, destroyedTCP.Timeout, destroyedTCP.TCP = 0x3ae, 1, TCPTimeWait
	destroyedTCP.HasCounters, destroyedTCP.Sent, destroyedTCP.Received = true, Counters{4, 216}, Counters{3, 164}
	destroyedTCP.Start, destroyedTCP.Stop = time.Unix(0, 0x18ea1a1d9b4bcfbb), time.Unix(0, 0x18ea1a1d9bc58395)
	updatedUDP.Status = 0x1aa
	destroyedUDP.Status = 0x3aa
	destroyedUDP.HasCounters, destroyedUDP.Sent, destroyedUDP.Received = true, Counters{1, 53}, Counters{1, 51}
	destroyedUDP.Start, destroyedUDP.Stop = time.Unix(0, 0x18ea1a1d9aa7b3da), time.Unix(0, 0x18ea1a1d9aafadb1)
	return []struct {
		name    string
		message []byte
		want    Event
	}{
		{"UPDATE of IPv4", golden(t,
			"d8000000 0001 0000 00000000 00000000 02 00 0000 # nlmsghdr: length 216, CT_NEW, no flags, port 0; AF_INET",
			tuples4,
			"0800 0c00 5fd37cf5         # CTA_ID",
			"0800 0300 000001aa         # CTA_STATUS",
			"0800 0700 0000003c         # CTA_TIMEOUT",
			"3000 0480 2c00 0180        # CTA_PROTOINFO, CTA_PROTOINFO_TCP",
			" 0500 0100 02000000 0500 0200 0a000000 0500 0300 0a000000 0600 0400 03000000 0600 0500 23000000",
			"0800 0800 00002000         # CTA_MARK",
			"0c00 1b00 18ea1a1d9b76635a # CTA_TIMESTAMP_EVENT",
		), Event{Kind: Updated, At: time.Unix(0, 0x18ea1a1d9b76635a), State: updatedTCP}},
		{"DESTROY of IPv4", golden(t,
			"0c010000 0201 0000 00000000 0b000000 02 00 0000 # length 268, CT_DELETE, port 11; AF_INET",
			tuples4,
			"0800 0c00 5fd37cf5 0800 0300 000003ae 0800 0700 00000001",
			"1c00 0980 0c00 0100 0000000000000004 0c00 0200 00000000000000d8 # CTA_COUNTERS_ORIG",
			"1c00 0a80 0c00 0100 0000000000000003 0c00 0200 00000000000000a4 # CTA_COUNTERS_REPLY",
			"1c00 1480 0c00 0100 18ea1a1d9b4bcfbb 0c00 0200 18ea1a1d9bc58395 # CTA_TIMESTAMP: start and stop",
			"1000 0480 0c00 0180 0500 0100 07000000                          # CTA_PROTOINFO: the state only",
			"0800 0800 00002000 0c00 1b00 18ea1a1d9bc5840f",
		), Event{Kind: Destroyed, At: destroyedTCP.Stop, PortID: 11, State: destroyedTCP}},
		{"UPDATE of IPv6", golden(t,
			"d8000000 0001 0000 00000000 00000000 0a 00 0000 # AF_INET6",
			tuples6,
			"0800 0c00 cdbde44c 0800 0300 000001aa 0800 0700 00000001 0800 0800 00002000 0c00 1b00 18ea1a1d9aaec416",
		), Event{Kind: Updated, At: time.Unix(0, 0x18ea1a1d9aaec416), State: updatedUDP}},
		{"DESTROY of IPv6", golden(t,
			"2c010000 0201 0000 00000000 0b000000 0a 00 0000",
			tuples6,
			"0800 0c00 cdbde44c 0800 0300 000003aa 0800 0700 00000001",
			"1c00 0980 0c00 0100 0000000000000001 0c00 0200 0000000000000035",
			"1c00 0a80 0c00 0100 0000000000000001 0c00 0200 0000000000000033",
			"1c00 1480 0c00 0100 18ea1a1d9aa7b3da 0c00 0200 18ea1a1d9aafadb1",
			"0800 0800 00002000 0c00 1b00 18ea1a1d9aafae29",
		), Event{Kind: Destroyed, At: destroyedUDP.Stop, PortID: 11, State: destroyedUDP}},
	}
}

func TestEventMessages(t *testing.T) {
	skipBigEndian(t)
	for _, tt := range eventMessages(t) {
		t.Run(tt.name, func(t *testing.T) {
			var got Event
			ok, err := parseEvent(tt.message, &got)
			if !ok || err != nil || got != tt.want {
				t.Errorf("got %v, error %v,\n%+v, want\n%+v", ok, err, got, tt.want)
			}
			// Cut anywhere, it does not panic, and is no event of something else.
			for n := nlmsgHdrLen; n < len(tt.message); n++ {
				var cut Event
				if ok, err := parseEvent(tt.message[:n], &cut); ok && err == nil && cut.State.Original != tt.want.State.Original {
					t.Errorf("cut at %d: %+v", n, cut)
				}
			}
		})
	}
}

// TestNoEvents: what is no event of a connection with ports is left out.
func TestNoEvents(t *testing.T) {
	skipBigEndian(t)
	tcp := eventMessages(t)[0].message
	change := func(at int, to byte) []byte {
		b := append([]byte(nil), tcp...)
		b[at] = to
		return b
	}
	const proto = 20 + 4 + 20 + 4 + 4 // within CTA_TUPLE_ORIG
	if tcp[proto] != protoTCP {
		t.Fatal("that is not where the protocol is")
	}
	for name, b := range map[string][]byte{
		"an answer":           change(5, 0),
		"icmp":                change(proto, 1),
		"another message":     change(4, 1),
		"only a header":       nil,
		"a tuple is cut":      change(20, 5),
		"an attribute is cut": change(20, 3),
	} {
		if b == nil {
			b = binary.NativeEndian.AppendUint16(make([]byte, 4), msgCTDelete)
			b = append(b, make([]byte, nlmsgHdrLen-len(b))...)
		}
		if ok, _ := parseEvent(b, new(Event)); ok {
			t.Errorf("%s is an event", name)
		}
	}
	var began Event
	if ok, err := parseEvent(change(7, flagCreate>>8), &began); !ok || err != nil || began.Kind != Began {
		t.Errorf("a new entry: %v, %v, %v", ok, err, began.Kind)
	}
}

func TestParseEventDoesNotAllocate(t *testing.T) {
	skipBigEndian(t)
	for _, tt := range eventMessages(t) {
		var e Event
		if n := testing.AllocsPerRun(100, func() {
			if ok, err := parseEvent(tt.message, &e); !ok || err != nil {
				t.Error(ok, err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", tt.name, n)
		}
	}
}

func TestParseTime(t *testing.T) {
	parseTime := func(b []byte) (time.Time, error) {
		_, at, err := parseState(appendAttr(make([]byte, nfgenmsgLen), ctaTimestampEvent, b))
		return at, err
	}
	if at, err := parseTime(make([]byte, 8)); !at.IsZero() || err != nil {
		t.Errorf("0 is %v, error %v; want no time", at, err)
	}
	if at, err := parseTime([]byte{0, 0, 0, 0, 0x3b, 0x9a, 0xca, 0}); at != time.Unix(1, 0) || err != nil {
		t.Errorf("a billion nanoseconds are %v, error %v", at, err)
	}
	if _, err := parseTime(make([]byte, 7)); err == nil {
		t.Error("seven bytes are a time")
	}
}

func TestStateNames(t *testing.T) {
	for got, want := range map[string]string{
		TCPSynSent.String(): "SYN_SENT", TCPSynSent2.String(): "SYN_SENT2", TCPState(10).String(): "10",
		SCTPShutdownAckSent.String(): "SHUTDOWN_ACK_SENT", SCTPHeartbeatAcked.String(): "HEARTBEAT_ACKED", SCTPState(255).String(): "255",
		Updated.String(): "UPDATE", Destroyed.String(): "DESTROY", EventKind(0).String(): "unknown",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func FuzzParseEvent(f *testing.F) {
	for _, m := range eventMessages(f) {
		f.Add(m.message)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < nlmsgHdrLen {
			t.Skip()
		}
		var e Event
		if ok, err := parseEvent(b, &e); ok && (err != nil || e.Kind != Began && e.Kind != Updated && e.Kind != Destroyed) {
			t.Errorf("%+v, error %v", e, err)
		}
	})
}

func BenchmarkParseEvent(b *testing.B) {
	skipBigEndian(b)
	for _, m := range eventMessages(b) {
		b.Run(m.name, func(b *testing.B) {
			var e Event
			b.ReportAllocs()
			for b.Loop() {
				if ok, err := parseEvent(m.message, &e); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}
