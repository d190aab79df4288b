// Package kubernetes holds the manifests of this directory, for commands that install
// nfqproxy on a cluster.
package kubernetes

import (
	"embed"
	"io/fs"
)

//go:embed base/*.yaml cleanup/*.yaml observe/*.yaml
var manifests embed.FS

// Manifests gives the files of the directories base, cleanup and observe, with their paths: one object
// in each file, besides base/kustomization.yaml and observe/kustomization.yaml. The address of the API server and the pod
// prefixes in base/configmap.yaml are examples, and cleanup/pod.yaml is for the node NODE.
func Manifests() fs.FS { return manifests }
