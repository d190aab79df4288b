package labs

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// startLab runs nfqproxy lab up until the end of the test, and waits until it is up.
func startLab(t *testing.T, name string) {
	t.Helper()
	netnstest.Require(t)
	cmd, output := e2etest.Start(t, nil, "lab", "up", name)
	lines := bufio.NewReader(output)
	var said strings.Builder
	for {
		line, err := lines.ReadString('\n')
		said.WriteString(line)
		if err != nil {
			t.Fatalf("lab up %s ended: %s", name, said.String())
		}
		if strings.HasPrefix(line, "Decisions") {
			break
		}
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = lines.WriteTo(io.Discard)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // before the file that the reader waits for is closed
		<-drained
	})
}

// TestLabUpShowsDecisions: lab up shows the decisions of all nodes, also those of a daemon that was started again. It runs before
// the parallel tests, as TestWhy.
func TestLabUpShowsDecisions(t *testing.T) {
	netnstest.Require(t)
	netnstest.RequireTool(t, "bash")
	dir := filepath.Join(t.TempDir(), "mine")
	run := func(args ...string) {
		t.Helper()
		if code, _, stderr := e2etest.Run(t, nil, args...); code != 0 {
			t.Fatalf("%q: %s", args, stderr)
		}
	}
	run("lab", "init", "kind", dir)
	text := e2etest.ReadFile(t, filepath.Join(dir, "kind.yaml"))
	cmd, output := e2etest.Start(t, nil, "lab", "up", e2etest.WriteFile(t, "shown.yaml", []byte(strings.Replace(text, "name: kind\n", "name: shown\n", 1))))
	lines := bufio.NewReader(output)
	var said strings.Builder
	await := func(part string) {
		t.Helper()
		_ = output.SetReadDeadline(time.Now().Add(e2etest.Timeout))
		for {
			line, err := lines.ReadString('\n')
			said.WriteString(line)
			if err != nil {
				t.Fatalf("no %q in the output: %v\n%s", part, err, said.String())
			}
			if strings.Contains(line, part) {
				return
			}
		}
	}
	connect := func(service string) {
		t.Helper()
		run("lab", "exec", "--lab", "shown", "shell", "--", "bash", "-c", "echo > /dev/tcp/"+service)
	}
	await("Decisions")
	connect("10.96.0.1/443")
	await("kind-worker         TCP 10.244.1.9:")
	run("lab", "fault", "add", "--lab", "shown", "kill", "kind-worker")
	await("(node kind-worker is unreachable")
	run("lab", "fault", "rm", "--lab", "shown", "--all")
	connect("10.96.118.136/80")
	await("-> 10.96.118.136:80  default/my-nginx-service  => 10.244.")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	await("stopping lab shown.")
}

// TestCommandsWithLabs: what commands say while one lab runs, and while two do.
func TestCommandsWithLabs(t *testing.T) {
	t.Parallel()
	type step struct {
		args   []string
		code   int
		stdout string // part of it; "": nothing
		stderr string // likewise
	}
	check := func(steps []step) {
		t.Helper()
		for _, s := range steps {
			code, stdout, stderr := e2etest.Run(t, nil, s.args...)
			if code != s.code || !strings.Contains(stdout, s.stdout) || !strings.Contains(stderr, s.stderr) || (s.stdout == "") != (stdout == "") || (s.stderr == "") != (stderr == "") {
				t.Errorf("nfqproxy %s: exit code %d, want %d\n%s%s", strings.Join(s.args, " "), code, s.code, stdout, stderr)
			}
		}
	}
	words := strings.Fields
	startLab(t, "kind")
	check([]step{
		{words("lab status"), 0, "lab kind, up since", ""},
		{words("lab status kind"), 0, "lab kind, up since", ""},
		{words("lab status knd"), 2, "", `lab knd is not running; running labs: kind (did you mean "kind"?)`},
		{words("lab down knd"), 2, "", `lab knd is not running; running labs: kind (did you mean "kind"?)`},
		{words("lab up kind"), 2, "", `lab kind is already running: inspect it with "nfqproxy lab status kind", stop it with "nfqproxy lab down kind"`},
		{words("lab exec shell -- no-such-program"), 127, "", "nfqproxy: no-such-program: program not found"},
		{words("lab exec shell -- /etc/passwd"), 126, "", "nfqproxy: /etc/passwd: permission denied"},
		{[]string{"lab", "exec", "shell", "--", "sh", "-c", "exit 3"}, 3, "", ""},
		{words("lab exec shel -- true"), 2, "", `no host "shel" in this lab (did you mean "default/shell"?)`},
		{words("lab exec -n default shell -- true"), 0, "", ""},
		{words("lab exec -n default kind-worker -- true"), 0, "", ""},
		{words("lab exec -n kube-system shell -- true"), 2, "", `no host "kube-system/shell" in this lab; known: `},
		{words("flows --service default/my-ngnix-service"), 2, "", `no such service (did you mean "default/my-nginx-service"?)`},
		{words("flows --pod default/shel"), 2, "", `no such pod (did you mean "default/shell"?)`},
		{words("flows --service default/my-nginx-service"), 0, "", "No flows found."},
		{words("flows --source default/shel"), 2, "", `--source default/shel: no such pod, node or client (did you mean "default/shell"?)`},
		{words("flows --source 10.99.0.1,shell,outside,kind-worker"), 0, "", "No flows found."},
		{words("__complete flows --source outs"), 0, "outside\n", "Completion ended"},
		{words("flows no-such-id"), 2, "", `"no-such-id"`},
		{words("flows --node knd"), 2, "", "--node"},
		{words("step --service nothing --seconds 1"), 2, "", "--service nothing: no such service"},
		{words("__complete lab exec k"), 0, "kind-worker2\n", "Completion ended"},
		{words("__complete lab exec --lab kind default/s"), 0, "default/shell\n", "Completion ended"},
		{words("__complete lab down k"), 0, "kind\n", "Completion ended"},
		{words("__complete flows --service default/m"), 0, "default/my-nginx-service\n", "Completion ended"},
		{words("__complete flows --pod kube-system/"), 0, "kube-system/coredns-1\n", "Completion ended"},
		{words("__complete step --node kind-w"), 0, "kind-worker\n", "Completion ended"},
	})
	checkWeb(t, "kind", "--no-open")
	startLab(t, "dual-stack")
	checkWeb(t, "dual-stack", "--no-open", "--lab", "dual-stack")
	const which = "several labs are running; choose one with --lab: dual-stack, kind"
	check([]step{
		{words("lab status"), 2, "", which},
		{words("lab down"), 2, "", which},
		{words("lab exec shell -- true"), 2, "", which},
		{words("flows"), 2, "", which},
		{words("step --service web --seconds 1"), 2, "", which},
		{words("web --no-open"), 2, "", which},
		{words("web --no-open --lab knd"), 2, "", `lab knd is not running; running labs: dual-stack, kind (did you mean "kind"?)`},
		{words("web --no-open --lab kind --page 127.0.0.1:0"), 2, "", "--page requires --cluster or --server"},
		{words("web --no-open --lab kind --history nowhere"), 2, "", "--history: nowhere: no such file or directory"}, // not the lab's page, which has none
		{words("web --no-open --lab kind --server 127.0.0.1:1"), 2, "", "--server and --lab cannot be used together"},
		{words("flows --lab kind"), 0, "", "No flows found."},
		{words("flows --lab knd"), 2, "", `lab knd is not running; running labs: dual-stack, kind (did you mean "kind"?)`},
		{words("lab exec --lab dual-stack node-a true"), 0, "", ""},
		{words("__complete lab exec "), 0, ":", "Completion ended"},
		{words("lab down dual-stack"), 0, "", ""},
		{words("lab down --lab kind"), 0, "", ""},
		{words("lab down"), 2, "", "no lab is running; start one: nfqproxy lab up kind"},
		{words("lab down kind"), 2, "", "lab kind is not running; start it: nfqproxy lab up kind"},
		{words("web --no-open --lab kind"), 2, "", "lab kind is not running; start it: nfqproxy lab up kind"},
		{words("lab status my-lab"), 2, "", "lab my-lab is not running; start a lab: nfqproxy lab up FILE"},
	})
}

// checkWeb runs nfqproxy web beside a running lab: the page that it prints is that of the lab, as the lab's process
// serves it.
func checkWeb(t *testing.T, lab string, args ...string) {
	t.Helper()
	code, stdout, stderr := e2etest.Run(t, nil, append([]string{"web"}, args...)...)
	m := regexp.MustCompile(`^the page of the lab: (http://127\.0\.0\.1:\d+)/#token=(\S{16,})\n$`).FindStringSubmatch(stdout)
	if code != 0 || stderr != "" || m == nil {
		t.Fatalf("web: exit code %d\n%s%s", code, stdout, stderr)
	}
	client, err := remote.NewClient(m[1], remote.ClientOptions{Token: m[2]})
	if err != nil {
		t.Fatal(err)
	}
	topology, err := client.Topology(t.Context())
	if err != nil || topology.Lab != lab || !topology.CanHold || !topology.CanWhy || !topology.CanRequest {
		t.Errorf("the topology of the page: %+v, %v", topology, err)
	}
	if _, err := client.Holder().Hold(t.Context(), observe.HoldQuery{Flow: observe.HoldFilter{Port: "1"}, Seconds: 1}); err != nil { // with the token only
		t.Errorf("hold: %v", err)
	}
	response, err := http.Get(m[1])
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if page, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(page), "<html") {
		t.Errorf("the page: %s %s, %v", response.Status, page, err)
	}
}
