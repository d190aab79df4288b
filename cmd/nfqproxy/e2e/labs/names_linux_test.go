package labs

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// namesObjects are a headless Service with named endpoints, and an alias of another Service.
const namesObjects = `---
apiVersion: v1
kind: Service
metadata: {name: each, namespace: default}
spec: {clusterIP: None, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: each-1, namespace: default, labels: {kubernetes.io/service-name: each}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints:
- {addresses: [10.244.1.2], hostname: first, nodeName: kind-worker, targetRef: {kind: Pod, namespace: default, name: my-nginx-1}}
- {addresses: [10.244.2.2], hostname: second, nodeName: kind-worker2, targetRef: {kind: Pod, namespace: default, name: my-nginx-2}}
---
apiVersion: v1
kind: Service
metadata: {name: alias, namespace: kube-system}
spec: {type: ExternalName, externalName: my-nginx-service.default.svc.cluster.local}
`

// namedLab starts a copy of the lab kind with more objects, and returns its file.
func namedLab(t *testing.T, name, objects string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if code, _, stderr := e2etest.Run(t, nil, "lab", "init", "kind", dir); code != 0 {
		t.Fatal(stderr)
	}
	file := filepath.Join(dir, "kind.yaml")
	text := strings.Replace(e2etest.ReadFile(t, file), "name: kind\n", "name: "+name+"\n", 1)
	if err := os.WriteFile(file, []byte(text+objects), 0o600); err != nil {
		t.Fatal(err)
	}
	startLab(t, file)
	return file
}

// TestNamesInALab: in a pod, names are those of the cluster: for programs of this machine, by its own C library. It runs
// before the parallel tests, as TestPathsInALab.
func TestNamesInALab(t *testing.T) {
	for _, tool := range []string{"curl", "getent", "bash"} {
		netnstest.RequireTool(t, tool)
	}
	file := namedLab(t, "names", namesObjects)
	in := func(host string, command ...string) (string, int) {
		t.Helper()
		code, stdout, _ := e2etest.Run(t, nil, append([]string{"lab", "exec", "--lab", "names", host, "--"}, command...)...)
		return stdout, code
	}
	const resolv = "search %s.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"
	for _, tt := range []struct {
		host, command string
		want          string // a regular expression
		code          int
	}{
		{"shell", "curl -s http://my-nginx-service/", `^{"pod":"default/my-nginx-[12]",.*"client":"10.244.1.9:`, 0},
		{"shell", "curl -s http://my-nginx-service.default.svc.cluster.local/", `^{"pod":"default/my-nginx-`, 0},
		{"kube-system/coredns-1", "curl -s http://my-nginx-service.default/", `^{"pod":"default/my-nginx-`, 0},
		{"kube-system/coredns-1", "getent hosts my-nginx-service", `^$`, 2},
		{"kube-system/coredns-1", "curl -s http://alias/", `^{"pod":"default/my-nginx-`, 0},
		{"shell", "getent hosts my-nginx-service", `^10.96.118.136 +my-nginx-service.default.svc.cluster.local\n$`, 0},
		{"shell", "getent ahostsv4 each | cut -d ' ' -f 1 | sort -u", `^10.244.1.2\n10.244.2.2\n$`, 0},
		{"shell", "curl -s http://second.each/", `^{"pod":"default/my-nginx-2"`, 0},
		{"shell", "getent hosts 10.96.118.136", `^10.96.118.136 +my-nginx-service.default.svc.cluster.local\n$`, 0},
		{"shell", "getent hosts example.org", `^$`, 2},
		{"shell", "hostname; cat /etc/hostname; echo $HOSTNAME; getent hosts shell", `^shell\nshell\nshell\n10.244.1.9 +shell\n$`, 0},
		{"shell", "cat /etc/resolv.conf", "^" + regexp.QuoteMeta(strings.ReplaceAll(resolv, "%s", "default")) + "$", 0},
		{"kube-system/coredns-2", "cat /etc/resolv.conf", "^" + regexp.QuoteMeta(strings.ReplaceAll(resolv, "%s", "kube-system")) + "$", 0},
		{"shell", "cat /etc/hosts", `^# Kubernetes-managed hosts file.\n(.*\n)+10.244.1.9\tshell\n$`, 0},
		// Machines are no pods.
		{"kind-worker", "hostname; getent hosts my-nginx-service", `^kind-worker\n$`, 2},
		{"kind-worker", "getent hosts kind-worker2 outside", `^172.20.0.3 +kind-worker2\n192.0.2.10 +outside\n$`, 0},
		{"outside", "hostname; curl -s http://kind-worker:30080/", `^outside\n{"pod":"default/my-nginx-`, 0},
		{"router", "hostname", "^router\n$", 0},
	} {
		if out, code := in(tt.host, "sh", "-c", tt.command); code != tt.code || !regexp.MustCompile(tt.want).MatchString(out) {
			t.Errorf("%s in %s: exit code %d, %q; want %d, %s", tt.command, tt.host, code, out, tt.code, tt.want)
		}
	}

	// Queries are flows to the Service of the DNS, decided by the service proxy of the pod's node.
	run := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := e2etest.Run(t, nil, args...)
		if code != 0 {
			t.Fatalf("nfqproxy %s: exit code %d: %s", strings.Join(args, " "), code, stderr)
		}
		return stdout
	}
	var r flow.Record
	out := run("flows", "--lab", "names", "--service", "kube-system/kube-dns:dns", "--source", "shell", "--limit", "1", "-o", "jsonl")
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Node != "kind-worker" || r.Protocol != "UDP" || r.Verdict != "dnat" || r.Destination != "10.96.0.10:53" || !strings.HasPrefix(r.Pod, "kube-system/coredns-") {
		t.Errorf("the flow of a query: %v, %s", err, out)
	}

	// A change of the objects is one of the names.
	text := e2etest.ReadFile(t, file)
	if err := os.WriteFile(file+".new", []byte(strings.ReplaceAll(text, "10.96.118.136", "10.96.118.137")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	e2etest.Eventually(t, e2etest.Timeout, "the new address", func() bool {
		out, _ := in("shell", "getent", "hosts", "my-nginx-service")
		return strings.HasPrefix(out, "10.96.118.137 ")
	})

	// The prompt of a shell names the pod.
	cmd := e2etest.Command("lab", "exec", "--lab", "names", "shell", "--", "bash", "--norc", "-i")
	cmd.Env = append(cmd.Env, `PS1=[\h] `, "TERM=dumb")
	prompt(t, cmd, "[shell] ")
}

// prompt starts a shell on a terminal, waits for its prompt, and ends it.
func prompt(t *testing.T, cmd *exec.Cmd, want string) {
	t.Helper()
	terminal, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	var said []byte
	b := make([]byte, 4096)
	for !strings.Contains(string(said), want) {
		n, err := terminal.Read(b)
		if said = append(said, b[:n]...); err != nil {
			t.Errorf("there is no prompt %q in %q: %v", want, said, err)
			break
		}
	}
	_, _ = io.WriteString(terminal, "exit\n")
	_, _ = io.Copy(io.Discard, terminal) // until EIO: no process has the other end
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestAsk: it prints how the name is looked up, who answers, and the flow. It runs before the parallel tests, as
// TestPathsInALab.
func TestAsk(t *testing.T) {
	netnstest.Require(t)
	namedLab(t, "ask", namesObjects)
	ask := func(args ...string) (code int, stdout, stderr string) {
		t.Helper()
		return e2etest.Run(t, nil, append([]string{"lab", "ask", "--lab", "ask"}, args...)...)
	}
	for _, tt := range []struct {
		from, to string
		code     int
		want     []string // regular expressions
	}{
		{"shell", "http://my-nginx-service/", 0, []string{
			`^lookup   my-nginx-service.default.svc.cluster.local. A 10.96.118.136, by 10.96.0.10:53\n`,
			`\nrequest  10.244.1.9:[0-9]+ -> 10.96.118.136:80\n`,
			`\nanswer   default/my-nginx-[12], 200 OK, after .*; the server saw the client address 10.244.1.9:[0-9]+\n`,
			`default/my-nginx-service, by its cluster IP\n`, `KUBE-SVC-OL4YPD43MBS7WVHD`, `<- chosen`,
		}},
		{"default/shell", "my-nginx-service", 0, []string{`\nanswer   default/my-nginx-`}},
		{"shell", "udp://kube-dns.kube-system:53", 0, []string{
			`^lookup   kube-dns.kube-system.default.svc.cluster.local. A NXDOMAIN, kube-dns.kube-system.svc.cluster.local. A 10.96.0.10, by`,
			`\nanswer   kube-system/coredns-[12], after .*; the server saw the client address 10.244.1.9:`, `\nUDP 10.244.1.9:[0-9]+ -> 10.96.0.10:53\n`,
		}},
		{"shell", "tcp://kube-dns.kube-system:53", 0, []string{`\nanswer   kube-system/coredns-`, `\nTCP 10.244.1.9:`}},
		{"shell", "kubernetes", 0, []string{`\nrequest  10.244.1.9:[0-9]+ -> 10.96.0.1:443\nanswer   kind-control-plane, `}}, // its only port
		{"outside", "http://kind-worker:30080/", 0, []string{`^lookup   kind-worker 172.20.0.2, of /etc/hosts\n`, `, by its node port\n`, `masqueraded`}},
		{"shell", "nobody-home", 1, []string{`\nfailed   connection refused, after`, `verdict   rejected: no usable endpoint`}},
		{"shell", "http://my-nginx-service/none", 0, []string{`\nanswer   404 Not Found, after`}},
		{"shell", "nothing", 1, []string{`^lookup   nothing.default.svc.cluster.local. A NXDOMAIN, .*, nothing. A REFUSED, by 10.96.0.10:53\nfailed   nothing: no such name: .*no upstream[^,\n]*\n$`}},
		{"kind-worker", "my-nginx-service", 1, []string{`^lookup   my-nginx-service\nfailed   my-nginx-service: this host does not use the DNS of the cluster`}},
	} {
		code, stdout, stderr := ask(tt.from, tt.to)
		for _, want := range tt.want {
			if !regexp.MustCompile(want).MatchString(stdout) {
				t.Errorf("%s %s: no %s in\n%s", tt.from, tt.to, want, stdout)
			}
		}
		if code != tt.code || stderr != "" {
			t.Errorf("%s %s: exit code %d, want %d: %s", tt.from, tt.to, code, tt.code, stderr)
		}
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"shel", "web"}, `no host "shel" in this lab (did you mean "default/shell"?)`},
		{[]string{"shell", "https://web"}, `URL "https://web": the servers of a lab do not encrypt`},
		{[]string{"shell", "web", "-n", "kube-system"}, `no host "kube-system/shell" in this lab`},
		{[]string{"shell"}, "lab ask needs a host and a URL"},
		{[]string{"shell", "web", "--count", "0"}, "--count 0: want 1 to 10000"},
	} {
		if code, stdout, stderr := ask(tt.args...); code != 2 || stdout != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("%v: exit code %d, %s%s; want %s", tt.args, code, stdout, stderr, tt.want)
		}
	}
	// A headless Service has no proxy: its clients choose by the order of the answer. Twenty requests reach one pod
	// only once in half a million runs.
	for _, name := range []string{"my-nginx-service", "each"} {
		code, stdout, stderr := ask("shell", name, "--count", "20")
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		if code != 0 || stderr != "" || len(lines) != 4 || !strings.HasPrefix(lines[0], "lookup   "+name+".default.svc.cluster.local. A 10.") || !strings.HasPrefix(lines[1], "ANSWER ") {
			t.Errorf("%s: exit code %d: %s%s", name, code, stdout, stderr)
		}
		pods := lines[2:]
		slices.Sort(pods)
		for i, line := range pods {
			if !regexp.MustCompile(`^default/my-nginx-` + string(rune('1'+i)) + ` +[0-9]+ +[0-9]+ %$`).MatchString(line) {
				t.Errorf("%s: %q", name, line)
			}
		}
	}
	if code, stdout, _ := ask("shell", "nobody-home", "--count", "3"); code != 1 || !strings.Contains(stdout, "connection refused  3         100 %") {
		t.Errorf("no answers: exit code %d\n%s", code, stdout)
	}
	if code, stdout, _ := ask("shell", "nosuch", "--count", "3"); code != 1 || strings.Count(stdout, "no such name") != 2 || !strings.HasSuffix(stdout, "  3         100 %\n") {
		t.Errorf("a name that is not found: exit code %d\n%s", code, stdout)
	}
}
