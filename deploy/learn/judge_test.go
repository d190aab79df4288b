package learn

import "testing"

func TestJudge(t *testing.T) {
	half := Answer{Number: &Number{Value: 0.5, Within: 0.01}}
	is := Answer{Is: Texts{"none", "No Device", "0.5"}}
	re := Answer{Matches: "web-[12]|all"}
	script := Answer{Run: &Script{Text: "x"}}
	for _, tc := range []struct {
		a           Answer
		given, text string
		want        bool
	}{
		{half, "0.5", "", true}, {half, "0,5", "", true}, {half, " .5 ", "", true}, {half, "50%", "", true}, {half, "50 %", "", true}, {half, "50,5%", "", true},
		{half, "1/2", "", true}, {half, "1 / 2", "", true}, {half, "0.51", "", true}, {half, "0.49", "", true}, {half, "5e-1", "", true}, {half, "'0.5'", "", true},
		{half, "0.52", "", false}, {half, "0.48", "", false}, {half, "52%", "", false}, {half, "50", "", false}, {half, "1/0", "", false}, {half, "0/0", "", false},
		{half, "/2", "", false}, {half, "1/", "", false}, {half, "", "", false}, {half, "half", "", false}, {half, "nan", "", false}, {half, "inf", "", false}, {half, "%", "", false},
		{half, "1/2/3", "", false}, {half, "0.5 0.5", "", false},
		{is, "none", "", true}, {is, "NONE", "", true}, {is, "  no   device\t", "", true}, {is, `"none"`, "", true}, {is, "`none`", "", true}, {is, "' none '", "", true},
		{is, "0.50", "", true}, {is, "1/2", "", true},
		{is, "non", "", false}, {is, "none at all", "", false}, {is, "nodevice", "", false}, {is, "", "", false}, {is, "0.51", "", false},
		{re, "web-1", "", true}, {re, "WEB-2", "", true}, {re, " all ", "", true}, {re, "web-3", "", false}, {re, "web-12", "", false}, {re, "xweb-1", "", false}, {re, "allx", "", false},
		{script, "Web-1", " web-1\n", true}, {script, "2", "2.0", true}, {script, "web-2", "web-1", false}, {script, "web-1", "", false},
	} {
		if got := tc.a.Judge(tc.given, tc.text); got != tc.want {
			t.Errorf("%+v, with the right text %q: %q is judged %v, want %v", tc.a, tc.text, tc.given, got, tc.want)
		}
	}
}

// A number has the tolerance that is given, also none.
func TestNumberWithin(t *testing.T) {
	a := Answer{Number: &Number{Value: 3}}
	for given, want := range map[string]bool{"3": true, "3.0": true, "300%": true, "6/2": true, "3.001": false, "2.999": false, "-3": false} {
		if got := a.Judge(given, ""); got != want {
			t.Errorf("%s is judged %v, want %v", given, got, want)
		}
	}
}

func TestWrongReason(t *testing.T) {
	q := Question{Wrong: []WrongAnswer{{"eth0", "that is the node's"}, {"1/2", "half"}}}
	for given, want := range map[string]string{"ETH0 ": "that is the node's", "0.5": "half", "50%": "half", "eth1": "", "": ""} {
		if got := q.WrongReason(given); got != want {
			t.Errorf("the reason of %q is %q, want %q", given, got, want)
		}
	}
}

func TestAnswerText(t *testing.T) {
	for _, tc := range []struct {
		a    Answer
		want string
	}{{Answer{Is: Texts{"a", "b"}}, "a"}, {Answer{Number: &Number{Value: 0.25}}, "0.25"}, {Answer{Matches: "x"}, ""}, {Answer{Held: true}, ""}} {
		got := tc.a.Text()
		if got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.a, got, tc.want)
		}
		if got != "" && !tc.a.Judge(got, "") {
			t.Errorf("%+v: its text %q is judged wrong", tc.a, got)
		}
	}
}

func TestParseAddress(t *testing.T) {
	for _, tc := range []struct {
		text, address string
		port          uint16
	}{{"", "invalid IP", 0}, {"10.0.0.1", "10.0.0.1", 0}, {"10.0.0.1:80", "10.0.0.1", 80}, {"fd00::1", "fd00::1", 0}, {"[fd00::1]:53", "fd00::1", 53}} {
		if a, port, err := ParseAddress(tc.text); err != nil || a.String() != tc.address || port != tc.port {
			t.Errorf("%q is %v, port %d, %v, want %s, port %d", tc.text, a, port, err, tc.address, tc.port)
		}
	}
	for _, text := range []string{"web", "10.0.0", "10.0.0.1:", "10.0.0.1:70000", "fd00::1:x"} {
		if _, _, err := ParseAddress(text); err == nil {
			t.Errorf("%q is an address", text)
		}
	}
}

// A flow that was answered is often closed: the query does not select by that state.
func TestFlowQuery(t *testing.T) {
	c := FlowCheck{Service: "a", From: "b", To: "c", Endpoint: "d", Node: "e", Protocol: "f", Verdict: "g", Reason: "h", State: AnsweredState}
	q := c.Query()
	if q.Service != "a" || q.Source != "b" || q.Destination != "c" || q.Endpoint != "d" || q.Node != "e" || q.Protocol != "f" || q.Verdict != "g" || q.Reason != "h" || q.State != "" || q.Limit != "0" {
		t.Errorf("the query is %+v", q)
	}
	c.State = "closed"
	if q := c.Query(); q.State != "closed" {
		t.Errorf("the query has the state %q", q.State)
	}
}
