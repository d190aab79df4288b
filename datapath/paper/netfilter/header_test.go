package netfilter

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// sendAll sends packets one after the other, with what they leave behind, and gives who was
// dropped.
func sendAll(t *testing.T, m *Machine, s *State, packets ...iptables.Packet) (dropped []bool) {
	t.Helper()
	for _, p := range packets {
		r := m.Send(p, s, first{})
		if r.Verdict == Stopped {
			t.Fatalf("%s: %s", &p, r.Why)
		}
		dropped = append(dropped, r.Verdict == Dropped)
	}
	return dropped
}

// first is a Rand whose draws never take a rule.
type first struct{}

func (first) Float64() float64 { return 0.999 }

func same(a, b []bool) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

// TestNthGoesOn: where the counter stands is not known at first, and it is from the packet on
// whose turn it is; with every third packet, at the latest after two.
func TestNthGoesOn(t *testing.T) {
	m := parse(t, worker(), "*filter", "-A INPUT -m statistic --mode nth --every 3 --packet 0 -j DROP", "COMMIT")
	var packets []iptables.Packet
	for i := range 9 {
		p := toHost()
		p.Source = netip.AddrPortFrom(p.Source.Addr(), uint16(40000+i))
		packets = append(packets, p)
	}
	got := sendAll(t, m, &State{}, packets...)
	if want := []bool{false, false, true, false, false, true, false, false, true}; !same(got, want) {
		t.Errorf("dropped %v, want %v", got, want)
	}
	ways, rest := m.Explore(packets[0], nil, 10)
	if len(ways) != 2 || rest != 0 {
		t.Errorf("the first packet has %d ways", len(ways))
	}
}

// TestQuota counts the bytes of all packets; the first that is too much ends it.
func TestQuota(t *testing.T) {
	m := parse(t, worker(), "*filter", "-A INPUT -m quota --quota 150 -j DROP", "COMMIT")
	small := toHost()
	small.Length = 30
	if got, want := sendAll(t, m, &State{}, toHost(), toHost(), toHost(), small), []bool{true, true, false, false}; !same(got, want) {
		t.Errorf("dropped %v, want %v", got, want)
	}
}

// TestTime: xt_time.c. 2026-01-31 is a Saturday.
func TestTime(t *testing.T) {
	for _, c := range []struct {
		rule, at string
		want     bool
	}{
		{"--timestart 10:00:00 --timestop 12:00:00", "2026-01-31T10:00:00Z", true},
		{"--timestart 10:00:00 --timestop 12:00:00", "2026-01-31T12:00:01Z", false},
		{"--timestart 22:00:00 --timestop 06:00:00", "2026-01-31T05:00:00Z", true},
		{"--timestart 22:00:00 --timestop 06:00:00", "2026-01-31T21:59:59Z", false},
		{"--timestart 22:00:00 --timestop 06:00:00 --weekdays Fri", "2026-01-31T05:00:00Z", false},
		{"--timestart 22:00:00 --timestop 06:00:00 --weekdays Fri --contiguous", "2026-01-31T05:00:00Z", true},
		{"--weekdays Sat,Sun", "2026-01-31T05:00:00Z", true},
		{"! --weekdays Sat,Sun", "2026-01-31T05:00:00Z", false},
		{"--monthdays 31", "2026-01-31T05:00:00Z", true},
		{"--datestart 2026-02-01", "2026-01-31T23:59:59Z", false},
		{"--datestop 2026-01-31T05:00:00", "2026-01-31T05:00:01Z", false},
		{"--datestart 2026-01-31T05:00:00 --datestop 2026-01-31T05:00:00", "2026-01-31T05:00:00Z", true},
	} {
		m := parse(t, worker(), "*filter", "-A INPUT -m time "+c.rule+" -j DROP", "COMMIT")
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		if got := sendAll(t, m, &State{Began: at.Add(-time.Minute), Now: 60}, toHost()); got[0] != c.want {
			t.Errorf("%s at %s: %v, want %v", c.rule, c.at, got[0], c.want)
		}
	}
	m := parse(t, worker(), "*filter", "-A INPUT -m time --weekdays Mon -j DROP", "COMMIT")
	if r := m.Send(toHost(), &State{}, nil); r.Verdict != Stopped {
		t.Errorf("without a time: %s", r.Verdict)
	}
}

// TestAnswerSuppositions: what is made up of an answer is an assumption where a rule looks at
// it, and what cannot be made up ends the walk.
func TestAnswerSuppositions(t *testing.T) {
	for rule, want := range map[string]string{
		"-A INPUT -m length --length 60":                         "that the packet has 60 bytes",
		"-A INPUT -m ttl --ttl-eq 64":                            "that the packet's time to live is 64 here",
		"-A INPUT -m tos --tos 0x10/0xff":                        "that the packet's type of service is 0x00",
		"-A INPUT -p tcp -m tcp --tcp-option 2":                  "that the packet has the TCP options []",
		"-A INPUT -m mac --mac-source 02:00:00:00:00:01 -j DROP": "",
		"-A INPUT -m comment --comment x":                        "nothing",
	} {
		m := parse(t, worker(), "*filter", rule, "COMMIT")
		s := &State{}
		request := packet(protoTCP, "172.20.0.2:40000", "172.20.0.9:80", "")
		answer, ok := m.Send(request, s, nil).Answer()
		if !ok {
			t.Fatal("no answer")
		}
		r := m.Send(answer, s, nil)
		switch {
		case want == "":
			if _, mac := r.Unknown.(iptables.MAC); r.Verdict != Stopped || !mac {
				t.Errorf("%s: %s %q", rule, r.Verdict, r.Why)
			}
		case want == "nothing":
			if len(r.Assumptions) > 0 {
				t.Errorf("%s: %q", rule, r.Assumptions)
			}
		case len(r.Assumptions) != 1 || r.Assumptions[0] != want:
			t.Errorf("%s: assumptions %q, want %q", rule, r.Assumptions, want)
		}
	}
	m := parse(t, worker(), "*filter", "-A OUTPUT -m owner --uid-owner 1000 -j DROP", "COMMIT")
	s := &State{}
	answer, _ := m.Send(toHost(), s, nil).Answer()
	if r := m.Send(answer, s, nil); len(r.Assumptions) != 1 || r.Assumptions[0] != "that user 0 and group 0 send the packet" {
		t.Errorf("owner: %q", r.Assumptions)
	}
}
