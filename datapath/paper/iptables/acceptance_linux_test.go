package iptables

import (
	commandline "flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

var variantsFlag = commandline.Int("kernel.variants", netnstest.Cases(250, 80), "how many changed rules TestKernelAcceptsVariants gives to each iptables-restore")

// oddValues are values of all kinds of options, at and behind their limits.
var oddValues = []string{
	"0", "1", "-1", "+1", "01", "0x10", "0X1f", "1.5", "255", "256", "65535", "65536", "65537", "4294967295", "4294967296", "18446744073709551615", "18446744073709551616",
	"1:2", "2:1", "1-2", "2-1", "1:", ":1", ":", "1,2", "1,", ",1", ",", "1/2", "0x1/0x2", "0/0", "/1", "1/", "1/0x100000000", `""`, "x", "all", "ALL", "none", "any", "ANY",
	"http", "HTTP", "ssh,http", "tcp", "TCP", "80:http", "10.0.0.1", "10.0.0.1/24", "10.0.0.1/33", "10.0.0.1/255.0.255.0", "10.0.0.1/0.0.0.255", "10.1", "0", "10.0.0.9-10.0.0.1",
	"10.0.0.1-10.0.0.9", "fd00::1", "fd00::1/129", "fd00::1/ffff::", "5/sec", "5/s", "5/second", "5/seconds", "10000/sec", "10001/sec", "20000/sec", "600000/min", "1/day", "1/week", "0/sec", "5/", "5kb/s", "1.5/sec",
	`" 1"`, `"1 "`, `"a b"`, `"a\\\"b"`, `"a\\\\b"`, "a'b", strings.Repeat("9", 30), strings.Repeat("y", 31), strings.Repeat("z", 300), "é", "*", "%d", "eth0", "eth+", "+", "e/0", "a-device-that-is-long",
}

// variants are the rules of a dump with one word changed, left out, negated or repeated.
func variants(d *Dump, random *rand.Rand) []example {
	var all []example
	add := func(table, chain string, args []Token) {
		texts := make([]string, 0, len(args)+1)
		texts = append(texts, chain)
		for _, a := range args {
			texts = append(texts, a.String())
		}
		rule := strings.Join(texts, " ")
		if !strings.ContainsAny(rule, "\n\x00") {
			all = append(all, example{family: d.Family, table: table, rule: rule})
		}
	}
	for _, t := range d.Tables {
		for _, r := range t.Rules {
			if !Builtin(t.Name, r.Chain) {
				continue
			}
			args := r.Args()
			for i, w := range args {
				with := func(words ...string) {
					var tokens []Token
					for _, text := range words {
						tokens = append(tokens, Token{Text: text, Quoted: strings.HasPrefix(text, `"`)})
						if q := &tokens[len(tokens)-1]; q.Quoted {
							q.Text, _, _ = unquote(text, 0)
						}
					}
					add(t.Name, r.Chain, slices.Concat(args[:i], tokens, args[i+1:]))
				}
				if isOption(w) {
					with("!", w.Text)
					with()
					end := i + 1
					for end < len(args) && !isOption(args[end]) && !args[end].Is("!") {
						end++
					}
					if end > i+1 { // twice
						add(t.Name, r.Chain, slices.Concat(args[:end], args[i:end], args[end:]))
					}
					with(w.Text[:len(w.Text)-1])
					continue
				}
				for _, text := range oddValues {
					with(text)
				}
				with(strings.ToUpper(w.Text))
				with(strings.ToLower(w.Text))
				with(w.Text + "," + w.Text)
				with(w.Text + "0")
				with(w.Text[:len(w.Text)-min(1, len(w.Text))])
				with(w.Text, w.Text)
			}
		}
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// loadEach loads each line of its input, "table rule", into its table alone, and prints what iptables-save has of it, and
// "." or "!" for one that is refused.
const loadEach = `while IFS=' ' read -r table rule; do
	if printf '*%s\n:own - [0:0]\n-A %s\nCOMMIT\n' "$table" "$rule" | "$1-restore" >/dev/null 2>&1; then
		"$1-save" -t "$table" | grep '^-A'; echo .
	else echo '!'; fi
done`

func isOption(t Token) bool { return !t.Quoted && optionName.MatchString(t.Text) }

var optionName = regexp.MustCompile(`^-\D`)

// TestKernelAcceptsVariants changes words of rules and gives each to iptables-restore of both back ends. A rule that one
// loads has to be read, and what iptables-save prints then means what is read of the rule.
func TestKernelAcceptsVariants(t *testing.T) {
	netnstest.Require(t)
	for _, backend := range []string{"legacy", "nft"} {
		for _, family := range []Family{IPv4, IPv6} {
			t.Run(fmt.Sprintf("%s %s", backend, family), func(t *testing.T) {
				program := strings.TrimSuffix(restoreProgram(backend, family), "-restore")
				netnstest.RequireTool(t, program+"-restore")
				n, err := netns.New("iptables")
				if err != nil {
					t.Fatal(err)
				}
				defer n.Close()
				d := parseFile(t, fmt.Sprintf("every-%s-%s.rules", backend, strings.ToLower(family.String())))
				all := variants(d, rand.New(rand.NewPCG(1, uint64(family))))
				all = all[:min(len(all), *variantsFlag)]
				var input strings.Builder
				for _, e := range all {
					fmt.Fprintf(&input, "%s %s\n", e.table, e.rule)
				}
				output, err := n.Run(input.String(), "sh", "-c", loadEach, "sh", program)
				if err != nil {
					t.Fatal(err)
				}
				loaded := 0
				for i, e := range all {
					var saved []string
					var line string
					for line != "." && line != "!" {
						var more bool
						if line, output, more = strings.Cut(output, "\n"); !more {
							t.Fatalf("%s gives no result for %q", program, all[i].rule)
						}
						saved = append(saved, line)
					}
					if line == "." {
						loaded++
						checkLoaded(t, program, e, saved[:len(saved)-1])
					}
				}
				if loaded < len(all)/20 {
					t.Errorf("%s loads %d of %d rules", program, loaded, len(all))
				}
			})
		}
	}
}

// kernelLosesIt reports whether iptables does with a value what its authors cannot mean, or what it prints says less than what is
// loaded: no text is compared.
func kernelLosesIt(e example) string {
	for _, l := range []struct{ why, given string }{
		{"an empty value is 0, or the last one", `""`},
		{"names are printed without quotes", `(-i|-o|--name|--hashlimit-name|--physdev-(in|out)|--(u|g)id-owner) "`},
		{"bits of another number count", `--(monthdays|weekdays) \S*[^\s0-9A-Za-z,]|--(monthdays|weekdays) \S*(0|\d\d\d|[89])(,| |$)|-days \S*/\S*`},
		{"bits of another number count", `--(monthdays|weekdays) (0[xX]|,)`},
		{"a range that is not, from 0, is printed as the one behind it", `! --[sd]port \S*:`},
		{"the largest number is printed as -1", `--seconds 4294967295`},
		{"numbers wrap around", `--(on-port|[sd]port|ct\w+port) \S*\d{5}`},
		{"what follows a number is ignored", `--hashlimit-burst \S*/|--connlimit-mask \S*\.|--date(start|stop) \S*:000`},
		{"a number with a colon is a port", `--to-(destination|source) "?[0-9a-f]+:`},
		{"flags that no packet lacks are not printed", `--tcp-flags `},
		{"chunk types may be repeated", `--chunk-types `},
		{"what it prints is read as given", `--suppl-groups|[ug]id-owner \S*:`},
	} {
		if regexp.MustCompile(l.given).MatchString(e.rule) {
			return l.why
		}
	}
	return ""
}

// defaults are options that one of the texts has, and that mean nothing.
var defaults = regexp.MustCompile(` --hashlimit-htable-expire \d+| --zone 0| -[io] \+| --to 65535| --rt-segsleft 0:4294967295| --datestop 2038-01-19T03:14:07`)

func checkLoaded(t *testing.T, program string, e example, saved []string) {
	t.Helper()
	if kernelLosesIt(e) != "" {
		return
	}
	given, err := Parse(strings.NewReader(e.text()), Options{Family: e.family})
	if err != nil {
		t.Errorf("%s loads %q, which is refused: %v", program, e.rule, err)
		return
	}
	text := "*" + e.table + "\n:own - [0:0]\n" + strings.Join(saved, "\n") + "\nCOMMIT\n"
	kept, err := Parse(strings.NewReader(text), Options{Family: e.family})
	if err != nil {
		t.Errorf("%s saves %q as %q, which is refused: %v", program, e.rule, saved, err)
		return
	}
	if got, want := defaults.ReplaceAllString(typedText(given), ""), defaults.ReplaceAllString(typedText(kept), ""); got != want {
		t.Errorf("%s loads %q as\n\t%s\nbut it is read as\n\t%s", program, e.rule, want, got)
	}
}
