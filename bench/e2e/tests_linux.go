package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/e2e/results"
)

// interruptTime is what ginkgo has after an interrupt.
const interruptTime = 20 * time.Second

// tests are the flags of a run of the tests.
type tests struct {
	focus, skip string
	procs       int
	out         string
	timeout     string
}

// skipDefault are tests that cannot pass here with any service proxy, see README.md.
var skipDefault = []string{`SCTP`, `\[Disruptive\]`, `LoadBalancers.*should only target nodes with endpoints`, `sig-windows`}

// skipIPv6Only are tests that cannot pass on a cluster with IPv6 only, see README.md.
var skipIPv6Only = []string{`IPv6DualStack`, `LoadBalancers.*source ranges`, `LoadBalancers ExternalTrafficPolicy: Local.*should work from pods`}

// focusDefault are the tests about all subjects.
func focusDefault() string {
	var subjects []string
	for _, s := range results.Subjects {
		subjects = append(subjects, regexp.QuoteMeta(s))
	}
	return regexp.QuoteMeta(results.Group) + "(" + strings.Join(subjects, "|") + ")"
}

func (t *tests) flags(out string) {
	flag.StringVar(&t.focus, "focus", focusDefault(), "tests to run, a regular expression")
	flag.StringVar(&t.skip, "skip", strings.Join(skipDefault, "|"), "tests to leave out, a regular expression")
	flag.IntVar(&t.procs, "procs", 4, "number of tests that run at once")
	flag.StringVar(&t.out, "out", out, "directory of results; those of a service proxy are in a directory with its name")
	flag.StringVar(&t.timeout, "timeout", "3h", "time limit of all tests")
}

// run runs the tests, in the network of the nodes, and writes their results. Tests that fail are
// an error.
func (t *tests) run(ctx context.Context, s *settings) (err error) {
	if s.Observe {
		c, err := newChecker(s)
		if err != nil {
			return err
		}
		if err := c.installObserver(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.removeObserver(context.WithoutCancel(ctx))) }()
	}
	out := filepath.Join(t.out, s.name())
	if err := errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755)); err != nil {
		return err
	}
	repositoryList := filepath.Join(out, "repositories.yaml")
	if err := os.WriteFile(repositoryList, []byte(repositories), 0o644); err != nil {
		return err
	}
	paths, err := programs(ginkgo, e2eTest, cluster.Kubectl)
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(out, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	skip := t.skip
	if s.IPv6Only {
		skip += "|" + strings.Join(skipIPv6Only, "|")
	}
	cmd := exec.CommandContext(ctx, paths[0],
		fmt.Sprintf("--procs=%d", t.procs), "--no-color", "--timeout="+t.timeout, "--silence-skips",
		"--focus="+t.focus, "--skip="+skip, "--junit-report=junit.xml", "--output-dir="+out, paths[1], "--",
		"--provider=skeleton", "--kubeconfig="+s.kubeconfig(), "--kubectl-path="+paths[2],
		fmt.Sprintf("--num-nodes=%d", s.Nodes), "--allowed-not-ready-nodes=0", "--report-dir="+out, "--disable-log-dump", "--minStartupPods=1",
	)
	cmd.Env = append(os.Environ(), "KUBE_TEST_REPO_LIST="+repositoryList)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = out
	// A group of its own: it gets one signal, from here.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// Interrupted, ginkgo removes what its tests have made.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = interruptTime
	logf("running the tests; log %s", log.Name())
	runErr := cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	list, err := results.ReadJUnit(filepath.Join(out, "junit.xml"))
	if err != nil {
		return errors.Join(err, runErr)
	}
	about, err := s.about(ctx)
	if err != nil {
		return err
	}
	if err := (results.Run{About: about, List: list}).Write(filepath.Join(out, results.File)); err != nil {
		return err
	}
	logf("%s", list.Summary())
	for _, r := range list {
		if r.State == results.Failed {
			logf("failed: %s", r.Name)
		}
	}
	if runErr != nil {
		return fmt.Errorf("the tests failed (%w): see %s", runErr, log.Name())
	}
	return nil
}

// name is that of the results.
func (s *settings) name() string {
	name := s.Proxy
	if s.Deploy == "helm" && ownCluster(s) {
		name += "-helm"
	}
	if s.Observe {
		name += "-observed"
	}
	if s.IPv6Only {
		name += "-ipv6"
	}
	return name
}
