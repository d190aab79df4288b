package conntrack_test

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/conntrack/conntracktest"
)

func dump(t *testing.T, table *conntrack.Table, f conntrack.Filter) (map[conntrack.Tuple]conntrack.State, error) {
	t.Helper()
	found := make(map[conntrack.Tuple]conntrack.State)
	err := table.Dump(f, func(s *conntrack.State) { found[s.Original] = *s })
	return found, err
}

func TestDumpFilters(t *testing.T) {
	f := conntracktest.NewFake()
	table := f.Table()
	for _, proto := range []uint8{protoTCP, protoUDP, protoSCTP} {
		establishOne(table, service(proto, "10.244.1.2:40000"))
		establishOne(table, conntrack.Entry{Tuple: tuple(proto, "[fd00::1]:40000", "[fd00::2]:53")})
	}
	for _, tt := range []struct {
		filter conntrack.Filter
		want   int
	}{
		{conntrack.Filter{}, 6}, {conntrack.Filter{Family: conntrack.IPv4}, 3}, {conntrack.Filter{Family: conntrack.IPv6}, 3},
		{conntrack.Filter{Protocol: protoUDP}, 2}, {conntrack.Filter{Family: conntrack.IPv6, Protocol: protoSCTP}, 1},
	} {
		found, err := dump(t, table, tt.filter)
		if err != nil || len(found) != tt.want {
			t.Errorf("%+v: %d entries, error %v; want %d", tt.filter, len(found), err, tt.want)
		}
		for tp := range found {
			if tp.Source.Addr().Is6() && tt.filter.Family == conntrack.IPv4 || tp.Source.Addr().Is4() && tt.filter.Family == conntrack.IPv6 ||
				tt.filter.Protocol != 0 && tp.Protocol != tt.filter.Protocol {
				t.Errorf("%+v lets %v pass", tt.filter, tp)
			}
		}
	}
	f.Interrupt = 1
	if _, err := dump(t, table, conntrack.Filter{}); !errors.Is(err, conntrack.ErrInterrupted) {
		t.Errorf("error %v, want ErrInterrupted", err)
	}
	if found, err := dump(t, table, conntrack.Filter{}); err != nil || len(found) != 6 {
		t.Errorf("after an interrupted dump: %d entries, error %v", len(found), err)
	}
}

// TestDumpWithoutProtocolFilter: a kernel that does not know CTA_FILTER.
func TestDumpWithoutProtocolFilter(t *testing.T) {
	state := func(t conntrack.Tuple) conntrack.State { return conntrack.State{Original: t, Reply: t.Inverse()} }
	udp, tcp := state(tuple(protoUDP, "10.0.0.1:1", "10.0.0.2:2")), state(tuple(protoTCP, "10.0.0.1:1", "10.0.0.2:2"))
	table := conntrack.NewTable(scriptedTransport{
		{msgCTNew, conntracktest.Body(&tcp)}, {msgCTNew, conntracktest.Body(&udp)}, {nlmsgDone, make([]byte, 4)},
	}, new(conntrack.Locks))
	found, err := dump(t, table, conntrack.Filter{Protocol: protoUDP})
	if err != nil || len(found) != 1 || found[udp.Original].Original != udp.Original {
		t.Errorf("found %v, error %v", found, err)
	}
}

func TestDumpFails(t *testing.T) {
	errno := make([]byte, 4)
	errno[0] = 0xff - byte(syscall.EPERM) + 1
	errno[1], errno[2], errno[3] = 0xff, 0xff, 0xff
	for name, tt := range map[string]struct {
		transport conntrack.Transport
		want      error
	}{
		"no end":      {scriptedTransport{}, syscall.ENODATA},
		"refused":     {scriptedTransport{{nlmsgError, errno}}, syscall.EPERM},
		"fails late":  {scriptedTransport{{nlmsgDone, errno}}, syscall.EPERM},
		"cut entry":   {scriptedTransport{{msgCTNew, []byte{2}}, {nlmsgDone, make([]byte, 4)}}, conntrack.ErrShort},
		"lost answer": {brokenTransport{}, syscall.ENOBUFS},
	} {
		t.Run(name, func(t *testing.T) {
			var op *conntrack.OpError
			_, err := dump(t, conntrack.NewTable(tt.transport, new(conntrack.Locks)), conntrack.Filter{})
			if !errors.Is(err, tt.want) || !errors.As(err, &op) || op.Op != "dump" {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

type scriptedTransport []struct {
	typ  uint16
	body []byte
}

func (s scriptedTransport) Exchange(_ []byte, answer func(seq uint32, typ uint16, body []byte)) error {
	for _, m := range s {
		answer(1, m.typ, m.body)
	}
	return nil
}
func (scriptedTransport) Close() error { return nil }

// FuzzStateRoundTrip: a Table reads every state that the fake can report.
func FuzzStateRoundTrip(f *testing.F) {
	f.Add([]byte{10, 0, 0, 1}, []byte{10, 0, 0, 2}, uint16(1), uint16(2), uint8(protoTCP), uint32(3), uint8(4))
	f.Add(make([]byte, 16), make([]byte, 16), uint16(0), uint16(65535), uint8(protoSCTP), uint32(1), uint8(7))
	f.Fuzz(func(t *testing.T, src, dst []byte, sport, dport uint16, proto uint8, n uint32, state uint8) {
		s, ok1 := netip.AddrFromSlice(src)
		d, ok2 := netip.AddrFromSlice(dst)
		if !ok1 || !ok2 || s.Is4() != d.Is4() || s.Is4In6() || d.Is4In6() {
			t.Skip()
		}
		tp := conntrack.Tuple{Source: netip.AddrPortFrom(s, sport), Destination: netip.AddrPortFrom(d, dport), Protocol: proto}
		want := conntrack.State{Original: tp, Reply: tp.Inverse(), Status: conntrack.Status(n), Mark: n, Zone: sport, ID: n ^ 0xff}
		if proto == protoSCTP {
			want.SCTP = conntrack.SCTPState(state)
		} else {
			want.TCP = conntrack.TCPState(state)
		}
		if n%2 == 0 {
			want.HasCounters, want.Sent, want.Received = true, conntrack.Counters{Packets: uint64(n), Bytes: uint64(n) << 32}, conntrack.Counters{Bytes: uint64(sport)}
		}
		if dport > 0 {
			want.Start = time.Unix(int64(dport), int64(sport))
			if state > 0 {
				want.Stop = want.Start.Add(time.Duration(state))
			}
		}
		got, err := conntrack.NewTable(scriptedTransport{{msgCTNew, conntracktest.Body(&want)}}, new(conntrack.Locks)).Lookup(tp, 0)
		if err != nil || got != want {
			t.Errorf("%+v came back as %+v, error %v", want, got, err)
		}
	})
}

func TestDeleteTakesOnlyWhatWasDumped(t *testing.T) {
	f := conntracktest.NewFake()
	table := f.Table()
	var entries []conntrack.Entry
	for i := range 3 * conntrack.MaxBatch {
		entries = append(entries, service(protoUDP, fmt.Sprintf("10.244.1.2:%d", 20000+i)))
	}
	table.Establish(entries, make([]conntrack.Result, len(entries)))
	var states []conntrack.State
	if err := table.Dump(conntrack.Filter{Protocol: protoUDP}, func(s *conntrack.State) { states = append(states, *s) }); err != nil {
		t.Fatal(err)
	}
	// One expires, another is made anew with another translation and the same ID.
	gone, anew := states[3], states[conntrack.MaxBatch+5]
	table.Delete([]conntrack.State{gone, anew}, make([]error, 2))
	e := conntrack.Entry{Tuple: anew.Original, Destination: entries[0].Destination}
	e.Destination = tuple(protoUDP, "10.0.0.1:1", "10.244.0.9:53").Destination
	establishOne(table, e)
	f.Change(e.Tuple, func(s *conntrack.State) { s.ID = anew.ID })

	errs := make([]error, len(states))
	table.Delete(states, errs)
	for i, err := range errs {
		if kept := states[i].ID == gone.ID || states[i].ID == anew.ID; kept != conntrack.IsNotFound(err) || !kept && err != nil {
			t.Errorf("%v: error %v", states[i].Original, err)
		}
	}
	if s, ok := f.Get(e.Tuple); f.Len() != 1 || !ok || s.Endpoint() != e.Destination {
		t.Errorf("%d entries are left, want only the one made anew", f.Len())
	}
	broken := conntrack.NewTable(brokenTransport{}, new(conntrack.Locks))
	if broken.Delete(states[:2], errs); !errors.Is(errs[1], syscall.ENOBUFS) {
		t.Errorf("error %v of a broken socket", errs[1])
	}
}
