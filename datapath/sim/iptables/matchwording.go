package iptables

import (
	"fmt"
	"strconv"
	"strings"
)

// matchPhrases are the texts that matches print (lib*.c, *_print), by the first word.
var matchPhrases map[string]phrase

func init() {
	matchPhrases = map[string]phrase{
		"/*": comment, "tcp": transport("tcp"), "udp": transport("udp"), "sctp": transport("sctp"),
		"tcpflags:": tcpFlagsPhrase, "icmp": icmpPhrase("icmp", "--icmp-type"), "icmptype": icmpNumber("icmp", "--icmp-type"),
		"ipv6-icmp": icmpPhrase("icmp6", "--icmpv6-type"), "ipv6-icmptype": icmpNumber("icmp6", "--icmpv6-type"),
		"multiport": multiportPhrase, "state": statePhrase, "ADDRTYPE": addrtypePhrase, "statistic": statisticPhrase,
		"mark": markPhrase("mark"), "MARK": markPhrase("mark"), "connmark": markPhrase("connmark"), "CONNMARK": markPhrase("connmark"),
		"recent:": recentPhrase, "match-set": setPhrase, "PHYSDEV": physdevPhrase, "rpfilter": flagsPhrase("rpfilter", "--"),
		"socket": flagsPhrase("socket", ""), "limit:": limitPhrase, "owner": ownerPhrase, "MAC": macPhrase,
		"source": iprangePhrase("--src-range"), "destination": iprangePhrase("--dst-range"),
		"length": lengthPhrase, "PKTTYPE": pkttypePhrase, "nfacct-name": accountingPhrase,
		"TTL": hopPhrase("TTL", "ttl"), "HL": hopPhrase("HL", "hl"), "rt": rtPhrase, "tos": tosMatchPhrase,
		"DSCP": matchedValue("dscp", "--dscp"), "tcpmss": matchedValue("tcpmss", "--mss"), "policy": policyPhrase,
		"quota:": quotaPhrase, "#conn": connlimitPhrase, "helper": helperPhrase, "TIME": timePhrase,
		"STRING": stringPhrase, "u32": u32Phrase, "match": bpfPhrase, "cpu": cpuPhrase, "connbytes": connbytesPhrase,
	}
	for name := range conntrackModule.shapes {
		matchPhrases[strings.TrimPrefix(name, "--")] = conntrackPhrase
	}
}

// comment reads up to "*/". A comment without an end means that the line was cut off.
func comment(w *wording, negated bool) bool {
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

// conntrackPhrase reads "! ctstate INVALID ctproto 6 ...". A repeated option belongs to another
// match.
func conntrackPhrase(w *wording, negated bool) bool {
	w.load("conntrack")
	w.at--
	given := make(map[string]bool)
	for {
		at := w.at
		not := w.word("!") || negated
		t, _ := w.next()
		if _, ok := conntrackModule.shapes["--"+t.Text]; !ok || given[t.Text] {
			w.at = at
			return len(given) > 0
		}
		given[t.Text], negated = true, false
		v, ok := w.next()
		if !ok {
			return false
		}
		w.emit(not, "--"+t.Text, v)
	}
}

func statePhrase(w *wording, negated bool) bool {
	w.load("state")
	not, t, ok := w.negatable()
	w.emit(not != negated, "--state", t)
	return ok
}

func addrtypePhrase(w *wording, negated bool) bool {
	w.load("addrtype")
	ok := w.word("match") && !negated
	for ok {
		switch {
		case w.word("src-type"):
			ok = w.notValue("--src-type")
		case w.word("dst-type"):
			ok = w.notValue("--dst-type")
		case w.word("limit-in"):
			w.emit(false, "--limit-iface-in")
		case w.word("limit-out"):
			w.emit(false, "--limit-iface-out")
		default:
			return true
		}
	}
	return false
}

func statisticPhrase(w *wording, negated bool) bool {
	w.load("statistic")
	if negated || !w.word("mode") {
		return false
	}
	mode, _ := w.next()
	w.emit(false, "--mode", mode)
	not := w.word("!")
	switch {
	case mode.Text == "random" && w.word("probability"):
		// 11 digits are exact for the 31 bits (libxt_statistic.c).
		if _, digits, _ := strings.Cut(w.peek(), "."); len(digits) < 11 {
			w.notes["probabilities"] = fmt.Sprintf("probabilities are rounded to %d digits", len(digits))
		}
		v, ok := w.next()
		w.emit(not, "--probability", v)
		return ok
	case mode.Text == "nth" && w.word("every"):
		v, ok := w.next()
		w.emit(not, "--every", v)
		return ok && (!w.word("packet") || w.value("--packet"))
	}
	return false
}

func markPhrase(module string) phrase {
	return func(w *wording, negated bool) bool {
		w.load(module)
		return !negated && w.word("match") && w.notValue("--mark")
	}
}

func recentPhrase(w *wording, negated bool) bool {
	w.load("recent")
	mode, ok := w.oneOf(map[string]string{"SET": "--set", "CHECK": "--rcheck", "UPDATE": "--update", "REMOVE": "--remove"})
	w.emit(negated, mode)
	for ok {
		switch {
		case w.word("seconds:"):
			ok = w.value("--seconds")
		case w.word("reap"):
			w.emit(false, "--reap")
		case w.word("hit_count:"):
			ok = w.value("--hitcount")
		case w.word("TTL-Match"):
			w.emit(false, "--rttl")
		case w.word("name:"):
			ok = w.value("--name")
		case w.word("mask:"):
			ok = w.value("--mask")
		case w.word("side:", "source"):
			w.emit(false, "--rsource")
		case w.word("side:", "dest"):
			w.emit(false, "--rdest")
		default:
			return true
		}
	}
	return false
}

// setPhrase reads "match-set NAME src,dst", followed by options as iptables-save writes them,
// without the dashes.
func setPhrase(w *wording, negated bool) bool {
	w.load("set")
	name, _ := w.next()
	directions, ok := w.next()
	w.emit(negated, "--match-set", name, directions)
	return ok && w.options("--", setModule.shapes)
}

// options reads a module's options with another prefix.
func (w *wording) options(prefix string, shapes map[string]shape) bool {
	for {
		at := w.at
		negated := w.word("!")
		t, _ := w.next()
		shape, ok := shapes[prefix+t.Text]
		if !ok || negated && !shape.negatable {
			w.at = at
			return true
		}
		if shape.values == 0 {
			w.emit(negated, prefix+t.Text)
			continue
		}
		v, ok := w.next()
		w.emit(negated, prefix+t.Text, v)
		if !ok || shape.values > 1 {
			return false
		}
	}
}

func physdevPhrase(w *wording, negated bool) bool {
	w.load("physdev")
	return !negated && w.word("match") && w.options("", physdevModule.shapes)
}

// flagsPhrase is for a module that prints its flags, perhaps without dashes.
func flagsPhrase(module, prefix string) phrase {
	return func(w *wording, negated bool) bool {
		w.load(module)
		return !negated && w.options(prefix, modules[module].shapes)
	}
}

// limitPhrase reads what limit and hashlimit print: "limit: avg 5/min burst 5" and
// "limit: above 10/sec burst 5 mode srcip-dstport".
func limitPhrase(w *wording, negated bool) bool {
	if w.word("avg") {
		w.load("limit")
		return !negated && w.value("--limit") && (!w.word("burst") || w.value("--limit-burst"))
	}
	option := "--hashlimit-upto"
	if w.word("above") {
		option = "--hashlimit-above"
	} else if !w.word("up", "to") {
		return false
	}
	w.load("hashlimit")
	rate, ok := w.next()
	w.emit(negated, option, rate)
	w.emit(false, "--hashlimit-name", Token{Text: "line-" + strconv.Itoa(w.row.line), Column: rate.Column})
	w.notes["hashlimit"] = "names of hashlimit tables are not listed: each rule is assumed to have its own table, named after its line"
	if w.word("burst") {
		ok = ok && w.value("--hashlimit-burst")
	}
	if w.word("mode") {
		mode, given := w.next()
		mode.Text, ok = strings.ReplaceAll(mode.Text, "-", ","), ok && given
		w.emit(false, "--hashlimit-mode", mode)
	}
	return ok && w.options("--hashlimit-", hashlimitModule.shapes)
}

// ownerPhrase reads "owner socket exists owner UID match 0-100 ! owner GID match 5
// incl. suppl. groups".
func ownerPhrase(w *wording, negated bool) bool {
	w.load("owner")
	loaded := len(w.args)
	given := make(map[string]bool)
	w.at--
	for {
		at := w.at
		not := w.word("!") || negated
		negated = false
		option := ""
		switch {
		case w.word("owner", "socket", "exists"):
			option = "--socket-exists"
		case w.word("owner", "UID", "match"):
			option = "--uid-owner"
		case w.word("owner", "GID", "match"):
			option = "--gid-owner"
		}
		if option == "" || given[option] {
			w.at = at
			break
		}
		given[option] = true
		if option == "--socket-exists" {
			w.emit(not, option)
			continue
		}
		id, ok := w.next()
		if !ok {
			return false
		}
		known := w.ownerID(not, option, id)
		if option == "--gid-owner" && w.word("incl.", "suppl.", "groups") && known {
			w.emit(false, "--suppl-groups")
		}
	}
	if len(w.args) == loaded {
		w.args = w.args[:loaded-2] // all were unknown names
	}
	return len(given) > 0
}

// ownerID emits a test of a user or group; it returns false for an unknown name.
func (w *wording) ownerID(negated bool, option string, id Token) bool {
	if id.Text == "root" { // 0 on every system
		id.Text, w.names = "0", true
	}
	if _, ok := anID.parse(id.Text); ok {
		w.emit(negated, option, id)
		return true
	}
	w.names = true
	kind := map[string]string{"--uid-owner": "user", "--gid-owner": "group"}[option]
	w.notes["users"] = "users and groups are listed by name, and names have other numbers on other hosts: a rule with one cannot be evaluated"
	w.unknownName(kind+" name "+id.Text, negated, Token{Text: "owner", Column: id.Column})
	return false
}

func macPhrase(w *wording, negated bool) bool {
	w.load("mac")
	return !negated && w.notValue("--mac-source")
}

func iprangePhrase(option string) phrase {
	return func(w *wording, negated bool) bool {
		w.load("iprange")
		if negated || !w.word("IP", "range") || !w.notValue(option) {
			return false
		}
		return option != "--src-range" || !w.word("destination", "IP", "range") || w.notValue("--dst-range")
	}
}

func lengthPhrase(w *wording, negated bool) bool {
	w.load("length")
	return !negated && w.notValue("--length")
}

func accountingPhrase(w *wording, negated bool) bool {
	w.load("nfacct")
	return !negated && w.value(accountingName)
}

func pkttypePhrase(w *wording, negated bool) bool {
	w.load("pkttype")
	not := w.word("!=")
	t := Token{}
	ok := not || w.word("=")
	if ok {
		t, ok = w.next()
	}
	w.emit(not, "--pkt-type", t)
	return ok && !negated
}
