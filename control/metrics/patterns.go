package metrics

import (
	"fmt"
	"path"
	"strings"
)

// ServicePatterns name Services: NAMESPACE/NAME each, where * stands for any characters
// but the slash. The zero value names none.
type ServicePatterns []string

// ParseServicePatterns reads patterns that are separated by commas, "shop/*,default/web"
// for example. The empty text is no pattern.
func ParseServicePatterns(text string) (ServicePatterns, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var patterns ServicePatterns
	for p := range strings.SplitSeq(text, ",") {
		p = strings.TrimSpace(p)
		namespace, name, ok := strings.Cut(p, "/")
		if !ok || namespace == "" || name == "" {
			return nil, fmt.Errorf(`service pattern %q: want NAMESPACE/NAME, where * stands for anything: "shop/*", "*/web"`, p)
		}
		for _, part := range []string{namespace, name} {
			for _, r := range part {
				if notInNames(r) {
					return nil, fmt.Errorf("service pattern %q: no namespace or Service has %q in its name: want lower case letters, digits, - and, for anything, *", p, r)
				}
			}
		}
		patterns = append(patterns, p)
	}
	return patterns, nil
}

// notInNames says whether names (DNS labels, RFC 1123) and wildcards go without it.
func notInNames(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '*'
}

// Match says whether one of the patterns names the Service.
func (p ServicePatterns) Match(namespace, name string) bool {
	for _, pattern := range p {
		// What is parsed has nothing that path.Match could complain about.
		if ok, _ := path.Match(pattern, namespace+"/"+name); ok {
			return true
		}
	}
	return false
}
