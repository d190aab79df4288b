package conntrack

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
)

func dump(t *testing.T, table *Table, f Filter) (map[Tuple]State, error) {
	t.Helper()
	found := make(map[Tuple]State)
	err := table.Dump(f, func(s *State) { found[s.Original] = *s })
	return found, err
}

func TestDumpFilters(t *testing.T) {
	f := NewFake()
	table := f.Table()
	for _, proto := range []uint8{protoTCP, protoUDP, protoSCTP} {
		establishOne(table, service(proto, "10.244.1.2:40000"))
		establishOne(table, Entry{Tuple: tuple(proto, "[fd00::1]:40000", "[fd00::2]:53")})
	}
	for _, tt := range []struct {
		filter Filter
		want   int
	}{
		{Filter{}, 3}, {Filter{IPv6: true}, 3}, {Filter{Protocol: protoUDP}, 1}, {Filter{IPv6: true, Protocol: protoSCTP}, 1},
	} {
		found, err := dump(t, table, tt.filter)
		if err != nil || len(found) != tt.want {
			t.Errorf("%+v: %d entries, error %v; want %d", tt.filter, len(found), err, tt.want)
		}
		for tp := range found {
			if tp.Source.Addr().Is6() != tt.filter.IPv6 || tt.filter.Protocol != 0 && tp.Protocol != tt.filter.Protocol {
				t.Errorf("%+v lets %v pass", tt.filter, tp)
			}
		}
	}
	f.Interrupt = 1
	if _, err := dump(t, table, Filter{}); !errors.Is(err, ErrInterrupted) {
		t.Errorf("error %v, want ErrInterrupted", err)
	}
	if found, err := dump(t, table, Filter{}); err != nil || len(found) != 3 {
		t.Errorf("after an interrupted dump: %d entries, error %v", len(found), err)
	}
}

// TestDumpWithoutProtocolFilter: a kernel that does not know CTA_FILTER.
func TestDumpWithoutProtocolFilter(t *testing.T) {
	udp, tcp := State{Original: tuple(protoUDP, "10.0.0.1:1", "10.0.0.2:2")}, State{Original: tuple(protoTCP, "10.0.0.1:1", "10.0.0.2:2")}
	table := &Table{transport: scriptedTransport{
		{msgCTNew, appendState(nil, &tcp)}, {msgCTNew, appendState(nil, &udp)}, {nlmsgDone, make([]byte, 4)},
	}}
	found, err := dump(t, table, Filter{Protocol: protoUDP})
	if err != nil || len(found) != 1 || found[udp.Original].Original != udp.Original {
		t.Errorf("found %v, error %v", found, err)
	}
}

func TestDumpFails(t *testing.T) {
	errno := make([]byte, 4)
	errno[0] = 0xff - byte(syscall.EPERM) + 1
	errno[1], errno[2], errno[3] = 0xff, 0xff, 0xff
	for name, tt := range map[string]struct {
		transport transport
		want      error
	}{
		"no end":      {scriptedTransport{}, syscall.ENODATA},
		"refused":     {scriptedTransport{{nlmsgError, errno}}, syscall.EPERM},
		"fails late":  {scriptedTransport{{nlmsgDone, errno}}, syscall.EPERM},
		"cut entry":   {scriptedTransport{{msgCTNew, []byte{2}}, {nlmsgDone, make([]byte, 4)}}, errShort},
		"lost answer": {brokenTransport{}, syscall.ENOBUFS},
	} {
		t.Run(name, func(t *testing.T) {
			var op *OpError
			_, err := dump(t, &Table{transport: tt.transport}, Filter{})
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

func (s scriptedTransport) exchange(_ []byte, to receiver) error {
	reply := to.receive
	for _, m := range s {
		reply(1, m.typ, m.body)
	}
	return nil
}
func (scriptedTransport) Close() error { return nil }

func TestDeleteTakesOnlyWhatWasDumped(t *testing.T) {
	f := NewFake()
	table := f.Table()
	var entries []Entry
	for i := range 3 * maxBatch {
		entries = append(entries, service(protoUDP, fmt.Sprintf("10.244.1.2:%d", 20000+i)))
	}
	table.Establish(entries, make([]Result, len(entries)))
	var states []State
	if err := table.Dump(Filter{Protocol: protoUDP}, func(s *State) { states = append(states, *s) }); err != nil {
		t.Fatal(err)
	}
	// One expires, another is made anew with another translation and the same ID.
	gone, anew := states[3], states[maxBatch+5]
	table.Delete([]State{gone, anew}, make([]error, 2))
	e := Entry{Tuple: anew.Original, Destination: entries[0].Destination}
	e.Destination = tuple(protoUDP, "10.0.0.1:1", "10.244.0.9:53").Destination
	establishOne(table, e)
	f.Change(e.Tuple, func(s *State) { s.ID = anew.ID })

	errs := make([]error, len(states))
	table.Delete(states, errs)
	for i, err := range errs {
		if kept := states[i].ID == gone.ID || states[i].ID == anew.ID; kept != IsNotFound(err) || !kept && err != nil {
			t.Errorf("%v: error %v", states[i].Original, err)
		}
	}
	if s, ok := f.Get(e.Tuple); f.Len() != 1 || !ok || s.Endpoint() != e.Destination {
		t.Errorf("%d entries are left, want only the one made anew", f.Len())
	}
	broken := &Table{transport: brokenTransport{}}
	if broken.Delete(states[:2], errs); !errors.Is(errs[1], syscall.ENOBUFS) {
		t.Errorf("error %v of a broken socket", errs[1])
	}
}
