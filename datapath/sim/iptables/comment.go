package iptables

// Comment is "-m comment": always true.
type Comment struct{ Text string }

var commentModule = &module{
	name:   "comment",
	shapes: map[string]shape{"--comment": one},
	kernel: []revision[Match]{{0, 256, func(r raw) (Match, bool) { return Comment{r.text(0, 256)}, true }}},
	build: func(s *section) Match {
		o := s.oneOf("--comment")
		if len(o.values) == 0 {
			return Comment{}
		}
		return Comment{value(s, o.values[0], shortText(255))} // XT_MAX_COMMENT_LEN
	},
}

// Module is "comment".
func (Comment) Module() string   { return "comment" }
func (m Comment) write(w *words) { w.text("--comment", m.Text) }

func (Comment) test(*Context) Truth { return True }
