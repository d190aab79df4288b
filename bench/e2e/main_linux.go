// Command e2e runs Kubernetes' own tests of Services against a cluster of real parts on this
// machine: etcd, the control plane, and nodes with containerd, runc and kubelet. Pods have
// addresses of both families (network plugins ptp and portmap), CoreDNS serves names, and a small
// load balancer serves Services of type LoadBalancer. nfqproxy runs as a DaemonSet, installed
// from deploy/; so does kube-proxy, the control.
//
// All runs in namespaces of this process, and ends with it. "make e2e" runs it; README.md describes
// the commands.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/e2e/node"
	"github.com/nfqproxy/nfqproxy/deploy/netns"
)

const usage = `usage: go run ./bench/e2e [flags] COMMAND

  run                      starts a cluster, runs the tests and ends the cluster
  up                       starts a cluster and keeps it until Ctrl-C or "down"
  down                     ends the cluster
  test                     runs the tests against the cluster
  check [NAME...]          changes the cluster under load: no connection may fail
  kubectl ARGS...          runs kubectl with all rights
  node N COMMAND...        runs a program on a node, in its namespaces
  lan COMMAND...           runs a program in the network of the nodes
  compare [CONTROL OTHER]  lists tests that pass with one service proxy only
  merge NAME FILE...       joins the results of several runs with one service proxy
  publish [NAME...]        writes results to docs/conformance and docs/conformance.md
`

func main() {
	node.Main()
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() > 0 {
			os.Exit(exit.ExitCode())
		}
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	settings
	tests
	checks string
	keep   bool
}

func run() error {
	var o options
	root, err := repository()
	if err != nil {
		return err
	}
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage, "\nflags:\n"); flag.PrintDefaults() }
	flag.StringVar(&o.Dir, "dir", filepath.Join(root, "bin", "e2e", "cluster"), "directory of the cluster's files; one per cluster")
	flag.StringVar(&o.Program, "program", filepath.Join(root, "bin", "nfqproxy"), "the nfqproxy program")
	flag.StringVar(&o.Image, "image", "", "archive of nfqproxy's image nfqproxy:dev; default: an image of -program is made")
	flag.StringVar(&o.Proxy, "proxy", "nfqproxy", "the service proxy: "+proxyNames())
	flag.StringVar(&o.Deploy, "deploy", "kustomize", "how nfqproxy is installed: kustomize or helm")
	flag.IntVar(&o.Nodes, "nodes", 3, "number of nodes")
	flag.BoolVar(&o.IPv6Only, "ipv6-only", false, "a cluster with IPv6 only, instead of both families")
	flag.StringVar(&o.checks, "checks", "", "run: checks to carry out after the tests, with commas between, or all: "+checkNames())
	flag.BoolVar(&o.keep, "keep", false, "run: keep the cluster after the tests, until Ctrl-C")
	o.tests.flags(filepath.Join(root, "bin", "e2e", "results"))
	flag.Parse()
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(o.Dir))
	o.Group = "nfqproxy-e2e-" + hex.EncodeToString(sum[:4])
	if o.Image != "" {
		if o.Image, err = filepath.Abs(o.Image); err != nil {
			return err
		}
	}
	if err := o.validate(); err != nil {
		return err
	}
	args := flag.Args()
	if len(args) == 0 {
		flag.Usage()
		return errors.New("a command is missing")
	}
	switch command, args := args[0], args[1:]; command {
	case "run", "up":
		return o.isolated(command == "run")
	case "down":
		return o.down()
	case "kubectl":
		return o.attachKubectl(args)
	case "lan":
		return o.attach(o.path(controlSocket), args)
	case "node":
		if len(args) < 2 {
			return errors.New("node: want its number and a command")
		}
		if i, err := strconv.Atoi(args[0]); err != nil || i < 1 {
			return fmt.Errorf("node: %q is no number of a node", args[0])
		}
		return o.attach(o.path("node"+args[0], node.Socket), args[1:])
	case "test":
		return o.inside(func(ctx context.Context) error { return o.tests.run(ctx, &o.settings) })
	case "compare":
		return o.tests.compare(args)
	case "merge":
		return o.tests.merge(args)
	case "publish":
		return o.tests.publish(args)
	case "check":
		return o.inside(func(ctx context.Context) error { return runChecks(ctx, &o.settings, args) })
	default:
		return fmt.Errorf("no command %q: run go run ./bench/e2e -help", command)
	}
}

func (o *options) validate() error {
	var errs []error
	if _, ok := proxies[o.Proxy]; !ok {
		errs = append(errs, fmt.Errorf("-proxy %q: want one of %s", o.Proxy, proxyNames()))
	}
	if o.Nodes < 1 || o.Nodes > maxNodes {
		errs = append(errs, fmt.Errorf("-nodes %d: want 1 to %d", o.Nodes, maxNodes))
	}
	if o.Deploy != "kustomize" && o.Deploy != "helm" {
		errs = append(errs, fmt.Errorf("-deploy %q: want kustomize or helm", o.Deploy))
	}
	if o.checks != "" {
		errs = append(errs, knownChecks(o.checkList()))
	}
	return errors.Join(errs...)
}

// isolated runs the cluster in namespaces of its own, and removes what it leaves behind.
func (o *options) isolated(test bool) error {
	code, err := netns.Isolation{
		Prepare: func() ([]*os.File, error) {
			if err := requireMachine(); err != nil {
				return nil, err
			}
			if _, err := node.Find(o.path(controlSocket)); err == nil {
				return nil, fmt.Errorf("a cluster in %s is running: end it with \"down\", or choose another -dir", o.Dir)
			}
			return nil, errors.Join(node.RemoveGroups(o.Group), os.RemoveAll(o.Dir), os.MkdirAll(o.Dir, 0o755))
		},
		Main: func([]*os.File) int {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if err := o.serve(ctx, test); err != nil {
				fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
				return 1
			}
			return 0
		},
	}.Run()
	// Here only the outer process arrives, when all others have ended.
	err = errors.Join(err, o.cleanUp())
	if err == nil && code != 0 {
		os.Exit(code)
	}
	return err
}

// cleanUp removes what a cluster leaves behind, except for logs.
func (o *options) cleanUp() error {
	err := node.RemoveGroups(o.Group)
	// Processes that have been killed may still be on their way out.
	for deadline := time.Now().Add(10 * time.Second); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); err = node.RemoveGroups(o.Group) {
		time.Sleep(50 * time.Millisecond)
	}
	errs := []error{err, os.RemoveAll(o.path(imagesFile)), os.RemoveAll(o.path("control", "etcd")), os.RemoveAll(o.path(controlSocket))}
	for i := range o.Nodes {
		errs = append(errs, os.RemoveAll(o.path(nodeName(i+1), "containers")))
	}
	return errors.Join(errs...)
}

// serve runs the cluster, inside.
func (o *options) serve(ctx context.Context, test bool) error {
	r, err := start(ctx, &o.settings)
	if err != nil {
		return err
	}
	err = o.use(ctx, r, test)
	if ctx.Err() != nil && !test {
		err = nil // "down"
	}
	return errors.Join(err, r.close())
}

func (o *options) use(ctx context.Context, r *running, test bool) error {
	if err := r.deployProxy(ctx); err != nil {
		return err
	}
	logf("the cluster is ready: kubeconfig %s", r.kubeconfig())
	var failed error
	if test {
		if failed = o.testAndCheck(ctx); !o.keep || ctx.Err() != nil {
			return failed
		}
		logf("%v", cmp.Or(failed, errors.New("passed")))
	}
	select {
	case err := <-r.ended:
		return errors.Join(failed, err)
	case <-ctx.Done():
		return failed
	}
}

func (o *options) testAndCheck(ctx context.Context) error {
	err := o.tests.run(ctx, &o.settings)
	if o.checks == "" || ctx.Err() != nil {
		return err
	}
	return errors.Join(err, runChecks(ctx, &o.settings, o.checkList()))
}

// checkList are the names in the flag; none stands for all.
func (o *options) checkList() []string {
	if o.checks == "all" {
		return nil
	}
	return strings.Split(o.checks, ",")
}

// load reads the settings of a running cluster.
func (o *options) load() error {
	if _, err := node.Find(o.path(controlSocket)); err != nil {
		return fmt.Errorf("no cluster is running in %s: %w", o.Dir, err)
	}
	text, err := os.ReadFile(o.path(settingsFile))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, &o.settings)
}

// down ends a running cluster and waits for its end.
func (o *options) down() error {
	pid, err := node.Find(o.path(controlSocket))
	if err != nil {
		return o.cleanUp() // of one that was killed
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		return os.NewSyscallError("kill", err)
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		// The outer process removes it last.
		if _, err := os.Stat(o.path(controlSocket)); errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("process %d does not end", pid)
}

// attach runs a program in the namespaces of a process of the cluster, in this one's place.
func (o *options) attach(socket string, args []string) error {
	if len(args) == 0 {
		return errors.New("a program is missing")
	}
	if err := o.load(); err != nil {
		return err
	}
	dir := ""
	if socket == o.path(controlSocket) {
		var err error
		if dir, err = os.Getwd(); err != nil {
			return err
		}
	}
	cmd, err := node.Command(socket, dir, args[0], args[1:]...)
	if err != nil {
		return err
	}
	return unix.Exec(cmd.Path, cmd.Args, os.Environ())
}

func (o *options) attachKubectl(args []string) error {
	path, err := cluster.Binary(cluster.Kubectl)
	if err != nil {
		return err
	}
	return o.attach(o.path(controlSocket), append([]string{path, "--kubeconfig=" + o.kubeconfig()}, args...))
}

// insideVariable is set for a process that was started inside the cluster.
const insideVariable = "NFQPROXY_E2E_INSIDE"

// inside runs this command once more in the network of the nodes, and does there what it has to.
func (o *options) inside(do func(context.Context) error) error {
	if os.Getenv(insideVariable) == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		if err := os.Setenv(insideVariable, "1"); err != nil {
			return err
		}
		return o.attach(o.path(controlSocket), append([]string{self}, os.Args[1:]...))
	}
	if err := o.load(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return do(ctx)
}
