package text

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/hubble"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// unbuffered is the part of a [Printer] that writes each record at once, and whose list has no end.
type unbuffered struct{}

func (unbuffered) Flush() error { return nil }
func (unbuffered) Close() error { return nil }

// jsonLines writes a record on each line.
type jsonLines struct {
	unbuffered
	w   io.Writer
	enc *json.Encoder
}

func newJSONLines(w io.Writer, _ string, _ Options) (Printer, error) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false) // "->" in rules is to stay readable
	return &jsonLines{w: w, enc: enc}, nil
}

func (p *jsonLines) Print(r *flow.Record) error { return p.enc.Encode(r) }

// jsonList writes one object with all records, each on a line.
type jsonList struct {
	jsonLines
	printed bool
}

func newJSON(w io.Writer, _ string, o Options) (Printer, error) {
	lines, err := newJSONLines(w, "", o)
	if err != nil || o.Follow {
		return lines, err
	}
	return &jsonList{jsonLines: *lines.(*jsonLines)}, nil
}

func (p *jsonList) Print(r *flow.Record) error {
	before := ","
	if !p.printed {
		before, p.printed = `{"flows":[`+"\n", true
	}
	if _, err := io.WriteString(p.w, before); err != nil {
		return err
	}
	return p.enc.Encode(r)
}

func (p *jsonList) Close() error {
	end := "]}\n"
	if !p.printed {
		end = `{"flows":[]}` + "\n"
	}
	_, err := io.WriteString(p.w, end)
	return err
}

// documents writes a YAML document for each record.
type documents struct {
	unbuffered
	w io.Writer
}

func newYAML(w io.Writer, _ string, _ Options) (Printer, error) { return documents{w: w}, nil }

func (p documents) Print(r *flow.Record) error {
	text, err := yaml.Marshal(r)
	if err == nil {
		_, err = fmt.Fprintf(p.w, "---\n%s", text)
	}
	return err
}

// names writes the ids, for other commands.
type names struct {
	unbuffered
	w io.Writer
}

func newNames(w io.Writer, _ string, o Options) (Printer, error) {
	if o.Walk.Shown() {
		return nil, errors.New("name: cannot be combined with --walk: remove one of them")
	}
	return names{w: w}, nil
}

func (p names) Print(r *flow.Record) error {
	_, err := fmt.Fprintln(p.w, r.ID)
	return err
}

// hubbleLines prints the flows as Cilium's Hubble does; see package hubble.
type hubbleLines struct {
	unbuffered
	encoder *hubble.Encoder
}

func newHubble(w io.Writer, _ string, _ Options) (Printer, error) {
	return hubbleLines{encoder: hubble.NewEncoder(w)}, nil
}

func (p hubbleLines) Print(r *flow.Record) error { return p.encoder.Encode(observe.Item{Record: r}) }

// PrintMissed implements [MissedPrinter].
func (p hubbleLines) PrintMissed(m *observe.Missed) error {
	return p.encoder.Encode(observe.Item{Missed: m})
}
