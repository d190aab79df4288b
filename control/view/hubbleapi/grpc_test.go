package hubbleapi

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/hubble"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
)

// post sends bytes as a call of a method.
func post(t *testing.T, address, method string, body []byte) (status, message string) {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+method, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/grpc+proto")
	answer, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.ReadAll(answer.Body); err != nil { // the trailer is behind it
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != r.Header.Get("Content-Type") {
		t.Errorf("%s: %s, %v; want 200 and the type of the request, whatever the call's status", method, answer.Status, answer.Header)
	}
	if message, err = url.PathUnescape(answer.Trailer.Get("Grpc-Message")); err != nil {
		t.Error(err)
	}
	return answer.Trailer.Get("Grpc-Status"), message
}

// encoded gives a message as text.
func encoded(t *testing.T, m proto.Message) string {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// framed puts a message behind its length.
func framed(message string) []byte {
	return append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
}

func TestCalls(t *testing.T) {
	const flows = "/observer.Observer/GetFlows"
	address := serve(t, newObserver(t))
	for name, c := range map[string]struct {
		method          string
		body            []byte
		status, message string
	}{
		"good":            {flows, framed("\x08\x01"), "0", ""},
		"default request": {flows, framed(""), "0", ""},
		"unknown fields":  {flows, framed("\xba\x3e\x00\x60\x01\x69\x00\x00\x00\x00\x00\x00\x00\x00"), "0", ""},
		"empty body":      {flows, nil, "13", "cardinality violation: received no request message from non-client-streaming RPC"},
		"half a head":     {flows, []byte{0, 0}, "13", "unexpected EOF"},
		"cut off":         {flows, []byte{0, 0, 0, 0, 9, 8}, "13", "unexpected EOF"},
		"compressed":      {flows, []byte{1, 0, 0, 0, 0}, "13", "grpc: compressed flag set with identity or empty encoding"},
		"huge":            {flows, []byte{0, 0xff, 0, 0, 0}, "8", "grpc: received message larger than max (4278190080 vs. 1048576)"},
		"no message":      {flows, framed("\x08"), "13", "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data"},
		"no filter":       {flows, framed("\x32\x01\x08"), "13", "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data"},
		"year 10000":      {flows, framed(encoded(t, &hubblepb.GetFlowsRequest{Since: &timestamppb.Timestamp{Seconds: 253402300800}})), "3", "time 253402300800.000000000: want a year from 1 to 9999"},
		"first, follow":   {flows, framed("\x18\x01\x48\x01"), "3", "first and follow cannot be used together"},
		"bad pattern":     {flows, framed("\x32\x04\xc2\x01\x01["), "3", "filter node_name: \"[\": want a name, where * matches anything"},
		"no such method":  {"/observer.Observer/GetAll", framed(""), "12", "not supported by nfqproxy: method observer.Observer/GetAll"},
		"no such service": {"/peer.Peer/Notify", framed(""), "12", "not supported by nfqproxy: method peer.Peer/Notify"},
	} {
		status, message := post(t, address, c.method, c.body)
		message = strings.ReplaceAll(message, "\u00a0", " ") // protobuf's errors have either, by the build
		if status != c.status || message != c.message {
			t.Errorf("%s: %s %s\nwant %s %s", name, status, message, c.status, c.message)
		}
	}
}

// TestNotGRPC: the answer to another protocol names this one.
func TestNotGRPC(t *testing.T) {
	address := serve(t, newObserver(t))
	answer, err := http.Get("http://" + address + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if want := "This is Hubble's gRPC API: use hubble observe --server " + address + "\n"; err != nil || answer.StatusCode != http.StatusUnsupportedMediaType || string(body) != want {
		t.Errorf("%s: %s, %v; want 415: %s", answer.Status, body, err, want)
	}
}

// TestTransfersAreBounded: each transfer has a deadline, waiting for flows has none.
func TestTransfersAreBounded(t *testing.T) {
	w := &recorder{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequest(http.MethodPost, "/observer.Observer/GetFlows", bytes.NewReader(framed("\x08\x03")))
	r.ProtoMajor = 2
	r.Header.Set("Content-Type", "application/grpc")
	Handler(Config{Observer: newObserver(t), Limits: new(limit.Set), Log: slog.New(slog.DiscardHandler)}).ServeHTTP(w, r)
	if status := w.Result().Trailer.Get("Grpc-Status"); status != "0" {
		t.Errorf("status %s: %v", status, w.Result().Trailer)
	}
	if w.writes < 3 || w.late > 0 || !w.writeDeadline.IsZero() || w.readDeadline.IsZero() {
		t.Errorf("%d writes, %d without a deadline; deadlines after the last: write %v, read %v", w.writes, w.late, w.writeDeadline, w.readDeadline)
	}
}

// TestEndlessRequest: what follows the request is not read.
func TestEndlessRequest(t *testing.T) {
	body := new(zeros)
	r := httptest.NewRequest(http.MethodPost, "/observer.Observer/GetFlows", body)
	r.ProtoMajor = 2
	r.Header.Set("Content-Type", "application/grpc")
	Handler(Config{Observer: newObserver(t), Limits: new(limit.Set), Log: slog.New(slog.DiscardHandler)}).ServeHTTP(httptest.NewRecorder(), r)
	if most := messageHead + maxRequest + 1; body.read == 0 || body.read > most { // the last one shows that there are more
		t.Errorf("%d bytes are read, want %d at most", body.read, most)
	}
}

// recorder is a response with deadlines.
type recorder struct {
	*httptest.ResponseRecorder
	writeDeadline, readDeadline time.Time
	writes, late                int // late: without a deadline
}

func (r *recorder) SetWriteDeadline(t time.Time) error { r.writeDeadline = t; return nil }
func (r *recorder) SetReadDeadline(t time.Time) error  { r.readDeadline = t; return nil }

func (r *recorder) Write(b []byte) (int, error) {
	r.writes++
	if r.writeDeadline.IsZero() {
		r.late++
	}
	return r.ResponseRecorder.Write(b)
}

// zeros are empty messages without end. Closing does not end them.
type zeros struct{ read int }

func (z *zeros) Read(p []byte) (int, error) {
	clear(p)
	z.read += len(p)
	return len(p), nil
}

// TestPanics: a bug ends the call and not the program.
func TestPanics(t *testing.T) {
	address := serve(t, buggy{})
	for range 2 {
		for _, method := range []string{"GetFlows", "ServerStatus"} {
			status, message := post(t, address, "/observer.Observer/"+method, framed(""))
			if status != "13" || message != "internal error: bug" {
				t.Errorf("%s: %s %s, want 13 internal error: bug", method, status, message)
			}
		}
	}
}

type buggy struct{ observe.Observer }

func (buggy) Flows(context.Context, observe.FlowQuery, func(observe.Item) error) error { panic("bug") }
func (buggy) Stats(context.Context) ([]observe.Stats, error)                           { panic("bug") }

// FuzzFlowsRequest: every request is answered or refused, and refused as the client's fault.
func FuzzFlowsRequest(f *testing.F) {
	var flows []*hubblepb.Flow
	for _, i := range newObserver(f).items {
		list, err := hubble.Flows(i.Record)
		if err != nil {
			f.Fatal(err)
		}
		for _, r := range list {
			flows = append(flows, r.GetFlow())
		}
	}
	f.Add([]byte("\x08\x14\x18\x01\x2a\x02\x28\x02\x32\x06\x0a\x0410.1\x3a\x02\x08\x01"))
	f.Add([]byte("\x32\x08\x32\x02\x08\x01\xba\x01\x02\x10\x01\x32\x05\xc2\x01\x02*a\x32\x03\x2a\x01\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(hubblepb.GetFlowsRequest)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		r, err := parseFlowsRequest(m)
		if err != nil {
			if c := status.Code(err); c != codes.InvalidArgument && c != codes.Unimplemented || status.Convert(err).Message() == "" {
				t.Fatal(err)
			}
			return
		}
		for _, flow := range flows {
			r.wants(flow)
		}
	})
}
