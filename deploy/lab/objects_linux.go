package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/control/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/source/manifest"
)

// loadObjects returns a function that gives the objects in force, and the configuration of the nodes.
func (l *Lab) loadObjects() func(context.Context) (*manifest.Objects, control.NodeConfig, error) {
	if l.live != nil {
		return l.live.load
	}
	return (&objectFiles{paths: l.options.Objects}).load
}

// objectFiles are the files of a lab's objects. It is safe for concurrent use.
type objectFiles struct {
	paths []string

	mu      sync.Mutex
	state   string // of the files, as of objects
	objects *manifest.Objects
}

// load returns the objects as the files are, and the configuration of the nodes. It reads the files only if they have
// changed.
func (f *objectFiles) load(context.Context) (*manifest.Objects, control.NodeConfig, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	config := proxyconfig.Default().Node
	if f.objects == nil || stateOf(f.paths, f.objects.Files) != f.state {
		objects, err := manifest.LoadOnce(nil, f.paths)
		if err != nil {
			return nil, config, err
		}
		f.objects, f.state = objects, stateOf(f.paths, objects.Files)
	}
	config.SetLab(f.objects.Lab)
	return f.objects, config, nil
}

// stateOf is the times and sizes of paths, of what is in directories among them, and of files. A file that cannot be
// read counts as missing.
func stateOf(lists ...[]string) string {
	var b strings.Builder
	add := func(path string) bool {
		info, err := os.Stat(path)
		if err != nil {
			fmt.Fprintf(&b, "%s missing\n", path)
			return false
		}
		fmt.Fprintf(&b, "%s %d %d\n", path, info.ModTime().UnixNano(), info.Size())
		return info.IsDir()
	}
	for _, list := range lists {
		for _, path := range list {
			if add(path) {
				inside, _ := filepath.Glob(filepath.Join(path, "*"))
				for _, p := range inside {
					add(p)
				}
			}
		}
	}
	return b.String()
}
