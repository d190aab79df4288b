package top

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// screen drives a model as bubbletea would, but for the time, which tick sets.
type screen struct {
	t       *testing.T
	cluster *observetest.Cluster
	now     time.Time
	*Model
}

func newScreen(t *testing.T, width, height int) *screen {
	s := &screen{t: t, cluster: observetest.NewCluster(), now: observetest.Now}
	s.Model = New(t.Context(), s.cluster, Options{Zone: time.UTC, Now: func() time.Time { return s.now }})
	s.read = func(*stream) tea.Cmd { return nil } // see receive
	s.send(tea.WindowSizeMsg{Width: width, Height: height})
	s.pending = true
	s.do(s.fetch())
	return s
}

// send gives a message to the model, and does what it wants done.
func (s *screen) send(msg tea.Msg) {
	_, cmd := s.Update(msg)
	s.do(cmd)
}

// do does what the model wants done, but for waiting for flows: see receive.
func (s *screen) do(cmd tea.Cmd) {
	if cmd == nil {
		return
	}
	switch msg := cmd().(type) {
	case tea.BatchMsg:
		for _, c := range msg {
			s.do(c)
		}
	case nil:
	default:
		s.send(msg)
	}
}

// tick lets a second pass.
func (s *screen) tick() {
	s.now = s.now.Add(time.Second)
	s.do(s.refresh())
}

// press types keys: one for each letter, and the names of those that have some.
func (s *screen) press(keys ...string) {
	named := map[string]rune{
		"enter": tea.KeyEnter, "esc": tea.KeyEsc, "up": tea.KeyUp, "down": tea.KeyDown, "pgdown": tea.KeyPgDown,
		"home": tea.KeyHome, "end": tea.KeyEnd, "backspace": tea.KeyBackspace,
	}
	for _, k := range keys {
		if t, ok := named[k]; ok {
			s.send(tea.KeyPressMsg{Code: t})
			continue
		}
		for _, c := range k {
			s.send(typed(c))
		}
	}
}

// typed is a key that gives a letter.
func typed(c rune) tea.Msg { return tea.KeyPressMsg{Code: c, Text: string(c)} }

// receive takes so many items of the stream.
func (s *screen) receive(n int) {
	s.t.Helper()
	for range n {
		msg := netnstest.Receive(s.t, s.stream.items, "an item of the stream")
		s.send(streamMsg{from: s.stream, items: []observe.Item{msg}})
	}
}

// check compares what is shown, and its size.
func (s *screen) check(name string) {
	s.t.Helper()
	got := s.text()
	lines := strings.Split(got, "\n")
	if len(lines) != s.height {
		s.t.Errorf("%s: %d lines, want %d", name, len(lines), s.height)
	}
	for i, line := range lines {
		if n := ansi.StringWidth(line); n > s.width {
			s.t.Errorf("%s: line %d has %d columns, want at most %d", name, i+1, n, s.width)
		}
	}
	file := filepath.Join("testdata", name+".txt")
	got += "\n"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	if got != string(want) {
		s.t.Errorf("got\n%s\nwant (%s; -update writes it anew)\n%s", got, file, want)
	}
}

// flows adds to what was counted, as if flows had been decided.
func (s *screen) flows(web, skewed uint64) {
	s.cluster.Update(func(all *observe.Services, stats []observe.Stats) {
		for i, n := range map[int]uint64{3: web, 1: skewed} {
			all.Services[i].Flows.Total += n
			all.Services[i].Endpoints[0].Flows.Total += n
		}
		stats[0].Verdicts = map[string]uint64{"dnat": stats[0].Verdicts["dnat"] + web + skewed, "reject": 7, "drop": 2, "accept": 2}
	})
}

// TestViews: what is shown at the sizes that people have, read and found good.
func TestViews(t *testing.T) {
	for _, size := range []struct {
		name          string
		width, height int
	}{{"small", 60, 15}, {"usual", 80, 24}, {"large", 140, 40}} {
		t.Run(size.name, func(t *testing.T) {
			s := newScreen(t, size.width, size.height)
			s.check("services-" + size.name)
			s.flows(120, 3)
			s.tick()
			s.check("services-rates-" + size.name)
			s.press("up", "up", "enter")
			s.check("endpoints-skewed-" + size.name)
			s.press("esc", "end", "enter")
			s.check("endpoints-" + size.name)
			s.press("f")
			for _, r := range s.cluster.Records() {
				if strings.HasPrefix(r.Service, "default/web") {
					s.stream.view.take(r)
				}
			}
			s.check("flows-" + size.name)
			s.press("end", "enter")
			s.check("story-" + size.name)
			s.press("pgdown", "down")
			s.check("story-down-" + size.name)
			s.press("?")
			s.check("help-" + size.name)
		})
	}
}

func TestColors(t *testing.T) {
	s := newScreen(t, 80, 24)
	s.options.Style.Color = true
	s.check("services-color")
	s.press("up", "up", "enter")
	s.check("endpoints-color")
}

// TestSortAndFilter: the cursor stays with its service.
func TestSortAndFilter(t *testing.T) {
	s := newScreen(t, 80, 24)
	s.flows(120, 3)
	s.tick()
	on := func(want string) {
		t.Helper()
		for line := range strings.SplitSeq(s.text(), "\n") {
			if rest, ok := strings.CutPrefix(line, "> "); ok {
				if got := strings.Fields(rest)[0]; got != want {
					t.Errorf("the cursor is on %s, want %s", got, want)
				}
				return
			}
		}
		t.Errorf("no cursor:\n%s", s.text())
	}
	order := func(want ...string) {
		t.Helper()
		c := s.page().content(s.Model, s.page())
		var got []string
		for _, r := range c.rows {
			got = append(got, strings.Fields(r.text)[0])
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("order %q, want %q", got, want)
		}
	}
	on("default/web:http") // the busiest
	order("default/nobody-home", "default/skewed", "default/sticky", "default/web:http")
	s.press("up", "up")
	on("default/skewed")
	s.press("s")
	on("default/skewed")
	order("default/web:http", "default/skewed", "default/nobody-home", "default/sticky")
	s.press("s") // total
	order("default/web:http", "default/skewed", "default/sticky", "default/nobody-home")
	s.press("s") // trouble
	order("default/nobody-home", "default/web:http", "default/skewed", "default/sticky")
	s.press("/", "WEBX", "backspace")
	order("default/web:http")
	on("default/web:http")
	s.check("filter")
	s.press("enter", "s")
	order("default/web:http")
	s.press("/", "nothing")
	s.check("filter-nothing")
	s.press("esc")
	order("default/nobody-home", "default/skewed", "default/sticky", "default/web:http")
	on("default/skewed")
}

// TestTrouble: a lost connection is shown, with what was known before, and gone when it is back.
func TestTrouble(t *testing.T) {
	s := newScreen(t, 80, 24)
	s.cluster.Fail(errors.New("dial tcp 127.0.0.1:10253: connect: connection refused"))
	s.tick()
	s.tick()
	s.check("trouble")
	s.cluster.Fail(nil)
	s.tick()
	if got := s.text(); strings.Contains(got, "refused:") {
		t.Errorf("still in trouble:\n%s", got)
	}
}

// TestNeverConnected: there is something to see without any answer, too.
func TestNeverConnected(t *testing.T) {
	s := &screen{t: t, cluster: observetest.NewCluster(), now: observetest.Now}
	s.Model = New(t.Context(), s.cluster, Options{Zone: time.UTC, Now: func() time.Time { return s.now }})
	s.check("waiting")
	s.cluster.Fail(errors.New("connection refused"))
	s.do(s.fetch())
	s.check("no-answer")
	s.press("enter", "f", "j", "G", "s", "/x", "enter") // nothing to do it to
}

// TestPause: nothing changes, until it goes on.
func TestPause(t *testing.T) {
	s := newScreen(t, 80, 24)
	s.press("p")
	before := s.text()
	s.flows(120, 3)
	s.tick()
	if after := s.text(); after != before || !strings.Contains(after, "paused") {
		t.Errorf("paused, but\n%s\nbecame\n%s", before, after)
	}
	s.press("p")
	if after := s.text(); !strings.Contains(after, "1360") {
		t.Errorf("not gone on:\n%s", after)
	}
}

// TestRestartedDaemon: counters that begin anew are no rate.
func TestRestartedDaemon(t *testing.T) {
	s := newScreen(t, 80, 24)
	s.cluster.Update(func(all *observe.Services, _ []observe.Stats) { all.Services[3].Flows.Total = 1 })
	s.tick()
	if rate, ok := s.rate("default/web:http TCP IPv4"); ok {
		t.Errorf("rate %v", rate)
	}
}

// TestScrolling: the cursor is always in sight, and the wheel moves it.
func TestScrolling(t *testing.T) {
	s := newScreen(t, 60, 15)
	s.cluster.Update(func(all *observe.Services, _ []observe.Stats) {
		one := all.Services[0]
		for i := range 50 {
			one.Service = "default/s" + string(rune('A'+i))
			all.Services = append(all.Services, one)
		}
	})
	s.tick()
	sees := func(want string) {
		t.Helper()
		if got := s.text(); !strings.Contains(got, "\n> "+want) {
			t.Errorf("no cursor on %s:\n%s", want, got)
		}
	}
	s.press("G")
	sees("default/sr")
	s.check("scrolled")
	s.press("k")
	sees("default/sq")
	s.send(tea.MouseWheelMsg{Button: tea.MouseWheelUp})
	sees("default/sn")
	s.press("g")
	sees("default/nobody-home")
	s.send(tea.WindowSizeMsg{Width: 60, Height: 5})
	s.press("down", "down")
	sees("default/sticky")
}

// TestAnySize: no size of a terminal is too small.
func TestAnySize(t *testing.T) {
	s := newScreen(t, 80, 24)
	walk := func() {
		for width := 0; width < 70; width += 3 {
			for height := 1; height < 16; height++ {
				s.send(tea.WindowSizeMsg{Width: width, Height: height})
				if got := strings.Count(s.text(), "\n") + 1; got != height {
					t.Fatalf("%dx%d: %d lines", width, height, got)
				}
			}
		}
		s.send(tea.WindowSizeMsg{Width: 80, Height: 24})
	}
	walk()
	s.press("end", "enter")
	walk()
	s.press("f")
	s.stream.view.take(s.cluster.Records()[0])
	walk()
	s.press("enter")
	walk()
}

// TestNoSuchFlow: a forgotten flow is reported as such.
func TestNoSuchFlow(t *testing.T) {
	s := newScreen(t, 80, 24)
	s.do(s.open(&storyView{id: "gone"}))
	if got := s.text(); !strings.Contains(got, `there is no flow "gone"`) {
		t.Errorf("got\n%s", got)
	}
}

func TestQuit(t *testing.T) {
	for _, keys := range [][]string{{"q"}, {"?", "q"}, {"enter", "q"}} {
		s := newScreen(t, 80, 24)
		s.press(keys[:len(keys)-1]...)
		_, cmd := s.Update(typed('q'))
		if cmd == nil {
			t.Errorf("%q does not quit", keys)
		} else if _, ok := cmd().(tea.QuitMsg); !ok {
			t.Errorf("%q does not quit", keys)
		}
	}
	s := newScreen(t, 80, 24)
	s.press("/", "q")
	if s.page().filter != "q" {
		t.Errorf("filter %q, want q", s.page().filter)
	}
}

func TestFitInWords(t *testing.T) {
	s := newScreen(t, 80, 24)
	two := []observe.Endpoint{{Expected: 0.5}, {Expected: 0.5}}
	tests := []struct {
		fit  *observe.Fit
		want string
	}{
		{nil, "No random selections yet"},
		{&observe.Fit{Draws: 1, DegreesOfFreedom: 0}, "1 random selection since 00:00:00: only one endpoint."},
		{&observe.Fit{Draws: 9, DegreesOfFreedom: 1, PValue: 0.001}, "9 random selections since 00:00:00: too few to test"},
		{&observe.Fit{Draws: 10, DegreesOfFreedom: 1, ChiSquare: 3.6, PValue: 0.0578}, "10 random selections since 00:00:00, consistent with equal probabilities: chi-square 3.6, degrees of freedom 1, p 0.058."},
		{&observe.Fit{Draws: 10, DegreesOfFreedom: 1, ChiSquare: 10, PValue: 0.00157}, "10 random selections since 00:00:00, not consistent with equal probabilities: chi-square 10, degrees of freedom 1, p 0.0016."},
	}
	for _, tt := range tests {
		if got := s.fit(&observe.Service{Fit: tt.fit, Endpoints: two}).text; !strings.HasPrefix(got, tt.want) {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}
