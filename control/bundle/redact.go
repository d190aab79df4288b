package bundle

import (
	"regexp"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/bundle/redact"
)

// Redact returns the bundle with pseudonyms instead of addresses, MAC addresses and host names, in all files of text. It
// leaves out packets.
func (b *Bundle) Redact(key redact.Key) *Bundle {
	r := redact.New(key)
	for _, host := range b.hosts() {
		r.Name(host)
	}
	for _, f := range b.Files {
		if strings.HasSuffix(f.Name, ".rules") {
			r.Learn(string(b.contents[f.Name]))
		}
	}
	out := &Bundle{Manifest: b.Manifest}
	out.Files, out.Notes = nil, nil
	if b.Node != "" {
		out.Node = r.Name(b.Node)
	}
	out.Flow = r.Text(b.Flow, true)
	for _, n := range b.Notes {
		out.Notes = append(out.Notes, r.Text(n, true))
	}
	for _, f := range b.Files {
		if f.Name == PacketsFile {
			out.Note("%s: left out: packets are not redacted", f.Name)
			continue
		}
		anyName := !strings.HasSuffix(f.Name, ".rules") && !strings.HasPrefix(f.Name, "ip") && f.Name != "nftables.json"
		out.Add(f.Name, f.About, []byte(r.Text(string(b.contents[f.Name]), anyName)))
	}
	return out
}

var (
	uname    = regexp.MustCompile(`(?m)^Linux (\S+) `)
	override = regexp.MustCompile(`(?m)(?:^--hostname-override(?:=|\n)|^hostnameOverride: *)"?([A-Za-z0-9._-]+)`)
	inURL    = regexp.MustCompile(`https?://([A-Za-z][A-Za-z0-9._-]*)`)
	inJSON   = regexp.MustCompile(`"node(?:Name)?": ?"([^"]+)"`)
)

// hosts are the host names that the bundle has in places of their own, the longest first.
func (b *Bundle) hosts() []string {
	var hosts []string
	find := func(file string, patterns ...*regexp.Regexp) {
		for _, p := range patterns {
			for _, m := range p.FindAllSubmatch(b.contents[file], -1) {
				hosts = append(hosts, string(m[1]))
			}
		}
	}
	find("versions.txt", uname)
	find(ProxyArgs, override, inURL)
	find(ProxyConfig, override, inURL)
	for _, file := range []string{FlowFile, ServiceFile, TablesFile, StatusFile} {
		find(file, inJSON)
	}
	if b.Node != "" {
		hosts = append(hosts, b.Node)
	}
	slices.SortFunc(hosts, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(hosts)
}
