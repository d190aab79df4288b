package text_test

import (
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

// TestProblemOnce: the note that counts the endpoints with a problem does not repeat it; its remedy is that of some endpoints.
func TestProblemOnce(t *testing.T) {
	problem := diagnose.Finding{Code: diagnose.NoListener, Text: "nothing listens on port 80", Do: "start the program"}
	other := diagnose.Finding{Code: diagnose.NoListener, Text: "another note", Do: "something else"}
	counted := diagnose.Finding{Code: diagnose.NoListener, Text: "1 of 2 endpoints will not answer: " + problem.Text, Do: "narrow the selector"}
	a := &diagnose.Answer{Endpoints: []diagnose.Endpoint{{Problem: &problem}, {}}, Notes: []diagnose.Finding{counted, other}}
	got := text.Style{}.Answer(a, text.WalkNone)
	if strings.Count(got, problem.Text) != 1 || strings.Contains(got, problem.Do) || !strings.Contains(got, counted.Do) || !strings.Contains(got, other.Text) {
		t.Errorf("the answer is\n%s", got)
	}
	if len(a.Notes) != 2 || a.Notes[0].Text != counted.Text {
		t.Errorf("the notes of the answer are changed: %+v", a.Notes)
	}
}
