package redact

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"regexp"
	"strings"
)

// This file replaces the names of kube-proxy's chains and sets of one endpoint: they are hashes of its address, or have it.

var (
	endpointChain = regexp.MustCompile(`\bKUBE-SEP-[A-Z2-7]{16}\b`)
	endpointRule  = regexp.MustCompile(`(?m)^(?:\[\d+:\d+\] )?-A (KUBE-SEP-[A-Z2-7]{16}) (?:.* )?-p ([a-z]+) .*--comment "?([^" ]+)"? .*--to-destination (\S+)`)
	// nftEndpoint is the end of a name of kube-proxy's mode nftables: a hash, and service port, protocol and address, perhaps
	// cut off. Of addresses of IPv6 dots replace the colons.
	nftEndpoint = regexp.MustCompile(`\b([A-Z2-7]{8})-([a-z0-9.-]+/[a-z0-9.-]+/[a-z]+/[a-z0-9-]*)__([0-9a-f.]+)(/\d+)?`)
)

// hash is how kube-proxy shortens a text in names.
func hash(text string, length int) string {
	sum := sha256.Sum256([]byte(text))
	return base32.StdEncoding.EncodeToString(sum[:])[:length]
}

// Learn reads rules of iptables-save: the chains of endpoints get the names that kube-proxy gives those of their
// pseudonyms. Those that are not in rules that it has read get other ones.
func (r *Redactor) Learn(rules string) {
	for _, m := range endpointRule.FindAllStringSubmatch(rules, -1) {
		name, protocol, service, endpoint := m[1], m[2], m[3], m[4]
		if "KUBE-SEP-"+hash(service+protocol+endpoint, 16) == name {
			r.chains[name] = "KUBE-SEP-" + hash(service+protocol+r.scan(endpoint), 16)
		}
	}
}

// chain is the pseudonym of the name of a chain of an endpoint.
func (r *Redactor) chain(name string) string {
	if p, ok := r.chains[name]; ok {
		return p
	}
	return "KUBE-SEP-" + r.secretHash(name, 16)
}

func (r *Redactor) secretHash(name string, length int) string {
	return base32.StdEncoding.EncodeToString(r.sum("chain", []byte(name)))[:length]
}

// nftName is the pseudonym of the end of a name in mode nftables.
func (r *Redactor) nftName(name string) string {
	m := nftEndpoint.FindStringSubmatch(name)
	old, service, address, port := m[1], m[2], m[3], m[4]
	a, err := netip.ParseAddr(address)
	if err != nil {
		a, err = netip.ParseAddr(strings.ReplaceAll(address, ".", ":"))
	}
	if err != nil || hash(service+"__"+address+port, len(old)) != old {
		return r.secretHash(name, len(old)) + "-" + service + "__x" + port
	}
	renamed := service + "__" + strings.ReplaceAll(r.Address(a).String(), ":", ".") + port
	return hash(renamed, len(old)) + "-" + renamed
}
