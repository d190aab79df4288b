package manifest

import (
	"regexp"
	"strings"
)

// This file knows rows of kubectl get below no names of columns, as grep leaves them.

// bareRows are the shapes of rows behind the name, and the names of their columns.
var bareRows = []struct{ shape, columns string }{
	{`(ClusterIP|NodePort|LoadBalancer|ExternalName) +\S+ +\S+ +(\d+\S*/|<none>)`, "TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE SELECTOR"},
	{`\d+/\d+ +[A-Z]\S+ +\d`, "READY STATUS RESTARTS AGE IP NODE"},
	{`IPv[46] +\S+ +\S+ +\d+[smhdy]`, "ADDRESSTYPE PORTS ENDPOINTS AGE"},
	{`\d+\.\d+\.\d+\.\d+:\d+\S*( \+ \d+ more\.\.\.)? +\d+[smhdy]`, "ENDPOINTS AGE"},
	{`(Not)?Ready\S* +\S+ +\d+[smhdy]\S* +v1\.`, "STATUS ROLES AGE VERSION INTERNAL-IP"},
}

// bareRow is such a row, with its namespace and its shape as groups.
var bareRow = func() *regexp.Regexp {
	var shapes []string
	for _, r := range bareRows {
		shapes = append(shapes, "("+strings.ReplaceAll(r.shape, "(", "(?:")+")")
	}
	return regexp.MustCompile(`^(?:([a-z0-9][\w.-]*) +)?[a-z0-9][\w./:-]* +(?:` + strings.Join(shapes, "|") + `)`)
}()

// bareColumns are the names of the columns of such a row; nil: it is none.
func bareColumns(line string) []string {
	const first = 2 // the group of the first shape
	m := bareRow.FindStringSubmatch(line)
	for i, r := range bareRows {
		if m != nil && m[first+i] != "" {
			columns := "NAME " + r.columns
			if m[1] != "" {
				columns = "NAMESPACE " + columns
			}
			return strings.Fields(columns)
		}
	}
	return nil
}
