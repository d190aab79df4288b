package manifest

import (
	"io/fs"
	"os"
	"path/filepath"
)

// clusterInfo are the files of kubectl cluster-info dump below its directory, which has the file nodes.json.
var clusterInfo = []string{"*/services.json", "*/pods.json"}

// dumps are the files with objects that matter, in the directories that must-gather (oc adm inspect) and sonobuoy write. The first
// pattern of each has to match.
var dumps = [][]string{
	{
		"namespaces/*/core/services.yaml", "namespaces/*/core/endpoints.yaml", "namespaces/*/core/pods.yaml", "namespaces/*/*.yaml",
		"namespaces/*/discovery.k8s.io/endpointslices.yaml", "namespaces/*/networking.k8s.io/networkpolicies.yaml", "cluster-scoped-resources/core/nodes/*.yaml",
	},
	{
		"resources/ns/*/core_v1_services.json", "resources/ns/*/core_v1_endpoints.json", "resources/ns/*/core_v1_pods.json", "resources/ns/*/discovery.k8s.io_v1_endpointslices.json",
		"resources/ns/*/networking.k8s.io_v1_networkpolicies.json", "resources/cluster/core_v1_nodes.json", "resources/cluster/core_v1_namespaces.json",
	},
}

// dumpIn are the files of a dump in a directory, or in one below it, as must-gather has one for each image; none: it is no dump.
func dumpIn(dir string) []string {
	for _, below := range []string{"", "*/"} {
		for _, patterns := range dumps {
			if first := filesLike(dir, below+patterns[0]); len(first) > 0 {
				for _, p := range patterns[1:] {
					first = append(first, filesLike(dir, below+p)...)
				}
				return first
			}
		}
	}
	return nil
}

// filesLike are the files below a directory with names like a pattern.
func filesLike(dir, pattern string) (names []string) {
	found, err := fs.Glob(os.DirFS(dir), pattern)
	if err != nil { // the pattern is malformed
		return nil
	}
	for _, name := range found {
		names = append(names, filepath.Join(dir, name))
	}
	return names
}
