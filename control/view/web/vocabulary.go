package web

import (
	"bytes"
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
)

// codesModule is a module of JavaScript with the codes in records and their descriptions: the page
// has every state, verdict and reason of the program that serves it.
func codesModule() []byte {
	v := vocabulary.Words()
	var b bytes.Buffer
	object := func(name, about string) func() {
		fmt.Fprintf(&b, "/** %s %s */\nexport const %[1]s = {\n", name, about)
		return func() { b.WriteString("};\n\n") }
	}
	end := object("events", "are the states and the other events; ended marks final states.")
	for _, e := range v.Events {
		fmt.Fprintf(&b, "  %q: { tone: %q, ended: %t, text: %q },\n", e.Code, e.Tone, e.Ended, e.Text)
	}
	end()
	end = object("verdicts", "have the state of a flow right after the verdict; '' where it is not known.")
	for _, d := range v.Verdicts {
		fmt.Fprintf(&b, "  %q: { state: %q, text: %q },\n", d.Code, d.State, d.Text)
	}
	end()
	for _, list := range []struct {
		name, about string
		words       vocabulary.List
	}{
		{"reasons", "are the reasons of verdicts.", v.Reasons},
		{"exclusions", "are why endpoints are excluded.", v.Exclusions},
		{"masquerades", "are why sources are masqueraded.", v.Masquerades},
		{"entries", "are the address types of a service.", v.Entries},
		{"branches", "are why a set of endpoints was considered.", v.Branches},
		{"outcomes", "are the outcomes for conntrack entries.", v.Outcomes},
		{"holds", "are how holds ended.", v.Holds},
		{"gaps", "are why a node on a path has no record.", v.Gaps},
	} {
		end := object(list.name, list.about)
		for _, w := range list.words {
			fmt.Fprintf(&b, "  %q: %q,\n", w.Code, w.Text)
		}
		end()
	}
	return b.Bytes()
}
