package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// maxLineSize is how long a line may be; a question has some hundred bytes.
const maxLineSize = 1 << 20

// readQuestions reads one question from each line that is not empty and calls answer with it. It ends
// at the first error, of a line or of answer; the error names the line.
func readQuestions(in io.Reader, answer func(flow.Question) error) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLineSize)
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		q, err := parseQuestion(line)
		if err == nil {
			err = answer(q)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	return nil
}

// parseQuestion reads one line. A misspelled field is an error: if it were ignored, the answer would be
// about another packet.
func parseQuestion(line []byte) (flow.Question, error) {
	var q flow.Question
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	err := d.Decode(&q)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = errors.New("extra text after the object: want one object per line")
		}
	}
	if err == nil {
		return q, nil
	}
	why := strings.TrimPrefix(err.Error(), "json: ")
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind) && kind.Field != "":
		why = fmt.Sprintf("%s is a %s, not a %s", kind.Field, kind.Type, kind.Value)
	case errors.As(err, &kind):
		why = "this is a JSON " + kind.Value
	case errors.Is(err, io.ErrUnexpectedEOF):
		why = "the line ends inside the object"
	}
	return flow.Question{}, fmt.Errorf(`want an object such as {"protocol":"tcp","source":"10.244.1.9","destination":"10.96.0.1:443"}: %s`, why)
}
