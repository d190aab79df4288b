// Package savednode reads what a bundle has of a node: the rules, sets, addresses, routes and sysctls that decide what the
// node does with a packet.
package savednode

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/bundle"
	"github.com/nfqproxy/nfqproxy/datapath/paper/conntracklist"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
)

// Node is a node as a bundle has it. It is immutable.
type Node struct {
	// Name is the node's name in the cluster, as far as the bundle has it: that of kube-proxy's configuration, or else the
	// host name.
	Name string
	// Path is the bundle's.
	Path    string
	bundle  *bundle.Bundle
	sysctls map[string]string
}

// Open opens the bundle of one node, an archive or a directory.
func Open(path string) (*Node, error) {
	if isDirectory(path) && !isFile(filepath.Join(path, "bundle.json")) {
		if nodes, err := within(path); err == nil && len(nodes) > 0 {
			return nil, fmt.Errorf("%s has the bundles of %d nodes: give one of them, such as %s", path, len(nodes), nodes[0])
		}
	}
	b, err := bundle.Open(path)
	if err != nil {
		return nil, err
	}
	n := &Node{Path: path, bundle: b}
	n.Name = cmp.Or(nodeName(b), b.Node)
	n.sysctls = readSysctls(b.File(bundle.SysctlsFile))
	return n, nil
}

// OpenAll opens bundles of one node each, and those of all nodes that are in a directory, sorted by name.
func OpenAll(given ...string) ([]*Node, error) {
	var paths []string
	for _, path := range given {
		if !isDirectory(path) || isFile(filepath.Join(path, "bundle.json")) {
			paths = append(paths, path)
			continue
		}
		within, err := within(path)
		if err != nil {
			return nil, err
		}
		if len(within) == 0 {
			return nil, fmt.Errorf("%s: no bundle: want what nfqproxy collect or its script wrote, or a directory with several", path)
		}
		paths = append(paths, within...)
	}
	var nodes []*Node
	names := make(map[string]string)
	for _, p := range paths {
		n, err := Open(p)
		if err != nil {
			return nil, err
		}
		if other, ok := names[n.Name]; ok {
			return nil, fmt.Errorf("%s and %s are both of node %s: give one bundle of each node", other, p, n.Name)
		}
		names[n.Name] = p
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

// within are the bundles in a directory.
func within(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if IsArchive(path) || isFile(filepath.Join(path, "bundle.json")) {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// IsArchive reports whether the name is that of an archive.
func IsArchive(path string) bool {
	return strings.HasSuffix(path, ".tar.gz") || strings.HasSuffix(path, ".tgz")
}

// IsPath reports whether a text is meant as the path of a bundle, and not as the name of a node: it has a slash, has the
// name of an archive, is the directory of a bundle, or is a file whose name has an extension.
func IsPath(text string) bool {
	return strings.ContainsRune(text, '/') || IsArchive(text) || isFile(filepath.Join(text, "bundle.json")) || filepath.Ext(text) != "" && isFile(text)
}

// IsBundle reports whether a path, which may also be that of another file, is the path of a bundle: of an archive or a directory.
func IsBundle(path string) bool { return IsArchive(path) || isDirectory(path) }

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

var (
	hostnameArg    = regexp.MustCompile(`(?m)^--hostname-override(?:=|\n)(\S+)$`)
	hostnameConfig = regexp.MustCompile(`(?m)^hostnameOverride: *"?([^"\s]+)`)
)

// nodeName is the name that kube-proxy was given for the node; empty: none.
func nodeName(b *bundle.Bundle) string {
	for file, pattern := range map[string]*regexp.Regexp{bundle.ProxyArgs: hostnameArg, bundle.ProxyConfig: hostnameConfig} {
		if m := pattern.FindSubmatch(b.File(file)); m != nil {
			return string(m[1])
		}
	}
	return ""
}

// Rules is a file with rules of the node.
type Rules struct {
	// File is the path of the file: the bundle's, and the name in it.
	File    string
	Text    []byte
	Backend iptables.Backend
	Family  iptables.Family
}

var ruleFiles = []struct {
	name    string
	backend iptables.Backend
	family  iptables.Family
}{
	{"iptables-legacy.rules", iptables.BackendLegacy, iptables.IPv4}, {"iptables-nft.rules", iptables.BackendNFT, iptables.IPv4},
	{bundle.RulesFile, iptables.BackendUnknown, iptables.IPv4},
	{"ip6tables-legacy.rules", iptables.BackendLegacy, iptables.IPv6}, {"ip6tables-nft.rules", iptables.BackendNFT, iptables.IPv6},
	{bundle.Rules6File, iptables.BackendUnknown, iptables.IPv6},
}

// IPTables are the node's rules of iptables of a family, or of both families with FamilyUnknown: a file for each back end
// that has some.
func (n *Node) IPTables(family iptables.Family) (list []Rules) {
	for _, f := range ruleFiles {
		text := n.bundle.File(f.name)
		if family != iptables.FamilyUnknown && f.family != family || !hasTable.Match(text) {
			continue
		}
		list = append(list, Rules{n.file(f.name), text, f.backend, f.family})
	}
	return list
}

// hasTable finds a table of iptables-save.
var hasTable = regexp.MustCompile(`(?m)^\*[a-z]+$`)

// file is the path of a file of the bundle.
func (n *Node) file(name string) string { return strings.TrimSuffix(n.Path, "/") + "/" + name }

// NFTables is the node's ruleset of nftables, which has the rules of iptables-nft, too; false: there is none.
func (n *Node) NFTables() (Rules, bool) {
	text := n.bundle.File(bundle.NFTablesFile)
	return Rules{File: n.file(bundle.NFTablesFile), Text: text}, nftTable.Match(text)
}

var nftTable = regexp.MustCompile(`(?m)^table ([a-z0-9]+) (\S+) \{`)

// Has reports whether the bundle has a file, which may be empty.
func (n *Node) Has(file string) bool { return n.bundle.File(file) != nil }

// Missing are the notes of the bundle about what could not be collected.
func (n *Node) Missing() []string { return n.bundle.Notes }

// MissingRules are those of the notes about rules and sets.
func (n *Node) MissingRules() (notes []string) {
	for _, m := range n.bundle.Notes {
		program, _, _ := strings.Cut(m, " ")
		if strings.HasPrefix(program, "ip") && strings.Contains(program, "tables") || program == "nft" || program == "ipset" || program == "ipvsadm" {
			notes = append(notes, m)
		}
	}
	return notes
}

// IPVS are the node's virtual servers; nil: it has none.
func (n *Node) IPVS() (*ipvs.State, error) {
	const file = "ipvsadm-save.txt"
	text := n.bundle.File(file)
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}
	s, err := ipvs.Read(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.file(file), err)
	}
	return s, nil
}

// Entries are the node's connection entries of both families, without one at the end that is cut off. false: the bundle has none, because they could not be listed.
func (n *Node) Entries() (entries []conntracklist.Entry, collected bool, err error) {
	for _, file := range []string{"conntrack4.txt", "conntrack6.txt"} {
		text := n.bundle.File(file)
		if text == nil {
			continue
		}
		collected = true
		of, err := conntracklist.Read(bytes.NewReader(text))
		if cut, ok := errors.AsType[*conntracklist.Error](err); ok && cut.Cut {
			err = nil
		}
		if err != nil {
			return nil, false, fmt.Errorf("%s: %w", n.file(file), err)
		}
		entries = append(entries, of...)
	}
	return entries, collected, nil
}

// Sets are the node's ipsets, with the name of their file. nil: the bundle has none.
func (n *Node) Sets() (map[string]*iptables.Set, error) {
	text := n.bundle.File(bundle.SetsFile)
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}
	sets, err := iptables.ParseSets(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.file(bundle.SetsFile), err)
	}
	return sets, nil
}
