//go:build release

package installtest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// objects are a node and a Service without endpoints, as a daemon has saved them: it serves by them while the API server is away.
const objects = `---
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "this"}, "spec": {"podCIDR": "10.244.0.0/24"}, "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}
---
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"}, "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.10", "ports": [{"port": 80, "protocol": "TCP"}]}}
`

// systemctl is in the place of systemd's: the machine has no systemd. It keeps its arguments, and stops the
// daemon as "disable --now" does.
const systemctl = `#!/bin/sh
echo "$*" >>/tmp/systemctl.log
case "$*" in
*disable*--now*nfqproxy.service)
	pid=$(cat /tmp/pid) || exit 0
	kill "$pid"
	while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done;;
esac`

const (
	ready  = `test "$(curl --silent --max-time 2 http://127.0.0.1:10256/readyz)" = ok`
	tables = `nft list tables`
)

// serve starts the daemon as the unit does, with the flags of /etc/default/nfqproxy.
func (m *machine) serve() {
	m.t.Helper()
	m.run("ip address add 192.0.2.1/24 dev lo")
	m.run("cat >/usr/bin/systemctl <<'E'\n" + systemctl + "\nE\nchmod 755 /usr/bin/systemctl; mkdir -p /run/systemd/system /run/nfqproxy /var/lib/nfqproxy")
	m.run("cat >/var/lib/nfqproxy/this.yaml <<'E'\n" + objects + fmt.Sprintf("# sha256 %x\nE", sha256.Sum256([]byte(objects))))
	m.run(`echo 'NFQPROXY_FLAGS="--master http://127.0.0.1:9 --state-dir /var/lib/nfqproxy --hostname-override this"' >>/etc/default/nfqproxy`)
	m.start(`. /etc/default/nfqproxy; echo $$ >/tmp/pid; exec $(eval echo "$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/nfqproxy.service)")`)
	m.eventually(ready)
	m.expect(tables, "table ip nfqproxy\n")
}

// use runs what a user has after an installation.
func (m *machine) use(version string) {
	m.t.Helper()
	m.expect("nfqproxy version", "^nfqproxy "+version+" ")
	m.expect("MANPAGER=cat man nfqproxy-run", "Run +the +service +proxy +of +this +node")
	m.expect("man nfqproxy", "nfqproxy-cleanup")
	m.expect(`source /usr/share/bash-completion/bash_completion; source /usr/share/bash-completion/completions/nfqproxy; COMP_WORDS=(nfqproxy clea) COMP_CWORD=1 COMP_LINE='nfqproxy clea' COMP_POINT=13
		__start_nfqproxy nfqproxy 2>/dev/null; echo "${COMPREPLY[@]}"`, "^cleanup")
	m.expect("kubectl-nfqproxy flows --help", `(?m)^Usage:\n +kubectl nfqproxy flows `)
	m.expect("kubectl_complete-nfqproxy fl", "^flows\\b")
	if out := m.run("systemd-analyze verify --man=no nfqproxy.service 2>&1"); strings.Contains(out, "nfqproxy.service") {
		m.t.Error(out)
	}
}

// licenses looks for the licences of what is linked into the program.
func (m *machine) licenses(path string) {
	m.t.Helper()
	text := m.run("cat " + path)
	for _, want := range []string{`(?m)^    Go 1\.`, `(?m)^    k8s\.io/client-go v`, `(?m)^k8s\.io/client-go v[^ ]+: LICENSE\n(.+\n)*=+\n\n +Apache License\n`, `(?m)^github\.com/prometheus/procfs .*: NOTICE$`} {
		if !regexp.MustCompile(want).MatchString(text) {
			m.t.Errorf("%s lacks %s", path, want)
		}
	}
}

// TestDeb installs, upgrades, removes and purges the package. An upgrade keeps the daemon, its rules and the
// configuration; the removal takes the rules along, and the purge everything.
func TestDeb(t *testing.T) {
	m := newMachine(t, "dpkg", "dpkg-deb", "man", "nft", "curl", "systemd-analyze")
	_, version := release(t)
	deb := "/mnt/nfqproxy_" + strings.TrimPrefix(version, "v") + "_" + runtime.GOARCH + ".deb"
	m.run("dpkg --no-triggers --path-include='/usr/share/*' --install " + deb)
	m.use(version)
	m.expect("dpkg-query -W -f '${Conffiles}' nfqproxy", "(?s)/etc/default/nfqproxy .*/etc/nfqproxy/config.conf ")
	m.expect("cat /usr/share/doc/nfqproxy/copyright", "THIRD_PARTY_LICENSES")
	m.licenses("/usr/share/doc/nfqproxy/THIRD_PARTY_LICENSES")
	if out := m.run("dpkg --verify nfqproxy"); out != "" {
		t.Error(out)
	}
	m.serve()

	m.run("dpkg-deb --raw-extract " + deb + " /tmp/newer && sed -i 's/^Version: .*/Version: 999.0.0/' /tmp/newer/DEBIAN/control && dpkg-deb -Znone --build /tmp/newer /tmp/newer.deb")
	m.run("dpkg --no-triggers --install /tmp/newer.deb")
	m.expect("cat /tmp/systemctl.log", "^daemon-reload\ntry-restart nfqproxy.service\n$")
	m.expect("dpkg-query -W -f '${Version}' nfqproxy", "^999.0.0$")
	m.run(ready)
	m.expect(tables, "table ip nfqproxy\n")
	m.expect("cat /etc/default/nfqproxy", "(?m)^NFQPROXY_FLAGS=")

	m.expect("dpkg --remove nfqproxy", "removed nftables table ip nfqproxy")
	m.expect(tables, "^$")
	m.expect("tail -n 2 /tmp/systemctl.log", "^--no-reload disable --now nfqproxy.service\ndaemon-reload\n$")
	m.run("test -e /etc/default/nfqproxy && test -e /var/lib/nfqproxy && ! ls /usr/bin | grep nfqproxy")
	m.run("dpkg --purge nfqproxy")
	m.run("! test -e /etc/default/nfqproxy && ! test -e /etc/nfqproxy && ! test -e /var/lib/nfqproxy")
}

// TestRemovalBesideDaemon: the package is removed while another nfqproxy serves, such as a DaemonSet's.
func TestRemovalBesideDaemon(t *testing.T) {
	m := newMachine(t, "dpkg", "nft", "curl")
	m.run("dpkg --no-triggers --install /mnt/nfqproxy_*_" + runtime.GOARCH + ".deb")
	m.serve()
	m.run("rm /tmp/pid")
	m.expect("dpkg --purge nfqproxy", "kernel rules may be left")
	m.run(ready)
	m.expect(tables, "table ip nfqproxy\n")
}

// TestRPM: the same with rpm.
func TestRPM(t *testing.T) {
	m := newMachine(t, "rpm", "man", "nft", "curl", "systemd-analyze")
	_, version := release(t)
	file := "/mnt/nfqproxy-" + strings.TrimPrefix(version, "v") + "-1." + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH] + ".rpm"
	m.expect("rpm --query --package --list "+file, "(?s)^/etc/default/nfqproxy\n/etc/nfqproxy/config.conf\n/usr/bin/kubectl-nfqproxy\n/usr/bin/kubectl_complete-nfqproxy\n/usr/bin/nfqproxy\n/usr/bin/nfqproxyd\n/usr/lib/systemd/system/nfqproxy.service\n.*"+
		"/usr/share/licenses/nfqproxy/LICENSE\n/usr/share/licenses/nfqproxy/THIRD_PARTY_LICENSES\n/usr/share/man/man1/nfqproxy-balance.1.gz\n.*/usr/share/zsh/site-functions/_nfqproxy\n$")
	m.expect("rpm --query --package --configfiles "+file, "^/etc/default/nfqproxy\n/etc/nfqproxy/config.conf\n$")
	m.expect("rpm --query --package --queryformat '%{LICENSE} %{VERSION} %{BUILDHOST}' "+file, "^Apache-2.0 "+strings.TrimPrefix(version, "v")+" localhost$")
	// This machine's database is dpkg's.
	const rpm = "rpm --dbpath /tmp/rpm --nodeps "
	m.run(rpm + "--install " + file)
	m.use(version)
	m.licenses("/usr/share/licenses/nfqproxy/THIRD_PARTY_LICENSES")
	m.serve()
	m.run(rpm + "--upgrade --force " + file)
	m.run(ready)
	m.expect(tables, "table ip nfqproxy\n")
	m.expect("cat /etc/default/nfqproxy", "(?m)^NFQPROXY_FLAGS=")
	m.expect(rpm+"--erase nfqproxy", "removed nftables table ip nfqproxy")
	m.expect(tables, "^$")
	m.run("! ls /usr/bin | grep nfqproxy")
}

// TestArchive: the archive of this platform has the program and the licences, and the checksums are right.
func TestArchive(t *testing.T) {
	m := newMachine(t, "tar", "sha256sum")
	_, version := release(t)
	m.run("cd /mnt && sha256sum --check --strict SHA256SUMS")
	m.expect("mkdir /tmp/x && tar -C /tmp/x -xzf /mnt/nfqproxy-"+version+"-linux-"+runtime.GOARCH+".tar.gz && /tmp/x/nfqproxy version", "^nfqproxy "+version+" ")
	m.licenses("/tmp/x/THIRD_PARTY_LICENSES")
	m.run("cd /mnt && for f in *.tar.gz; do tar -tzf $f | grep -qx THIRD_PARTY_LICENSES || { echo $f; exit 1; }; done")
}

// TestImage: containerd imports the image with its platforms and runs it.
func TestImage(t *testing.T) {
	m := newMachine(t, "containerd", "ctr", "runc")
	_, version := release(t)
	m.run(`mkdir /tmp/c && cat >/tmp/c/config.toml <<'E'
version = 2
root = "/tmp/c/root"
state = "/tmp/c/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "/tmp/c/socket"
[ttrpc]
address = "/tmp/c/ttrpc"
E`)
	m.start("exec containerd --config /tmp/c/config.toml")
	// containerd's namespace is a group of processes, too.
	namespace := fmt.Sprintf("nfqproxy-test-%d", os.Getpid())
	t.Cleanup(func() {
		for _, pattern := range []string{"*/%s/*", "*/%s", "%s/*", "%s"} {
			groups, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", fmt.Sprintf(pattern, namespace)))
			for _, g := range groups {
				_ = os.Remove(g)
			}
		}
	})
	ctr := "ctr --address /tmp/c/socket --namespace " + namespace + " "
	m.eventually(ctr + "version")
	image := "docker.io/library/nfqproxy:" + version
	m.run(ctr + "images import --all-platforms /mnt/nfqproxy-" + version + "-image.tar")
	m.expect(ctr+"images list", image+" .*linux/amd64,linux/arm64")
	m.expect(ctr+"run --rm "+image+" one /nfqproxy version", "^nfqproxy "+version+" ")
	m.expect(ctr+"run --rm "+image+" two", "^nfqproxy shows which way a connection")
	m.expect(ctr+"run --rm "+image+" daemon /nfqproxyd --version", "^nfqproxyd "+version+"\n")
	m.run("mkdir /tmp/image && " + ctr + "images mount " + image + " /tmp/image")
	m.expect("head -n 2 /tmp/image/licenses/LICENSE", "Apache License")
	m.licenses("/tmp/image/licenses/THIRD_PARTY_LICENSES")
	m.run("umount /tmp/image")
	m.run(ctr + "images remove " + image)
	m.run(ctr + "images import /mnt/nfqproxy-" + version + "-image-" + runtime.GOARCH + ".tar")
	m.expect(ctr+"run --rm "+image+" three /nfqproxy version", "^nfqproxy "+version+" ")
}

// TestReproducible: a release of the same sources in another directory is equal.
func TestReproducible(t *testing.T) {
	dir, version := release(t)
	// Two folders deeper than this one, and without git's.
	copied := filepath.Join(t.TempDir(), "another", "directory")
	script := `mkdir -p "$1" && git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- -cf - | tar -C "$1" -xf -
		git log -1 --format=%ct && git rev-parse HEAD && ls bin/release/*.spdx.json | sed 's/.*'"$2"'-//; s/\.spdx\.json//' | xargs`
	cmd := exec.Command("sh", "-euc", script, "copy", copied, version)
	cmd.Dir = source
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	values := strings.Split(string(out), "\n")
	cmd = exec.Command("make", "--no-print-directory", "release", "VERSION="+version, "REVISION="+values[1], "PLATFORMS="+values[2])
	cmd.Dir = copied
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=", "SOURCE_DATE_EPOCH="+values[0])
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	first, second := sums(t, dir), sums(t, filepath.Join(copied, "bin/release"))
	if first != second {
		t.Errorf("the releases differ:\n%s\n%s", first, second)
	}
}

func sums(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + fmt.Sprintf("%x\n", sha256.Sum256(text))
}
