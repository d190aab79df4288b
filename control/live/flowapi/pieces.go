package flowapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"
)

// pieceSize is how much of a long response is buffered before it is written.
const pieceSize = 32 << 10

// pieces writes one JSON response piece by piece. The head is sent with the first: before, an
// error response is still possible.
type pieces struct {
	*API
	w     http.ResponseWriter
	until time.Time // for the whole response: a slow client releases its share then
	b     bytes.Buffer
	began bool
}

func (s *API) pieces(w http.ResponseWriter) *pieces {
	return &pieces{API: s, w: w, until: time.Now().Add(s.Timing.Answer)}
}

// text adds JSON as it is.
func (p *pieces) text(json ...string) {
	for _, t := range json {
		p.b.WriteString(t)
	}
}

// value adds a value, and writes if there is enough for a piece.
func (p *pieces) value(v any) error {
	e := json.NewEncoder(&p.b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	p.b.Truncate(p.b.Len() - 1) // the line's end
	if p.b.Len() < pieceSize {
		return nil
	}
	return p.write()
}

// write writes what there is.
func (p *pieces) write() error {
	if !p.began {
		p.began = true
		p.w.Header().Set("Content-Type", "application/json")
		p.w.WriteHeader(http.StatusOK)
	}
	err := writeUntil(p.w, p.b.Bytes(), p.Timing.Write, p.until)
	p.b.Reset()
	if p.b.Cap() > 4*pieceSize { // one value was long
		p.b = bytes.Buffer{}
	}
	return err
}

// writeUntil writes in pieces, each of which may take timeout, and the whole until then.
// Recorders of tests have no deadlines.
func writeUntil(w http.ResponseWriter, b []byte, timeout time.Duration, until time.Time) (err error) {
	c := http.NewResponseController(w)
	for len(b) > 0 && err == nil {
		deadline := time.Now().Add(timeout)
		if until.Before(deadline) {
			deadline = until
		}
		_ = c.SetWriteDeadline(deadline)
		var n int
		n, err = w.Write(b[:min(len(b), pieceSize)])
		b = b[n:]
	}
	return err
}
