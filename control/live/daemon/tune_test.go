package daemon

import (
	"testing"
	"testing/fstest"
)

func TestCgroupMemory(t *testing.T) {
	const v1 = "9:name=systemd:/a/b\n5:cpuacct,memory:/kubepods/pod1/c1\n4:freezer:/x\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64 // 0: no limit
	}{
		"version 2, in a container": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "419430400\n"}, 419430400},
		"version 2, of a unit": {map[string]string{
			"proc/self/cgroup": "0::/system.slice/nfqproxy.service\n", "sys/fs/cgroup/system.slice/nfqproxy.service/memory.max": "max\n",
			"sys/fs/cgroup/system.slice/memory.max": "1000000000\n",
		}, 1000000000},
		"version 2, the group above has less": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "500\n", "sys/fs/cgroup/a/memory.max": "400\n",
		}, 400},
		"version 2, none":                 {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 0},
		"version 2, a path of the host's": {map[string]string{"proc/self/cgroup": "0::/../../kubepods/x\n", "sys/fs/cgroup/memory.max": "300\n"}, 300},
		"version 1":                       {map[string]string{"proc/self/cgroup": v1, "sys/fs/cgroup/memory/kubepods/pod1/c1/memory.limit_in_bytes": "700\n", "sys/fs/cgroup/memory/kubepods/memory.limit_in_bytes": "9223372036854771712\n"}, 700},
		"version 1, in a container":       {map[string]string{"proc/self/cgroup": v1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "800\n"}, 800},
		"version 1, none":                 {map[string]string{"proc/self/cgroup": v1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
		"both, memory by version 1":       {map[string]string{"proc/self/cgroup": v1 + "0::/kubepods/pod1/c1\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "900\n"}, 900},
		"both, memory by version 2":       {map[string]string{"proc/self/cgroup": "1:name=systemd:/\n0::/a\n", "sys/fs/cgroup/unified/a/memory.max": "600\n"}, 600},
		"no groups":                       {map[string]string{}, 0},
		"nonsense":                        {map[string]string{"proc/self/cgroup": "x\n0::/\n", "sys/fs/cgroup/memory.max": "-5\n"}, 0},
	} {
		root := fstest.MapFS{}
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		bytes, ok := cgroupMemory(root)
		if c.want == 0 && (ok) || c.want > 0 && (!ok || bytes != c.want) {
			t.Errorf("%s: %d, %v, want %d", name, bytes, ok, c.want)
		}
	}
}
