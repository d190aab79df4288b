package pastedrules

import (
	"encoding/json"
	"fmt"
	"html"
	"strings"
	"testing"
)

// TestUncoverRuleset: a ruleset is the same behind what mails, pages, logs and editors do to it.
func TestUncoverRuleset(t *testing.T) {
	const ruleset = "table ip kube-proxy {\n" +
		"\tcomment \"rules for kube-proxy\"\n\n" +
		"\tmap service-ips {\n\t\ttype ipv4_addr . inet_proto . inet_service : verdict\n\t\telements = { 10.96.0.20 . tcp . 80 : goto service-ULMVA6XW-default/web/tcp/ }\n\t}\n" +
		"\tchain c {\n\t\tct state & (established | related) != 0 accept comment \"a -> b\"\n\t}\n}\n"
	prefix := func(of func(number int) string) string {
		var b strings.Builder
		n := 0
		for line := range strings.Lines(ruleset) {
			n++
			b.WriteString(of(n) + line)
		}
		return b.String()
	}
	quoted, err := json.Marshal(map[string]string{"stdout": ruleset})
	if err != nil {
		t.Fatal(err)
	}
	words := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	for name, text := range map[string]string{
		"plain":       ruleset,
		"mail":        prefix(func(int) string { return "> " }),
		"numbers":     prefix(func(n int) string { return fmt.Sprintf("%6d\t", n) }),
		"journal":     prefix(func(n int) string { return fmt.Sprintf("Jan 02 10:00:%02d node-a dump[123]: ", n) }),
		"diff":        prefix(func(int) string { return "+" }),
		"kubectl":     prefix(func(int) string { return "[pod/kube-proxy-x7k2p/kube-proxy] " }),
		"page":        "<pre>" + html.EscapeString(ruleset) + "</pre>",
		"quotes":      strings.Replace(strings.Replace(ruleset, `"rules`, "“rules", 1), `proxy"`, "proxy”", 1),
		"nbsp":        strings.ReplaceAll(ruleset, " ", "\u00a0"),
		"colours":     "\x1b[1m" + strings.Replace(ruleset, "chain", "\x1b[32mchain\x1b[0m", 1),
		"pager":       strings.Replace(ruleset, "\tchain", "--More--(40%)\n\tchain", 1) + "(END)",
		"BOM":         "\ufeff" + ruleset,
		"CRLF, UTF-8": strings.ReplaceAll(ruleset, "\n", "\r\n"),
		"UTF-16":      wide(ruleset),
		"JSON":        string(quoted),
		"prose":       "Here is the dump of the node:\n~~~\n" + ruleset + "~~~\nThank you.\n",
	} {
		got, ok := UncoverRuleset(text)
		got = strings.ReplaceAll(got, "</pre>", "")
		if !ok || words(got) != words(ruleset) {
			t.Errorf("%s: %v\n%s", name, ok, got)
		}
		if name != "JSON" && name != "pager" && name != "prose" && strings.Count(got, "\n") != strings.Count(ruleset, "\n") {
			t.Errorf("%s: lines have other numbers\n%s", name, got)
		}
	}
	for name, text := range map[string]string{
		"rules of iptables first": "> *filter\n> :INPUT ACCEPT [0:0]\n> COMMIT\n" + ruleset,
		"rules of iptables":       "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -m comment --comment \"table ip x {\" -j ACCEPT\nCOMMIT\n",
		"nothing":                 "", "prose alone": "The table ip is not there.\n",
	} {
		if got, ok := UncoverRuleset(text); ok {
			t.Errorf("%s: %q", name, got)
		}
	}
}
