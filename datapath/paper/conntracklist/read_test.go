package conntracklist

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/conntrack"
)

func readFile(t testing.TB, name string) []Entry {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	entries, err := Read(f)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return entries
}

func TestReadList(t *testing.T) {
	e := readFile(t, "list.txt")
	if len(e) != 10 {
		t.Fatalf("%d entries, want 10", len(e))
	}
	const dnat, snat, seen, assured = conntrack.StatusDestinationNAT, conntrack.StatusSourceNAT, conntrack.StatusSeenReply, conntrack.StatusAssured
	for i, want := range []conntrack.Status{dnat | seen | assured, dnat, dnat, dnat | snat | seen | assured, dnat | seen | assured, seen, 0, seen | assured, dnat | seen, dnat | seen} {
		if e[i].Status != want || e[i].Line != i+1 {
			t.Errorf("line %d (%d): status %#x, want %#x", i+1, e[i].Line, e[i].Status, want)
		}
	}
	first := e[0]
	if first.TCP != conntrack.TCPEstablished || first.Timeout != 431999 || first.Original.String() != "6 10.244.1.5:40000->10.96.0.20:80" || first.Endpoint().String() != "10.244.2.9:8080" {
		t.Errorf("%+v", first)
	}
	if e[3].Mark != 0x2000 || !e[3].HasCounters || e[3].Sent != (conntrack.Counters{Packets: 9, Bytes: 540}) || e[3].Received.Bytes != 900 {
		t.Errorf("%+v", e[3])
	}
	if e[4].Zone != 7 || e[4].SCTP != conntrack.SCTPEstablished || e[5].Original.Protocol != 1 || !e[8].Offloaded || e[9].Original.Destination.String() != "[fd00:10:96::a]:53" {
		t.Errorf("%+v", e[4:])
	}
}

func TestReadProc(t *testing.T) {
	e := readFile(t, "proc.txt")
	if len(e) != 3 || e[1].Original.String() != "17 [fd00:10:244::5]:5353->[fd00:10:96::a]:53" || e[2].Zone != 3 || !e[2].Offloaded || e[2].Received.Packets != 4 {
		t.Errorf("%+v", e)
	}
}

func TestReadErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"*nat", `line 1, column 1: "*nat": want a connection entry`},
		{"<?xml version=\"1.0\"?>", `line 1, column 1: "<?xml": want a connection entry`},
		{"tcp six", `line 1, column 5: "six": want a connection entry`},
		{"\ntcp 6 1 ESTABLISHED src=10.0.0.1 dst=web", `line 2, column 34: "dst=web": want an address`},
		{"udp 17 1 src=10.0.0.1 dst=10.0.0.2 sport=99999", `line 1, column 36: "sport=99999": want a port`},
		{"udp 17 1 src=10.0.0.1 dst=10.0.0.2 sport=1 dport=2", "line 1, column 51: the line ends: want src= and dst= of both directions"},
		{"udp 17 1 src=10.0.0.1 dst=10.0.0.2 sport=1 dport=2 src=10.0.0.2 dst=10.0.0.1 sport=2 dp", `line 1, column 88: the line ends: want sport= and dport= of both directions: the line is cut off`},
		{"    [NEW] udp 17 1 src=10.0.0.1 dst=10.0.0.2 sport=1 dport=2", ErrEvents.Error()},
		{"cpu=0   \tfound=120 invalid=3310 insert=0 insert_failed=55", ErrCounters.Error()},
		{"[1700000000.1]\t[DESTROY] udp 17 src=10.0.0.1 dst=10.0.0.2 sport=1 dport=2", ErrEvents.Error()},
		{"ipv4 3 udp", `line 1, column 6: "3": want the number of the address family`},
	} {
		_, err := Read(strings.NewReader(c.text))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, name := range []string{"list.txt", "proc.txt"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			f.Add(line)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, e := range entries {
			if !e.Original.Source.Addr().IsValid() || e.Original.Source.Addr().Is4() != e.Reply.Destination.Addr().Is4() {
				t.Fatalf("%+v", e)
			}
		}
		Judge(testTable(t), entries)
	})
}
