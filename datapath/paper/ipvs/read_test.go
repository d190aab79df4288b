package ipvs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func read(t testing.TB, name string) *State {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := Read(f)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return s
}

// text has all fields that the format has.
func text(s *State) string {
	var b strings.Builder
	for _, v := range s.Servers {
		fmt.Fprintf(&b, "%d %s %s", v.Line, v, v.Scheduler)
		if len(v.Flags) > 0 {
			fmt.Fprintf(&b, " %q", v.Flags)
		}
		if v.Persistence > 0 {
			fmt.Fprintf(&b, " %d s /%d", v.Persistence, v.ClientBits)
		}
		fmt.Fprintf(&b, " %v\n", v.Traffic)
		for _, r := range v.Real {
			fmt.Fprintf(&b, "  %d %s %s %d, %d+%d, %d-%d, %v\n", r.Line, r.Address, r.Forward, r.Weight, r.Active, r.Inactive, r.Lower, r.Upper, r.Traffic)
		}
	}
	return b.String()
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		file   string
		format Format
		want   []string
	}{
		{"save.txt", Save, []string{
			"6 TCP 10.96.52.7:80 wrr 10800 s /32 ", "  9 10.244.2.10:8080 Masq 0, ", "10 TCP 172.20.0.2:30080 wrr 10800 s /24", "15 SCTP 10.96.9.9:3868 lc",
			`16 FWM 7 sh ["sh-fallback" "sh-port"]`, "  17 10.0.0.1:0 Route 1,", "  18 10.0.0.2:0 Tunnel 2,", "19 TCP [fd00:10:96::a]:53 rr 300 s /64", "21 FWM 8 IPv6 mh",
		}},
		{"list.txt", List, []string{
			"6 TCP 10.96.52.7:80 wlc 10800 s /24", "  7 10.244.1.5:8080 Masq 2, 12+3,", "  9 172.20.0.2:8080 Local 1, 7+0,", "10 TCP 10.96.7.7:80 rr",
			`11 UDP 10.96.0.10:53 sh ["sh-port"]`, "14 FWM 7 rr", "16 FWM 8 IPv6 wrr", "  17 [fd00::1]:0 Tunnel 1", "18 TCP [fd00:10:96::1]:443 nq 300 s /64",
		}},
		{"stats.txt", Stats, []string{"4 TCP 10.96.0.1:443  {18 4711 3988 523188 1884311}", "6 UDP 10.96.0.10:53  {129041 258082 258082 17033412 123456000}"}},
		{"rate.txt", Rate, []string{"  5 172.20.0.2:6443 Masq 0, 0+0, 0-0, {0 12 11 1388 9120}"}},
		{"thresholds.txt", Thresholds, []string{"  5 172.20.0.2:6443 Masq 0, 4+0, 80-100,"}},
		{"persistent.txt", Persistence, []string{"  5 172.20.0.2:6443 Masq 1, 4+0,"}},
	} {
		s := read(t, c.file)
		if s.Format != c.format {
			t.Errorf("%s: format %s, want %s", c.file, s.Format, c.format)
		}
		for _, want := range c.want {
			if got := text(s); !strings.Contains("\n"+got, "\n"+want) {
				t.Errorf("%s: no line %q in\n%s", c.file, want, got)
			}
		}
	}
}

// TestReadExcerpt reads what grep and people leave of a listing.
func TestReadExcerpt(t *testing.T) {
	const grep = "  -> 10.0.0.9:80 Masq 1 0 0\nTCP  10.0.0.1:80 rr\n  -> 10.0.0.2:80                  Masq    1      2          3\n--\nUDP  10.0.0.1:53 rr\n  → 10.0.0.2:53 Masq 1 0 0\nTCP 10.0.0.3:80 rr\n"
	const heading = "Prot LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n"
	const elided = heading + "TCP  10.0.0.1:80 rr\n  -> 10.0.0.2:80 Masq 1 2 3\n...\n  -> 10.0.0.9:80 Masq 1 2 3\nUDP  10.0.0.1:53 rr\n  -> 10.0.0.2:53 Masq 1 0 0\n"
	for _, c := range []struct {
		text    string
		excerpt []string
	}{
		{grep, []string{"TCP 10.0.0.1:80", "TCP 10.0.0.3:80"}},
		{elided, []string{"TCP 10.0.0.1:80"}},
	} {
		s, err := Read(strings.NewReader(c.text))
		if err != nil {
			t.Fatal(err)
		}
		if s.Format != List || len(s.Servers) != 2 || len(s.Servers[0].Real) != 1 || s.Servers[0].Real[0].Active != 2 || len(s.Servers[1].Real) != 1 {
			t.Errorf("%q: %+v", c.text, s)
		}
		if !slices.Equal(s.Excerpt, c.excerpt) {
			t.Errorf("%q: %q, want %q", c.text, s.Excerpt, c.excerpt)
		}
	}
}

func TestReadErrors(t *testing.T) {
	const heading = "Prot LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n"
	for _, c := range []struct{ text, want string }{
		{"", "no virtual servers and no heading: want the output of ipvsadm -Sn or ipvsadm -Ln"},
		{"*nat\n", `line 1, column 1: "*nat": want -A, or the heading of ipvsadm -Ln`},
		{"-A -t 10.0.0.1:https -s rr\n", `line 1, column 7: "10.0.0.1:https": want an address and a port in numbers`},
		{"-A -t 10.0.0.1:80 -s\n", `line 1, column 21: the line ends: want a scheduler`},
		{"-A -s rr\n", "line 1, column 9: the line ends: want the address of the virtual server"},
		{"-A -t 10.0.0.1:80 -z\n", `line 1, column 19: "-z": want an option of -A`},
		{"-A -t 10.0.0.1:80 -p 1 -M 255.0.255.0\n", `line 1, column 27: "255.0.255.0": want a netmask of ones and then zeros`},
		{"-A -t 10.0.0.1:80\n-A -t 10.0.0.1:80\n", `line 2, column 1: "-A": want another virtual server: TCP 10.0.0.1:80 is in line 1, too`},
		{"-a -t 10.0.0.1:80 -r 10.0.0.2:80 -m -w 1\n", `line 1, column 1: "-a": want a virtual server of a line before: TCP 10.0.0.1:80 was not added with -A`},
		{"-A -t 10.0.0.1:80\n-a -t 10.0.0.1:80 -r 10.0.0.2:80 -w x\n", `line 2, column 37: "x": want a weight, from 0 to 2147483647`},
		{"-A -t 10.0.0.1:80\n-a -t 10.0.0.1:80 -r [fd00::1]:80 -m\n", `line 2, column 22: "[fd00::1]:80": want an address of the family of TCP 10.0.0.1:80`},
		{"-A -t 10.0.0.1:80\n" + heading, `line 2, column 1: "Prot": want -A or -a, as in the lines before`},
		{heading + "-A -t 10.0.0.1:80\n", `line 3, column 1: "-A": want a virtual server or a real server of the listing`},
		{heading + "  -> 10.0.0.2:80 Masq 1 0 0\n", `line 3, column 3: "->": want a virtual server before its real servers`},
		{heading + "TCP  10.0.0.1:80 rr\n  -> 10.0.0.2:80 Masq 1 0\n", `line 4, column 26: the line ends: want a number`},
		{heading + "TCP  10.0.0.1:80 rr\n  -> 10.0.0.2:80 Mask 1 0 0\n", `line 4, column 18: "Mask": want a forwarding method: Masq, Route, Tunnel or Local`},
		{heading + "ICMP  10.0.0.1:80 rr\n", `line 3, column 1: "ICMP": want TCP, UDP, SCTP, FWM or ->`},
		{"Prot LocalAddress:Port Bytes\n", `line 1, column 24: "Bytes": want Scheduler, Conns, CPS, Uthreshold or Weight`},
	} {
		_, err := Read(strings.NewReader(c.text))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
}

// FuzzSave and FuzzListing: no text makes a reader panic, and what is read can be scheduled.
func FuzzSave(f *testing.F) { fuzz(f, "save.txt") }
func FuzzListing(f *testing.F) {
	fuzz(f, "list.txt", "stats.txt", "rate.txt", "thresholds.txt", "persistent.txt")
}

func fuzz(f *testing.F, files ...string) {
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, v := range s.Servers {
			checkChoice(t, v, client(1))
		}
	})
}

func TestLooks(t *testing.T) {
	for text, want := range map[string]bool{
		"-A -t 10.96.0.1:443 -s rr\n": true, "IP Virtual Server version 1.2.1 (size=4096)\n": true, "\nProt LocalAddress:Port Scheduler Flags\n": true,
		"": false, "-A INPUT -j ACCEPT\n": false, "*nat\n": false, "table ip nat {\n": false,
	} {
		if Looks(text) != want {
			t.Errorf("%q: want %t", text, want)
		}
	}
}
