package iptables

// Comment is "-m comment": always true.
type Comment struct{ Text string }

var _ = addMatch(&module{
	name:    "comment",
	shapes:  map[string]shape{"--comment": one},
	phrases: map[string]phrase{"/*": commentPhrase},
	build: func(s *section) Match {
		// Without its text, too, it is always true.
		return Comment{optional(s, "--comment", keptText(255), "")} // XT_MAX_COMMENT_LEN
	},
})

func (Comment) module() string   { return "comment" }
func (m Comment) write(w *words) { w.text("--comment", m.Text) }

func (Comment) test(*Context) Truth { return True }

// commentPhrase reads up to "*/". A comment without an end means that the line was cut off.
func commentPhrase(w *wording, negated bool) bool {
	begin := w.at
	for !w.word("*/") {
		if _, ok := w.next(); !ok {
			w.load("comment")
			w.emit(false, "--comment")
			w.args = append(w.args, Token{Text: joined(w.words[begin:]), Quoted: true})
			w.notes["cut"] = "the line is cut off inside a comment: the conditions after it are missing"
			w.unknownName("the end of the line, which is cut off", false, Token{Text: "comment", Column: w.words[begin-1].Column})
			return !negated
		}
	}
	w.load("comment")
	w.emit(false, "--comment")
	w.args = append(w.args, Token{Text: joined(w.words[begin : w.at-1]), Quoted: true, Column: w.words[begin-1].Column})
	return !negated
}
