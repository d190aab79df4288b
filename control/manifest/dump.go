package manifest

import (
	"io/fs"
	"os"
	"path/filepath"
)

// dumps are the files with objects that matter, in the directories that programs write about a cluster: kubectl cluster-info dump,
// must-gather (oc adm inspect), and sonobuoy. The first pattern of each has to match.
var dumps = [][]string{
	{"*/services.json", "*/pods.json", "*.json", "*.yaml"},
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
func dumpIn(dir string) (names []string) {
	for _, below := range []string{"", "*/"} {
		for _, patterns := range dumps {
			for i, p := range patterns {
				found, err := fs.Glob(os.DirFS(dir), below+p)
				if err != nil || i == 0 && len(found) == 0 {
					break
				}
				for _, name := range found {
					names = append(names, filepath.Join(dir, name))
				}
			}
			if len(names) > 0 {
				return names
			}
		}
	}
	return nil
}
