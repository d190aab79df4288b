package learn

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

// TestMistakes: each mistake has one message, with the file, the line where there is one, and the field.
func TestMistakes(t *testing.T) {
	const ask = "    answer: {is: [\"2\", two]}\n"
	const flow = "  - flow: {service: default/web, state: answered}\n"
	lines := func(n int) string { return strings.Repeat("a line\n", n) }
	for _, tc := range []struct{ name, file, old, new, want string }{
		// unit.yaml as YAML
		{"an unknown field", unitPath, "minutes: 3", "minutes: 3\nminuts: 4", unitPath + ":5: minuts: unknown field, did you mean \"minutes\"?"},
		{"an unknown field of a check", unitPath, "state: answered", "stat: answered", unitPath + ":19: steps[2].checks[0].flow.stat: unknown field, did you mean \"state\"?"},
		{"an unknown kind of check", unitPath, "  - flow:", "  - flows:", unitPath + ":19: steps[2].checks[0].flows: unknown field, did you mean \"flow\"?"},
		{"a text for a number", unitPath, "minutes: 3", "minutes: three", unitPath + `:4: minutes: want an integer, have the string "three"`},
		{"a list for a text", unitPath, "title: A first unit", "title: [A, first]", unitPath + ":3: title: want a string, have a list"},
		{"a text for steps", unitPath, "", "kind: Unit\nsteps: none\n", unitPath + `:2: steps: want a list, have the string "none"`},
		{"fields for texts", unitPath, `is: ["2", two]`, `is: {a: b}`, unitPath + ":12: steps[1].question.answer.is: want a text, or a list of texts, have an object"},
		{"a text for variables", unitPath, "steps:\n", "variables: some\nsteps:\n", unitPath + `:7: variables: want a list, have the string "some"`},
		{"no YAML", unitPath, "title: A first unit", "title: [", unitPath + ":3: did not find expected ',' or ']': close the bracket, and put texts with commas or brackets in quotes"},
		{"a tab", unitPath, "minutes: 3", "\tminutes: 3", unitPath + ":3: found a tab character that violates indentation: use spaces"},
		{"a field twice", unitPath, "minutes: 3", "minutes: 3\nminutes: 4", unitPath + ":5: minutes: given twice: first in line 4"},
		{"an empty file", unitPath, "", "", unitPath + ": is empty"},
		{"a comment only", unitPath, "", "# nothing\n", unitPath + ": is empty"},
		{"a text only", unitPath, "", "unit", unitPath + `:1: want an object, have the string "unit"`},
		{"two documents", unitPath, "  solution: curl web\n", "  solution: curl web\n---\nkind: Unit\n", unitPath + ":22: has a second document: want one"},
		{"aliases that grow", unitPath, "", bomb(), unitPath + ": document contains excessive aliasing"},
		{"an alias of itself", unitPath, "", "steps: &a [*a]\n", unitPath + `:1: anchor "a" contains itself`},

		// unit.yaml's fields
		{"another version", unitPath, "v1alpha1", "v2", unitPath + ":1: apiVersion: want nfqproxy.io/v1alpha1"},
		{"another kind", unitPath, "kind: Unit", "kind: Lab", unitPath + ":2: kind: want Unit"},
		{"no title", unitPath, "title: A first unit\n", "", unitPath + ":1: title: missing"},
		{"no time", unitPath, "minutes: 3\n", "", unitPath + ":1: minutes: want 1 to 60"},
		{"too much time", unitPath, "minutes: 3", "minutes: 61", unitPath + ":4: minutes: want 1 to 60"},
		{"an empty step", unitPath, "- name: read\n", "- name: read\n-\n", unitPath + ":9: steps[1]: is empty"},
		{"an empty check", unitPath, flow, flow + "  -\n", unitPath + ":20: steps[2].checks[1]: is empty"},
		{"a step without a name", unitPath, "- name: read\n", "- {}\n", unitPath + ":8: steps[0].name: want a name that no other step has"},
		{"a step twice", unitPath, "- name: do\n", "- name: ask\n", unitPath + ":17: steps[2].name: want a name that no other step has"},
		{"two hints", unitPath, "[one, two, three]\n  solution: curl", "[one, two]\n  solution: curl", unitPath + ":20: steps[2].hints: want three hints for a task, and none for a text to read"},
		{"hints without a task", unitPath, "- name: read\n", "- name: read\n  hints: [one, two, three]\n", unitPath + ":9: steps[0].hints: want three hints for a task, and none for a text to read"},
		{"no solution", unitPath, "  solution: curl web\n", "", unitPath + ":17: steps[2].solution: want a solution for a task, and none for a text to read"},
		{"a solution without a task", unitPath, "- name: read\n", "- name: read\n  solution: x\n", unitPath + ":9: steps[0].solution: want a solution for a task, and none for a text to read"},
		{"a solution of spaces", unitPath, "solution: curl web", "solution: ' '", unitPath + ":21: steps[2].solution: want a solution for a task, and none for a text to read"},

		// questions
		{"no text of a question", unitPath, "    text: How many pods?\n", "", unitPath + ":10: steps[1].question.text: missing"},
		{"no answer", unitPath, ask, "", unitPath + ":10: steps[1].question.answer: want one of is, matches, number, run, command and held, not 0"},
		{"two answers", unitPath, ask, "    answer: {is: a, matches: b}\n", unitPath + ":12: steps[1].question.answer: want one of is, matches, number, run, command and held, not 2"},
		{"no wrong answers", unitPath, "    wrong:\n    - {answer: \"1\", because: there are two}\n", "", unitPath + ":10: steps[1].question.wrong: missing: want answers that students give, with the reason why they are wrong"},
		{"a wrong answer without a reason", unitPath, ", because: there are two", "", unitPath + ":14: steps[1].question.wrong[0].because: missing"},
		{"a wrong answer that is right", unitPath, "    wrong:\n", "    wrong:\n    - {answer: ' TWO ', because: x}\n", unitPath + `:14: steps[1].question.wrong[0].answer: " TWO " is a right answer`},
		{"an only wrong answer that is right", unitPath, "answer: \"1\",", "answer: two,", unitPath + `:14: steps[1].question.wrong[0].answer: "two" is a right answer`},
		{"an expression that does not compile", unitPath, ask, "    answer: {matches: \"a(\"}\n", unitPath + ":12: steps[1].question.answer.matches: error parsing regexp: missing closing ): `^(?:a()$`"},
		{"an expression that does not compile in brackets", unitPath, ask, "    answer: {matches: '\\Qa'}\n", unitPath + ":12: steps[1].question.answer.matches: error parsing regexp: missing closing ): `^(?:\\Qa)$`"},
		{"a number that is none", unitPath, ask, "    answer: {number: {value: .nan}}\n", unitPath + ":12: steps[1].question.answer.number: want a number, and within of 0 or more"},
		{"a negative tolerance", unitPath, ask, "    answer: {number: {value: 2, within: -1}}\n", unitPath + ":12: steps[1].question.answer.number: want a number, and within of 0 or more"},
		{"no script", unitPath, ask, "    answer: {run: {on: shell}}\n", unitPath + ":12: steps[1].question.answer.run.script: missing"},
		{"a script on an unknown host", unitPath, ask, "    answer: {run: {on: shel, script: x}}\n", unitPath + `:12: steps[1].question.answer.run.on: no host "shel" in this lab (did you mean "default/shell"?); known: node-a, default/shell, router`},
		{"a command without a field", unitPath, ask, "    answer: {command: explain a b}\n", unitPath + ":12: steps[1].question.answer.field: want it with command or held, and only with these"},
		{"a field without a command", unitPath, ask, "    answer: {is: a, field: verdict}\n", unitPath + ":12: steps[1].question.answer.field: want it with command or held, and only with these"},
		{"another command", unitPath, ask, "    answer: {command: run, field: verdict}\n", unitPath + ":12: steps[1].question.answer.command: want explain or trace, with flags"},
		{"an answer about no held packet", unitPath, ask, "    answer: {held: true, field: endpoint}\n", unitPath + ":12: steps[1].question.answer.held: the step has no hold"},
		{"a hold without a question", unitPath, "- name: do\n", "- name: do\n  hold: {flow: {port: \"80\"}}\n", unitPath + ":17: steps[2].question: missing: a held packet waits for its answer"},
		{"a hold of nonsense", unitPath, "- name: ask\n", "- name: ask\n  hold: {flow: {port: many}}\n", unitPath + `:10: steps[1].hold.flow: port "many": want a number from 1 to 65535`},

		// checks
		{"a check of nothing", unitPath, flow, "  - not: true\n", unitPath + ":19: steps[2].checks[0]: want one of flow, request, entry, rule, route, object and run, not 0"},
		{"two checks in one", unitPath, flow, "  - {flow: {}, rule: {on: shell, matches: x}}\n", unitPath + ":19: steps[2].checks[0]: want one of flow, request, entry, rule, route, object and run, not 2"},
		{"a flow of nonsense", unitPath, "state: answered", "verdict: perhaps", unitPath + `:19: steps[2].checks[0].flow: verdict "perhaps": want accept, dnat, reject or drop`},
		{"a flow by an unknown entry", unitPath, "state: answered", "entry: nodeport", unitPath + `:19: steps[2].checks[0].flow.entry: "nodeport": want cluster-ip, external-ip, load-balancer-ip, node-port`},
		{"an entry with an unknown state", unitPath, flow, "  - entry: {on: node-a, state: SYNSENT}\n", unitPath + `:19: steps[2].checks[0].entry.state: "SYNSENT": want a state of TCP: NONE, SYN_SENT, SYN_RECV, ESTABLISHED, FIN_WAIT, CLOSE_WAIT, LAST_ACK, TIME_WAIT, CLOSE, SYN_SENT2`},
		{"a flow with an unknown reason", unitPath, "state: answered", "masqueradeReason: x", unitPath + `:19: steps[2].checks[0].flow.masqueradeReason: "x": want masquerade-all, source-outside-cluster, external, local-source, hairpin, host-masquerade`},
		{"a flow that is less than none", unitPath, "state: answered", "count: -1", unitPath + ":19: steps[2].checks[0].flow.count: want 1 or more"},
		{"a request from nowhere", unitPath, flow, "  - request: {to: \"http://web/\"}\n", unitPath + ":19: steps[2].checks[0].request.from: missing"},
		{"a request to nowhere", unitPath, flow, "  - request: {from: shell}\n", unitPath + ":19: steps[2].checks[0].request.to: missing"},
		{"too many requests", unitPath, flow, "  - request: {from: shell, to: x, count: 101}\n", unitPath + ":19: steps[2].checks[0].request.count: want 1 to 100"},
		{"too much time of a request", unitPath, flow, "  - request: {from: shell, to: x, timeout: 11s}\n", unitPath + ":19: steps[2].checks[0].request.timeout: want up to 10s"},
		{"a failed request with an answer", unitPath, flow, "  - request: {from: shell, to: x, error: refused, by: web}\n", unitPath + ":19: steps[2].checks[0].request.error: a request with an error has no answer: leave out by and client"},
		{"a flow from an unknown host", unitPath, flow, "  - flow: {from: shel}\n", unitPath + `:19: steps[2].checks[0].flow.from: no host "shel" in this lab (did you mean "default/shell"?); known: node-a, default/shell, router`},
		{"a flow on an unknown node", unitPath, flow, "  - flow: {node: node-b, from: 10.244.0.0/24}\n", unitPath + `:19: steps[2].checks[0].flow.node: no host "node-b" in this lab (did you mean "node-a"?); known: node-a, default/shell, router`},
		{"a request from an unknown host", unitPath, flow, "  - request: {from: shel, to: x}\n", unitPath + `:19: steps[2].checks[0].request.from: no host "shel" in this lab (did you mean "default/shell"?); known: node-a, default/shell, router`},
		{"an entry of an unknown host", unitPath, flow, "  - entry: {on: node-b}\n", unitPath + `:19: steps[2].checks[0].entry.on: no host "node-b" in this lab (did you mean "node-a"?); known: node-a, default/shell, router`},
		{"an entry of a nonsense address", unitPath, flow, "  - entry: {on: node-a, replyTo: 10.0.0}\n", unitPath + `:19: steps[2].checks[0].entry.replyTo: "10.0.0": want ADDRESS or ADDRESS:PORT`},
		{"an entry of a nonsense protocol", unitPath, flow, "  - entry: {on: node-a, protocol: http}\n", unitPath + ":19: steps[2].checks[0].entry.protocol: want tcp, udp, sctp or icmp"},
		{"a rule on an unknown host", unitPath, flow, "  - rule: {on: x, matches: x}\n", unitPath + `:19: steps[2].checks[0].rule.on: no host "x" in this lab; known: node-a, default/shell, router`},
		{"a rule that matches nothing", unitPath, flow, "  - rule: {on: node-a}\n", unitPath + ":19: steps[2].checks[0].rule.matches: missing"},
		{"a rule that does not compile", unitPath, flow, "  - rule: {on: node-a, matches: '*'}\n", unitPath + ":19: steps[2].checks[0].rule.matches: error parsing regexp: missing argument to repetition operator: `*`"},
		{"a route of a name", unitPath, flow, "  - route: {on: node-a, to: web, dev: eth0}\n", unitPath + ":19: steps[2].checks[0].route.to: want an address"},
		{"a route to anywhere", unitPath, flow, "  - route: {on: node-a, to: 10.0.0.1}\n", unitPath + ":19: steps[2].checks[0].route: want via or dev"},
		{"an object without a name", unitPath, flow, "  - object: {kind: Service}\n", unitPath + ":19: steps[2].checks[0].object.name: missing"},
		{"an object that labs do not have", unitPath, flow, "  - object: {kind: Ingress, name: x}\n", unitPath + `:19: steps[2].checks[0].object.kind: "Ingress": want Service, EndpointSlice, Pod or Node`},
		{"a field that does not compile", unitPath, flow, "  - object: {kind: pod, name: x, has: {a.b: '('}}\n", unitPath + ":19: steps[2].checks[0].object.has: error parsing regexp: missing closing ): `^(?:()$`"},
		{"a run of nothing", unitPath, flow, "  - run: {on: shell}\n", unitPath + ":19: steps[2].checks[0].run.script: missing"},
		{"an output that does not compile", unitPath, flow, "  - run: {script: x, output: '['}\n", unitPath + ":19: steps[2].checks[0].run.output: error parsing regexp: missing closing ]: `[`"},

		// variables and variants
		{"a variable that is no name", unitPath, "steps:\n", "variables: [{name: My-Port, from: 1, to: 2}]\nsteps:\n", unitPath + `:7: variables[0].name: "My-Port": want a letter, followed by letters and digits`},
		{"a variable twice", unitPath, "steps:\n", "variables: [{name: a, from: 1, to: 2}, {name: a, oneOf: [x]}]\nsteps:\n", unitPath + `:7: variables[1].name: duplicate variable "a"`},
		{"a variable without values", unitPath, "steps:\n", "variables: [{name: a}]\nsteps:\n", unitPath + ":7: variables[0]: want oneOf, or from and to, with to at least as large as from"},
		{"a variable with two kinds of values", unitPath, "steps:\n", "variables: [{name: a, oneOf: [x], to: 2}]\nsteps:\n", unitPath + ":7: variables[0]: want oneOf, or from and to"},
		{"a range that is upside down", unitPath, "steps:\n", "variables: [{name: a, from: 2, to: 1}]\nsteps:\n", unitPath + ":7: variables[0]: want oneOf, or from and to, with to at least as large as from"},
		{"a range of all numbers", unitPath, "steps:\n", "variables: [{name: a, from: -9223372036854775808, to: 9223372036854775807}]\nsteps:\n", unitPath + ":7: variables[0]: too many numbers between from and to"},
		{"a variant twice", unitPath, "steps:\n", "variants: [{name: a}, {name: a}]\nsteps:\n", unitPath + ":7: variants[1].name: want a name that differs from all other variants"},
		{"a variant with a value of its own", unitPath, "steps:\n", "variants: [{name: a, values: {x: y}}, {name: b, values: {x: y, z: y}}]\nsteps:\n", unitPath + ":7: variants[1].values: z: the first variant does not have it, and it is not a variable"},
		{"a variant with two lines", unitPath, "steps:\n", "variants: [{name: a, values: {x: \"y\\nz\"}}]\nsteps:\n", unitPath + ":7: variants[0].values: x: want one line"},
		{"a solution of an unknown step", unitPath, "steps:\n", "variants: [{name: a, solutions: {dew: x}}]\nsteps:\n", unitPath + `:7: variants[0].solutions: no step "dew"`},
		{"an empty step beside a variant", unitPath, "steps:\n", "variants: [{name: a}]\nsteps:\n-\n", unitPath + ":9: steps[0]: is empty"},

		// text.md
		{"an empty text", textPath, "", "", textPath + ": no heading for step read: want one \"# Title\" for each of the 3 steps"},
		{"no heading", textPath, "# Read\n", "Read\n", textPath + ":1: want a heading first, as \"# Title\": the title of the first step"},
		{"a heading without a title", textPath, "# Read\n", "# \n", textPath + ":1: want a heading first, as \"# Title\": the title of the first step"},
		{"a heading too few", textPath, "# Do\n", "Do\n", textPath + ": no heading for step do: want one \"# Title\" for each of the 3 steps"},
		{"a heading too many", textPath, "Send a request.\n", "Send a request.\n# More\n", textPath + ":12: a heading without a step: unit.yaml has 3 steps"},
		{"a long line", textPath, "Read this.", strings.Repeat("ä", 77), textPath + ":3: has 77 columns: want 76 at most"},
		{"too many lines", textPath, "Read this.\n", lines(17), textPath + ":19: the text of step read has 17 lines: want 16 at most"},
		{"too many lines with a blank one", textPath, "Read this.\n", lines(15) + "\n\n\nthe end\n", textPath + ":19: the text of step read has 19 lines: want 16 at most"},
		{"a block that does not end", textPath, "Send a request.\n", "```\ncurl\n", textPath + ":12: a block of code does not end: want a line with three backticks"},

		// lab.yaml
		{"no lab", unitPath, "lab: lab.yaml", "lab: lab.yml", unitPath + `:5: lab: no file of the unit and no built-in lab "lab.yml"; built-in labs: allowed-ports, dual-stack, flannel, grafana-31577, kind, kube-dns-hairpin, nodeport-30007, three-modes`},
		{"a built-in lab beside a file", unitPath, "lab: lab.yaml\nshell: shell", "lab: kind\nshell: shell", unitPath + ":5: lab: kind: the unit has a file lab.yaml, too, which is the name of the lab in the student's directory"},
		{"no lab at all", unitPath, "lab: lab.yaml", "lab: ''", unitPath + ":5: lab: missing: the name of a file of the unit, or of a built-in lab"},
		{"an unknown field of the lab", labPath, "{name: first}", "{name: first, title: First}", labPath + `:3: metadata.title: unknown field; known fields: name`},
		{"an unknown field of a Service", labPath, "", small[labPath] + "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {port: 80}\n", labPath + `:14: Service default/web: spec.port: unknown field`},
		{"an empty lab", labPath, "", "", labPath + `: the first document must have "apiVersion: nfqproxy.io/v1alpha1" and "kind: Lab"`},
		{"an unknown shell", unitPath, "shell: shell", "shell: shel", unitPath + `:6: shell: no host "shel" in this lab (did you mean "default/shell"?); known: node-a, default/shell, router`},

		// directories
		{"an unknown field of the chapter", "1-services/chapter.yaml", "title:", "titel:", "1-services/chapter.yaml:3: titel: unknown field, did you mean \"title\"?"},
		{"another kind of chapter", "1-services/chapter.yaml", "Chapter", "Unit", "1-services/chapter.yaml:2: kind: want Chapter"},
		{"an empty chapter file", "1-services/chapter.yaml", "", "", "1-services/chapter.yaml: is empty"},
		{"a directory in a unit", "1-services/1-first/files/x", "", "x", "1-services/1-first/files: is not a file: a unit has files only"},
		{"a unit with a number twice", "1-services/1-other/unit.yaml", "", "x", "1-services/1-other: has the same number as 1-services/1-first"},
		{"a chapter with a number twice", "1-other/chapter.yaml", "", "x", "1-services: has the same number as 1-other"},
		{"a unit with a wrong name", "1-services/02-Second/unit.yaml", "", "x", "1-services/02-Second: want a number from 1 to 999, and words of lower-case letters and digits, such as 1-first-words"},
		{"a unit without its file", "1-services/2-second/text.md", "", "x", "1-services/2-second/unit.yaml: missing: the steps of the unit"},
		{"a chapter without its file", "2-nodes/1-first/text.md", "", "x", "2-nodes/chapter.yaml: missing: the title of the chapter"},
		{"the directory of a chapter", "chapter.yaml", "", "x", "chapter.yaml: belongs to a chapter or unit: give the directory of the course, which has the directories of its chapters"},
		{"the directory of a unit", "unit.yaml", "", "x", "unit.yaml: belongs to a chapter or unit: give the directory of the course, which has the directories of its chapters"},

		// what the YAML parser says, with what to write instead
		{"a colon in a text", unitPath, "title: A first unit", "title: Services: names", unitPath + `:3: mapping values are not allowed in this context: put a text with a colon in quotes, as title: "Services: names", or indent this line as those above`},
		{"a text that begins with code", unitPath, "there are two}", "`two`}", unitPath + ":14: found character that cannot start any token: put a text that begins with ` or @ or % in quotes"},
		{"a line that is indented more", unitPath, "  hints: [one, two, three]\n  solution: answer", "  hints: [one, two, three]\n   solution: answer", unitPath + ":9: did not find expected key: indent the lines from here on as those above, and put a text with quotes in it in quotes as a whole"},
		{"a line that is indented less", unitPath, "minutes: 3\n", " minutes: 3\n", unitPath + `:4: mapping values are not allowed in this context: put a text with a colon in quotes, as title: "Services: names", or indent this line as those above`},
		{"a text with a quote", unitPath, "title: A first unit", "title: 'A' first unit", unitPath + ":3: did not find expected key: indent the lines from here on as those above, and put a text with quotes in it in quotes as a whole"},
		{"a chapter that is no YAML", "1-services/chapter.yaml", "title: Services", "title: `Services`", "1-services/chapter.yaml:3: found character that cannot start any token: put a text that begins with ` or @ or % in quotes"},
		{"a chapter without units", "2-nodes/chapter.yaml", "", small["1-services/chapter.yaml"], "2-nodes/chapter.yaml:1: the chapter has no units: want directories such as 1-first, with unit.yaml and text.md"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Load(edited(t, tc.file, tc.old, tc.new), 0)
			if err == nil || err.Error() != tc.want {
				t.Errorf("the error is\n%v\nwant\n%s", err, tc.want)
			}
		})
	}
}

// bomb is a document of ten million texts.
func bomb() string {
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 7 {
		n, before := string(rune('1'+i)), string(rune('0'+i))
		text += "a" + n + ": &a" + n + " [" + strings.TrimSuffix(strings.Repeat("*a"+before+", ", 10), ", ") + "]\n"
	}
	return text + "variables: *a7\nsteps: *a7\n"
}

// All mistakes of all files are reported at once, in the order of the files.
func TestAllMistakes(t *testing.T) {
	files := edited(t, unitPath, "minutes: 3", "minutes: 99")
	files[textPath] = &fstest.MapFile{Data: []byte(strings.Replace(small[textPath], "Read this.", strings.Repeat("x", 80), 1))}
	files[labPath] = &fstest.MapFile{Data: []byte(strings.Replace(small[labPath], "name: shell", "name: shel", 1))}
	files["1-services/chapter.yaml"] = &fstest.MapFile{Data: []byte(strings.Replace(small["1-services/chapter.yaml"], "v1alpha1", "v2", 1))}
	_, err := Load(files, 0)
	want := `1-services/chapter.yaml:1: apiVersion: want nfqproxy.io/v1alpha1
1-services/1-first/unit.yaml:4: minutes: want 1 to 60
1-services/1-first/unit.yaml:6: shell: no host "shell" in this lab (did you mean "default/shel"?); known: node-a, default/shel, router
1-services/1-first/text.md:3: has 80 columns: want 76 at most`
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
	if all, ok := errors.AsType[Mistakes](err); !ok || len(all) != 4 {
		t.Errorf("the error is %T", err)
	}
}

func TestNoCourse(t *testing.T) {
	_, err := Load(fstest.MapFS{"README.md": {}}, 0)
	if want := ".: no chapters: want directories such as 1-services, with chapter.yaml and units"; err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
	files := edited(t, "", "", "")
	delete(files, textPath)
	if _, err := Load(files, 0); err == nil || err.Error() != textPath+": missing: the text of the steps" {
		t.Errorf("without a text: %v", err)
	}
}

// noReads is a file system that has a size for a file, and no contents.
type noReads struct {
	fstest.MapFS
	file string
}

func (f noReads) Open(name string) (fs.File, error) {
	if name == f.file {
		return nil, errors.New("the file is read")
	}
	return f.MapFS.Open(name)
}

func (f noReads) ReadFile(name string) ([]byte, error) {
	if name == f.file {
		return nil, errors.New("the file is read")
	}
	return f.MapFS.ReadFile(name)
}

// A huge file is refused by its size; it is not read.
func TestHugeFile(t *testing.T) {
	const huge = "1-services/1-first/z.bin"
	files := edited(t, huge, "", "")
	files[huge].Data = bytes.Repeat([]byte{0}, maxFiles+1)
	_, err := Load(noReads{files, huge}, 0)
	if want := huge + ": the files of the unit are larger than 4 MiB"; err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

// What is at the limit is valid, and so is what editors on other systems write.
func TestValid(t *testing.T) {
	for _, tc := range []struct{ name, file, old, new string }{
		{"76 columns", textPath, "Read this.", strings.Repeat("ä", 76)},
		{"16 lines", textPath, "Read this.\n", strings.Repeat("a line\n", 16)},
		{"a heading in a block of code", textPath, "Read this.", "```\n# comment\n```"},
		{"a byte order mark", textPath, "# Read\n", "\ufeff# Read\n"},
		{"lines of Windows", textPath, "", strings.ReplaceAll(small[textPath], "\n", "\r\n")},
		{"unit.yaml with lines of Windows", unitPath, "", strings.ReplaceAll(small[unitPath], "\n", "\r\n")},
		{"one text for a list", unitPath, `is: ["2", two]`, "is: 2"},
		{"all fields of a check", unitPath, "  - flow: {", "  - text: words\n    not: true\n    flow: {from: shell, to: 10.0.0.1, endpoint: 10.0.0.1, node: node-a, protocol: tcp, verdict: dnat, entry: cluster-ip, masquerade: true, masqueradeReason: hairpin, count: 3, "},
		{"an ICMP entry", unitPath, "  - flow: {service: default/web, state: answered}", "  - entry: {on: node-a, protocol: icmp, from: 10.0.0.1, to: \"10.0.0.1:80\", state: ESTABLISHED, answered: true}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := first(t, edited(t, tc.file, tc.old, tc.new), 0)
			if u.Steps[0].Title != "Read" || u.Steps[2].Text != "Send a request.\n" || u.Steps[2].Title != "Do" {
				t.Errorf("the steps are %+v, %+v", u.Steps[0], u.Steps[2])
			}
		})
	}
}
