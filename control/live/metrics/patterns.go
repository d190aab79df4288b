package metrics

import (
	"fmt"
	"path"
	"strings"
)

// ServicePatterns select Services: NAMESPACE/NAME each, where * matches any characters
// except the slash. The zero value selects none.
type ServicePatterns []string

// ParseServicePatterns parses patterns separated by commas, for example "shop/*,default/web".
// The empty text has no patterns.
func ParseServicePatterns(text string) (ServicePatterns, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var patterns ServicePatterns
	for p := range strings.SplitSeq(text, ",") {
		p = strings.TrimSpace(p)
		namespace, name, ok := strings.Cut(p, "/")
		if !ok || namespace == "" || name == "" {
			return nil, fmt.Errorf(`service pattern %q: want NAMESPACE/NAME, where * matches anything: "shop/*", "*/web"`, p)
		}
		for _, part := range []string{namespace, name} {
			for _, r := range part {
				if notInNames(r) {
					return nil, fmt.Errorf("service pattern %q: invalid character %q: want lower-case letters, digits, - and the wildcard *", p, r)
				}
			}
		}
		patterns = append(patterns, p)
	}
	return patterns, nil
}

// notInNames reports whether a character is invalid in names (DNS labels, RFC 1123) and patterns.
func notInNames(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '*'
}

// Match reports whether one of the patterns matches the Service.
func (p ServicePatterns) Match(namespace, name string) bool {
	for _, pattern := range p {
		// path.Match has no errors for patterns that were parsed.
		if ok, _ := path.Match(pattern, namespace+"/"+name); ok {
			return true
		}
	}
	return false
}
