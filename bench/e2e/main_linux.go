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
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/nfqproxy/nfqproxy/bench/e2e/node"
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
  publish [NAME...]        writes results to docs/reference: conformance.md, and a file each in conformance
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
	flag.StringVar(&o.Program, "program", filepath.Join(root, "bin", "nfqproxy"), "the nfqproxy program, with nfqproxyd beside it")
	flag.StringVar(&o.Image, "image", "", "archive of nfqproxy's image nfqproxy:dev; default: an image of -program is made")
	flag.StringVar(&o.Proxy, "proxy", "nfqproxy", "the service proxy: "+proxyNames())
	flag.StringVar(&o.Deploy, "deploy", "kustomize", "how nfqproxy is installed: kustomize or helm")
	flag.BoolVar(&o.Observe, "observe", false, "with another service proxy: nfqproxy observes beside it during the tests")
	flag.IntVar(&o.Nodes, "nodes", 3, "number of nodes")
	flag.BoolVar(&o.IPv6Only, "ipv6-only", false, "a cluster with IPv6 only, instead of both families")
	flag.StringVar(&o.checks, "checks", "", "run: checks to carry out after the tests, with commas between, or all: "+checkNames())
	flag.BoolVar(&o.keep, "keep", false, "run: keep the cluster after the tests, until Ctrl-C")
	o.tests.flags(filepath.Join(root, "bin", "e2e", "results"))
	flag.Parse()
	for _, path := range []*string{&o.Dir, &o.Program, &o.Image, &o.out} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	sum := sha256.Sum256([]byte(o.Dir))
	o.Group = "nfqproxy-e2e-" + hex.EncodeToString(sum[:4])
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
	if o.Observe && ownCluster(&o.settings) {
		errs = append(errs, fmt.Errorf("-observe: -proxy %s decides itself; want another service proxy", o.Proxy))
	}
	if o.checks != "" {
		errs = append(errs, knownChecks(o.checkList()))
	}
	return errors.Join(errs...)
}
