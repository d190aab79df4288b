package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

func TestQuestions(t *testing.T) {
	const good = `{"protocol":"tcp","source":"a","destination":"b","local":true,"inInterface":"eth0"}`
	tests := []struct {
		name, in string
		n        int    // questions
		err      string // want, if not empty
	}{
		{"none", "", 0, ""},
		{"one, no newline", good, 1, ""},
		{"empty lines and CRLF", "\n" + good + "\r\n\n  \n" + good + "\n", 2, ""},
		{"unknown field", good + "\n\n" + `{"src":"a"}`, 1, `line 3: want an object such as {"protocol":"tcp","source":"10.244.1.9","destination":"10.96.0.1:443"}: unknown field "src"`},
		{"no JSON", "tcp a b", 0, "line 1: want an object such as"},
		{"an array", "[1]", 0, "this is a JSON array"},
		{"a wrong type", `{"local":"yes"}`, 0, "local is a bool, not a string"},
		{"cut off", `{"protocol":`, 0, "the line ends inside the object"},
		{"two objects", good + good, 0, "one object per line"},
		{"trailing bracket", good + "}", 0, "one object per line"},
		{"too long", good + "\n" + strings.Repeat(" ", maxLineSize+1), 1, "line 2: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := 0
			err := readQuestions(strings.NewReader(tt.in), func(q flow.Question) error {
				if want := (flow.Question{Protocol: "tcp", Source: "a", Destination: "b", Local: true, InInterface: "eth0"}); q != want {
					t.Errorf("question %+v, want %+v", q, want)
				}
				n++
				return nil
			})
			if n != tt.n {
				t.Errorf("%d questions, want %d", n, tt.n)
			}
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
	boom := errors.New("boom")
	n := 0
	err := readQuestions(strings.NewReader(good+"\n"+good), func(flow.Question) error { n++; return boom })
	if !errors.Is(err, boom) || n != 1 || err.Error() != "line 1: boom" {
		t.Errorf("error %v after %d questions", err, n)
	}
}
