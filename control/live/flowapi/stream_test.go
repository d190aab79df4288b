package flowapi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi/flowapitest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

func record(id string) observe.Item {
	return observe.Item{Record: &flow.Record{Version: 1, ID: id, Service: "<web>"}}
}

func missed(n uint64) observe.Item {
	return observe.Item{Missed: &observe.Missed{Node: "node-a", Missed: n, Why: observe.MissedSlow}}
}

func joined(id, other string) observe.Item {
	return observe.Item{Joined: &observe.Joined{Flow: id, Other: record(other).Record}}
}

var (
	joinedText = `{"version":1,"event":"joined","flow":"1","other":` + recordText("3") + `}`
	joinedData = `{"flow":"1","other":` + recordText("3") + `}`
)

// recordText is what record looks like on the wire.
func recordText(id string) string {
	return `{"version":1,"id":"` + id + `","verdict":"","reason":"","protocol":"","source":"","destination":"","local":false,"service":"<web>","endpoint":"","candidates":null,"excluded":null,"masquerade":false,"masqueradeReason":"","generation":0}`
}

const (
	missedText     = `{"version":1,"event":"missed","node":"node-a","missed":5,"why":"slow-reader"}`
	missedData     = `{"node":"node-a","missed":5,"why":"slow-reader"}`
	linesWanted    = "Accept: application/x-ndjson"
	eventsWanted   = "Accept: text/plain, text/event-stream;q=0.9"
	anythingWanted = "Accept: */*"
)

func TestList(t *testing.T) {
	w := newWorld(t, Config{}, longTiming)
	w.Fake.List = []observe.Item{record("1"), missed(5), record("2"), joined("1", "3")}
	for accept, want := range map[string][2]string{
		linesWanted:    {"application/x-ndjson", recordText("1") + "\n" + missedText + "\n" + recordText("2") + "\n" + joinedText + "\n"},
		anythingWanted: {"application/x-ndjson", recordText("1") + "\n" + missedText + "\n" + recordText("2") + "\n" + joinedText + "\n"},
		eventsWanted: {"text/event-stream", "event: flow\ndata: " + recordText("1") + "\n\n" +
			"event: missed\ndata: " + missedData + "\n\n" + "event: flow\ndata: " + recordText("2") + "\n\n" + "event: joined\ndata: " + joinedData + "\n\n"},
	} {
		r := w.Do(t, "GET", "/v1/flows?service=web", "", accept)
		if body := flowapitest.Content(t, r); r.StatusCode != 200 || r.Header.Get("Content-Type") != want[0] || body != want[1] {
			t.Errorf("%s: %d %s\n%s, want\n%s", accept, r.StatusCode, r.Header.Get("Content-Type"), body, want[1])
		}
		r = w.Do(t, "HEAD", "/v1/flows?follow", "", accept)
		if r.StatusCode != 200 || r.Header.Get("Content-Type") != want[0] {
			t.Errorf("HEAD with %s: %d %s", accept, r.StatusCode, r.Header.Get("Content-Type"))
		}
	}
	w.Fake.List = nil
	r := w.Do(t, "GET", "/v1/flows", "")
	if body := flowapitest.Content(t, r); r.StatusCode != 200 || r.Header.Get("Content-Type") != "application/x-ndjson" || body != "" {
		t.Errorf("no flows: %d %s", r.StatusCode, body)
	}
	if requests := w.Fake.Requests(); requests[0] != (observe.FlowQuery{Service: "web"}) {
		t.Errorf("requests %+v", requests)
	}
}

// TestFollow: each item is there before the next one comes.
// TestPassesOn: a record that another server encoded is not encoded again.
func TestPassesOn(t *testing.T) {
	w := newWorld(t, Config{}, longTiming)
	i := record("1")
	i.Encoded = []byte(`{"version":1,"id":"1","new":[1]}`)
	w.Fake.List = []observe.Item{i, i}
	line, event := string(i.Encoded)+"\n", "event: flow\ndata: "+string(i.Encoded)+"\n\n"
	for accept, want := range map[string]string{linesWanted: line + line, eventsWanted: event + event} {
		if body := flowapitest.Content(t, w.Do(t, "GET", "/v1/flows", "", accept)); body != want {
			t.Errorf("%s: %s, want %s", accept, body, want)
		}
	}
}

func TestFollow(t *testing.T) {
	for accept, texts := range map[string][]string{
		linesWanted:  {recordText("1") + "\n", missedText + "\n"},
		eventsWanted: {"event: flow\ndata: " + recordText("1") + "\n\n", "event: missed\ndata: " + missedData + "\n\n"},
	} {
		w := newWorld(t, Config{}, longTiming)
		r := w.Do(t, "GET", "/v1/flows?follow", "", accept) // its head comes without any flow
		skip := map[string]string{linesWanted: "\n", eventsWanted: ":\n\n"}[accept]
		for i, want := range append([]string{skip}, texts...) {
			if i > 0 {
				w.Fake.Publish([]observe.Item{record("1"), missed(5)}[i-1])
			}
			b := make([]byte, len(want))
			if _, err := io.ReadFull(r.Body, b); err != nil || string(b) != want {
				t.Fatalf("%q, %v, want %q", b, err, want)
			}
		}
		r.Body.Close()
		if !w.Fake.AwaitReaders(t.Context(), 0) {
			t.Error("the reader went, and the observer did not notice")
		}
	}
}

// TestKeepAlive: a stream without flows gives signs of life.
func TestKeepAlive(t *testing.T) {
	short := longTiming
	short.KeepAlive = time.Millisecond
	w := newWorld(t, Config{}, short)
	for accept, want := range map[string]string{linesWanted: "\n\n\n\n", eventsWanted: ":\n\n:\n\n:\n\n"} {
		b := make([]byte, len(want))
		r := w.Do(t, "GET", "/v1/flows?follow=true", "", accept)
		if _, err := io.ReadFull(r.Body, b); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v, want %q", accept, b, err, want)
		}
		r.Body.Close()
	}
}

// TestCutOff: what ends before its time does not look like the end.
func TestCutOff(t *testing.T) {
	w := newWorld(t, Config{}, longTiming)
	r := w.Do(t, "GET", "/v1/flows?follow", "")
	if !w.Fake.AwaitReaders(t.Context(), 1) {
		t.Fatal("no reader follows")
	}
	w.Fake.Publish(record("1"))
	w.Fake.Break(errors.New("the journal is lost"))
	if b, err := io.ReadAll(r.Body); !errors.Is(err, io.ErrUnexpectedEOF) || strings.TrimSpace(string(b)) != recordText("1") {
		t.Errorf("%q, error %v, want an unexpected end", b, err)
	}
	w.Close()
	if !strings.Contains(w.Log.String(), "the journal is lost") {
		t.Errorf("not logged: %s", w.Log)
	}
}

// TestClientsFault: a fault that only the observer finds is answered with an error, with a
// status, following or not.
func TestClientsFault(t *testing.T) {
	slow := longTiming
	slow.FirstSign = longTimeout
	w := newWorld(t, Config{}, slow)
	w.Fake.Fail(&observe.Error{Status: 400, Field: "node", Message: "there is no such node"})
	for _, path := range []string{"/v1/flows", "/v1/flows?follow"} {
		r := w.Do(t, "GET", path, "", eventsWanted)
		if body := flowapitest.Content(t, r); r.StatusCode != 400 || r.Header.Get("Content-Type") != "application/json" || body != `{"status":400,"field":"node","error":"there is no such node"}`+"\n" {
			t.Errorf("%s: %d %s", path, r.StatusCode, body)
		}
	}
}

func TestMaxStreams(t *testing.T) {
	w := newWorld(t, Config{MaxStreams: 2}, longTiming)
	first := w.Do(t, "GET", "/v1/flows?follow", "")
	w.Do(t, "GET", "/v1/flows?follow", "")
	r := w.Do(t, "GET", "/v1/flows?follow", "")
	const want = `{"status":429,"error":"too many streams of flows: 127.0.0.1 has 2, the limit for one client: close one, or try again later"}` + "\n"
	if body := flowapitest.Content(t, r); r.StatusCode != 429 || r.Header.Get("Retry-After") == "" || body != want {
		t.Errorf("%d %s", r.StatusCode, body)
	}
	if r := w.Do(t, "GET", "/v1/stats", ""); r.StatusCode != 200 {
		t.Errorf("other questions: %d", r.StatusCode)
	}
	// Room is there again when the handler of the one that ended returns, a little later.
	first.Body.Close()
	for r.StatusCode == 429 {
		r = w.Do(t, "GET", "/v1/flows?follow", "")
	}
	if r.StatusCode != 200 {
		t.Errorf("after one ended: %d", r.StatusCode)
	}
}

// flood is an observer of flows without end.
type flood struct {
	*observetest.Fake
	ended chan error
}

func (f *flood) Flows(ctx context.Context, _ observe.FlowQuery, each func(observe.Item) error) error {
	for {
		if err := each(record(strings.Repeat("x", 1<<12))); err != nil {
			f.ended <- err
			return err
		}
	}
}

// TestSlowReader: a reader that takes nothing is cut off, and the observer is let go.
func TestSlowReader(t *testing.T) {
	short := longTiming
	short.Write = 20 * time.Millisecond
	f := &flood{observetest.New("node-a"), make(chan error, 1)}
	w := newWorld(t, Config{}, short)
	w.Server.Config.Handler.(*API).Observer = f
	for _, path := range []string{"/v1/flows?follow", "/v1/flows"} {
		r := w.Do(t, "GET", path, "")
		select {
		case err := <-f.ended:
			if err == nil {
				t.Error("no error")
			}
		case <-t.Context().Done():
			t.Fatal("still written")
		}
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			t.Errorf("%s: cut off, it looks like the end", path)
		}
	}
}

// TestSlowBody: who does not send what it announced is not waited for.
func TestSlowBody(t *testing.T) {
	short := longTiming
	short.Read = time.Millisecond
	w := newWorld(t, Config{}, short)
	body, writer := io.Pipe()
	defer writer.Close()
	r, err := http.NewRequestWithContext(t.Context(), "POST", w.URL+"/v1/explain", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := w.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text := flowapitest.Content(t, answer); answer.StatusCode != 400 || !strings.Contains(text, "cannot read the body") {
		t.Errorf("%d %s", answer.StatusCode, text)
	}
}

// TestFlushes: what waits together goes out together, and nothing waits for more.
func TestFlushes(t *testing.T) {
	w := newWorld(t, Config{}, longTiming)
	r := w.Do(t, "GET", "/v1/flows?follow", "")
	lines := bufio.NewScanner(r.Body)
	for n := range 1000 {
		w.Fake.Publish(record("1"))
		if n == 0 { // the sign of life
			lines.Scan()
		}
		if !lines.Scan() || lines.Text() != recordText("1") {
			t.Fatalf("after %d: %q, %v", n, lines.Text(), lines.Err())
		}
	}
}
